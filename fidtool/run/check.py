"""Inspection of one or two sets of images without a network, for ``fidtool check``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fidtool.diagnose.diagnosis import Checkup, describe_set, diagnose, inspect_set
from fidtool.distributed.launch import available_cores
from fidtool.errors import InputError
from fidtool.reading.records import ImageRecords
from fidtool.run.broadcast import broadcast_images
from fidtool.run.context import RunContext, open_run
from fidtool.run.extract import Extraction
from fidtool.run.opening import check_paths, merge_spellings, open_set
from fidtool.run.sets import IMAGES, RequestedSet, SetContent, name_sets
from fidtool.settings.settings import Settings
from fidtool.sources.contents import BadFile
from fidtool.sources.kinds import IgnoredFiles
from fidtool.sources.listing import missing_error
from fidtool.statistics.accumulator import RECORDS
from fidtool.system.console import Console

_BATCH = 32


def check_sets(
    sources: Sequence[tuple[object, str]],
    settings: Settings,
    console: Console,
    strict: bool = False,
) -> Checkup:
    """Inspect a set, alone or against another, for `fidtool.check` and the command line. A
    collective.
    """
    requests = name_sets(*sources)
    with open_run(requests, settings, console) as run:
        run.world.on_rank_zero(lambda: _refuse_same(requests))
        read = [_read_records(run, request, settings) for request in requests]

        def make_checkup() -> Checkup:
            inspections = [
                inspect_set(request.path, *facts)
                for request, facts in zip(requests, read, strict=True)
            ]
            fake = inspections[0]
            assert fake is not None
            real = inspections[1] if len(inspections) > 1 else None
            diagnosis = diagnose(real, fake, shown=run.console.render)
            health = describe_set(fake, diagnosis.findings_for("fake"))
            usual = None if real is None else describe_set(real, diagnosis.findings_for("real"))
            return Checkup(health, usual, diagnosis.findings_for("pair"), strict)

        return run.world.on_rank_zero(make_checkup)


def _refuse_same(requests: Sequence[RequestedSet]) -> None:
    check_paths([request.path for request in requests if request.data is None])
    once, _ = merge_spellings(requests)
    if len(once) > 1 and once[0] is once[1]:
        raise InputError(
            f"{requests[0].path} and {requests[1].path} are the same:",
            f"pass a different set to compare {requests[0].path} with",
        )


def _read_records(
    run: RunContext, request: RequestedSet, settings: Settings
) -> tuple[ImageRecords | None, IgnoredFiles | None, Sequence[BadFile]]:
    """Return the records of a set, what its source passes over and the files that cannot be read.
    A collective.
    """
    world = run.world
    content = world.only_on_rank_zero(lambda: _open_set(run, request, settings)) or SetContent()
    # A statistics file has records, but no images to decode.
    if not world.broadcast(content.images is not None):
        return None if content.file is None else content.file.pictures, None, ()
    images = broadcast_images(world, content.images, request, settings)
    workers = settings.num_workers
    if workers is None:
        # As many as are decoded until one has started.
        useful = len(images) // (_BATCH * world.size) // 8
        workers = min(8, available_cores(world.launch.local_world_size), useful)
    extraction = Extraction(
        run,
        replace(settings, on_error="skip", max_skip=1.0, diagnose=True),
        (),
        {},
        batch_size=_BATCH,
        num_workers=workers,
        crop=None,
        warn=run.console.warn,
    )
    sums = extraction.run(0, images)
    with world.together():
        records = ImageRecords.from_images(images.drop_skipped(sums.skipped), sums.rows()[RECORDS])
        return records, images.passed_over, sums.skipped


def _open_set(run: RunContext, request: RequestedSet, settings: Settings) -> SetContent:
    content = open_set(request, settings, IMAGES, run.console.say)
    if content.warning:
        run.console.warn(str(content.warning))
    if content.images is None:
        if content.file is None:
            raise InputError(
                f"{request.path} is an iterable:", "pass images that can be indexed, such as a list"
            )
        if content.file.pictures is None:
            raise InputError(
                f"{request.path} has no records of its images:", "pass the images instead"
            )
        return content
    missing = content.images.missing_lines()
    if len(missing) == len(content.images):
        raise missing_error(request.path, missing)
    return content._replace(images=content.images.draw(settings.sampling()))
