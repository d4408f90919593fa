"""Inspection of one or two sets of images without a network, for ``fidtool check``."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fidtool.cpus import available_cores
from fidtool.diagnose.diagnosis import Checkup, Health, SetInspection, health_of, inspect_set
from fidtool.diagnose.differences import pair_findings
from fidtool.diagnose.duplicates import shared_copies_of, shared_warning
from fidtool.diagnose.findings import Finding
from fidtool.errors import InputError
from fidtool.images.batches import broadcast_images, deal, plan_batches
from fidtool.images.decode import DecodeOptions
from fidtool.images.loader import Batch, LoadOptions, load
from fidtool.images.records import ImageRecords
from fidtool.pipeline.opening import identity, missing_error, open_set
from fidtool.pipeline.run import RunContext
from fidtool.pipeline.sets import IMAGES, RequestedSet
from fidtool.settings import Settings
from fidtool.sources.contents import BadFile
from fidtool.sources.image_set import ImageSet, Indices
from fidtool.statistics.accumulator import RECORDS, Accumulator
from fidtool.statistics.rows import in_canonical_order
from fidtool.statistics.set_statistics import Statistics

_BATCH = 32
_BATCHES_PER_WORKER = 8
"""Minimum number of batches per decoding worker: fewer are decoded before a worker has started."""


def refuse_same(requests: Sequence[RequestedSet]) -> None:
    """Refuses to check a set against itself."""
    one, other = requests[0], requests[-1]
    in_memory = one.given is not None or other.given is not None
    if len(requests) > 1 and (one is other or (not in_memory and identity(one.path) == identity(other.path))):
        problem = f"{one.path} and {other.path} are the same:"
        raise InputError(problem, f"pass a different set to compare {one.path} with")


def check(run: RunContext, requests: Sequence[RequestedSet], settings: Settings, strict: bool = False) -> Checkup:
    """Inspects a set of images, alone or against real images or a file of their records. A collective."""
    sets = [_CheckedSet(run, each, settings) for each in requests]
    for one in sets:
        one.read()

    def shown(health: Health) -> Health:
        found = (replace(each, message=run.console.shown(each.message)) for each in health.findings)
        return replace(health, findings=tuple(found))

    def conclude() -> Checkup:
        fake, *reals = [one.inspection() for one in sets]
        health = health_of(fake, sets[0].skipped, reals[0] if reals else None, generated=True)
        if not reals:
            return Checkup(shown(health), None, (), strict)
        usual = health_of(reals[0], sets[1].skipped, fake, generated=False)
        return Checkup(shown(health), shown(usual), tuple(_between(reals[0], fake)), strict)

    return run.world.on_rank_zero(conclude)


def _between(real: SetInspection, fake: SetInspection) -> list[Finding]:
    found = pair_findings(real.pictures, fake.pictures, fake.unusual_findings(real))
    shared = shared_copies_of(real.pictures, fake.pictures)
    if shared.count:
        message = shared_warning(real.path, fake.path, shared, len(fake.pictures))
        found.append(Finding("leak", "high", shared.count, shared.examples[0][0], message))
    return found


class _CheckedSet:
    def __init__(self, run: RunContext, request: RequestedSet, settings: Settings) -> None:
        self._run, self._world, self._settings, self._request = run, run.world, settings, request
        self._images: ImageSet | None = None
        self._found: Accumulator | None = None
        self._known: ImageRecords | None = None

    def read(self) -> None:
        """Decodes the set. A collective."""
        if not self._world.on_rank_zero(self._open):
            return
        given, floats = self._request.given, self._settings.floats
        assert not isinstance(given, Statistics)
        self._images = images = broadcast_images(self._world, self._images, given, floats)
        self._read(images, plan_batches(images, _BATCH))

    def _open(self) -> bool:
        """Opens the set on rank zero. Returns whether it has images to decode: a statistics file only has records."""
        settings, path = self._settings, self._request.path
        if self._request.is_stream:
            raise InputError(f"{path} is an iterable:", "pass images that can be indexed, such as a list")
        opened = open_set(self._request, settings, IMAGES, self._run.console.say)
        if opened.warning:
            self._run.console.warn(opened.warning)
        if opened.images is not None:
            if len(missing := opened.images.missing()) == len(opened.images):
                raise missing_error(path, missing)
            self._images = opened.images.draw(settings.sampling())
            return True
        assert opened.file is not None
        if opened.file.pictures is None:
            raise InputError(f"{path} has no records of its images:", "pass the images instead")
        self._known = opened.file.pictures
        return False

    def _read(self, images: ImageSet, batches: Sequence[Indices]) -> None:
        with self._world.together():
            self._found = found = Accumulator({}, list(map(len, batches)), inspected=True)
            planned = [Batch(number, indices) for number, indices in enumerate(batches)]
            mine = deal(planned, self._world.rank, self._world.size, images.in_order)
            self._decode(images, mine, found)
        found.merge(self._world, images.path)

    @property
    def skipped(self) -> list[BadFile]:
        """The files that could not be read."""
        return [] if self._found is None else self._found.skipped

    def _decode(self, images: ImageSet, mine: list[Batch], found: Accumulator) -> None:
        settings, ranks = self._settings, self._world.launch.local_world_size
        options = DecodeOptions(True, settings.max_pixels, records=True, pixels=False, floats=settings.floats)
        workers = settings.num_workers
        if workers is None:
            workers = min(8, available_cores(ranks), len(mine) // _BATCHES_PER_WORKER)
        total = sum(len(batch.images) for batch in mine)
        warn, patience = self._run.console.warn, settings.timeout
        loaded = load(images, mine, LoadOptions(options, workers, patience=patience, complain=warn))
        with self._run.console.progress(images.path, total) as progress, contextlib.closing(loaded):
            for batch in loaded:
                skipped = [replace(bad, reason=self._run.console.shown(bad.reason)) for bad in batch.skipped]
                found.add(batch.number, None, batch.properties, batch.records, skipped)
                progress.advance(batch.count + len(batch.skipped))
                if self._world.must_stop():
                    break

    def inspection(self) -> SetInspection:
        """The inspection of the set, on rank zero. Call `read` first."""
        passed_over = None if self._images is None else self._images.passed_over
        found = inspect_set(self._request.path, self._known or self._records(), passed_over)
        assert found is not None
        return found

    def _records(self) -> ImageRecords:
        assert self._images is not None
        assert self._found is not None
        if len(self.skipped) == len(self._images):
            reason = f"{self.skipped[0].file}: {self.skipped[0].reason}"
            raise InputError(f"no file in {self._request.path} can be read ({reason})")
        parts = self._found.rows()
        rows = in_canonical_order(self._images, np.hstack([parts[name] for name in RECORDS]), self.skipped)
        return ImageRecords.of(self._images, rows, self.skipped)
