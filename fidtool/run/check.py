"""Inspection of one or two sets of images without a network, for ``fidtool check``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fidtool.diagnose.diagnosis import Checkup, diagnosis_of, health_of, inspect_set
from fidtool.distributed.launch import available_cores
from fidtool.errors import InputError
from fidtool.reading.broadcast import broadcast_images
from fidtool.reading.records import ImageRecords
from fidtool.run.context import RunContext, open_run
from fidtool.run.extract import Extraction
from fidtool.run.opening import check_paths, open_set, spelled_once
from fidtool.run.sets import IMAGES, Content, RequestedSet, named_sets
from fidtool.settings.settings import Settings
from fidtool.sources.contents import BadFile
from fidtool.sources.kinds import PassedOver
from fidtool.sources.listing import missing_error
from fidtool.statistics.accumulator import RECORDS
from fidtool.statistics.set_statistics import Statistics
from fidtool.system.console import Console

_BATCH = 32


def check_sets(
    sources: Sequence[tuple[object, str]],
    settings: Settings,
    console: Console,
    strict: bool = False,
) -> Checkup:
    """Inspects a set, alone or against another, for `fidtool.check` and the command line. A
    collective.
    """
    requests = named_sets(*sources)
    with open_run(requests, settings, console) as run:
        run.world.on_rank_zero(lambda: _refuse_same(requests))
        read = [_read(run, request, settings) for request in requests]

        def conclude() -> Checkup:
            fake, *others = (
                inspect_set(each.path, *found) for each, found in zip(requests, read, strict=True)
            )
            real = others[0] if others else None
            assert fake is not None
            diagnosis = diagnosis_of(real, fake, shown=run.console.shown)
            usual = None if real is None else health_of(real, diagnosis.about("real"))
            return Checkup(
                health_of(fake, diagnosis.about("fake")), usual, diagnosis.about("pair"), strict
            )

        return run.world.on_rank_zero(conclude)


def _refuse_same(requests: Sequence[RequestedSet]) -> None:
    check_paths([each.path for each in requests if each.given is None])
    once, _ = spelled_once(requests)
    if len(once) > 1 and once[0] is once[1]:
        raise InputError(
            f"{requests[0].path} and {requests[1].path} are the same:",
            f"pass a different set to compare {requests[0].path} with",
        )


def _read(
    run: RunContext, request: RequestedSet, settings: Settings
) -> tuple[ImageRecords | None, PassedOver | None, Sequence[BadFile]]:
    """Returns the records of a set, what its source passes over and the files that cannot be read.
    A collective.
    """
    content = run.world.only_on_rank_zero(lambda: _opened(run, request, settings))
    images, file = (None, None) if content is None else content[:2]
    if not run.world.broadcast(
        images is not None
    ):  # a statistics file has records, but no images to decode
        return None if file is None else file.pictures, None, ()
    given, ranks = request.given, run.world.launch.local_world_size
    assert not isinstance(given, Statistics)
    images = broadcast_images(run.world, images, given, settings.floats, settings.timeout)
    workers = settings.num_workers
    if workers is None:
        batches = len(images) // (_BATCH * run.world.size)
        workers = min(
            8, available_cores(ranks), batches // 8
        )  # as many as are decoded until one has started
    usable = replace(settings, on_error="skip", max_skip=1.0, diagnose=True)
    extraction = Extraction(
        run,
        usable,
        (),
        {},
        batch_size=_BATCH,
        num_workers=workers,
        crop=None,
        warn=run.console.warn,
    )
    found = extraction.run(0, images)
    with run.world.together():
        records = ImageRecords.of(images.without(found.skipped), found.rows()[RECORDS])
        return records, images.passed_over, found.skipped


def _opened(run: RunContext, request: RequestedSet, settings: Settings) -> Content:
    opened = open_set(request, settings, IMAGES, run.console.say)
    if opened.warning:
        run.console.warn(str(opened.warning))
    if opened.images is None:
        if opened.file is None:
            raise InputError(
                f"{request.path} is an iterable:", "pass images that can be indexed, such as a list"
            )
        if opened.file.pictures is None:
            raise InputError(
                f"{request.path} has no records of its images:", "pass the images instead"
            )
        return opened
    if len(missing := opened.images.missing()) == len(opened.images):
        raise missing_error(request.path, missing)
    return opened._replace(images=opened.images.draw(settings.sampling()))
