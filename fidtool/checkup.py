"""A look at the images of a set, and of another beside it, without any network: what ``fidtool check`` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fidtool.console import Console
from fidtool.diagnose.diagnosis import Checkup, SetInspection, health_of, inspect_set
from fidtool.diagnose.differences import pair_findings
from fidtool.diagnose.duplicates import shared_copies_of, shared_warning
from fidtool.diagnose.findings import Finding
from fidtool.errors import InputError
from fidtool.features.device import available_cores
from fidtool.images.batches import DecodedBatch, PlannedBatch, Reading
from fidtool.images.handover import broadcast_images
from fidtool.images.inspection import RECORD
from fidtool.images.loader import WorkerWatch, load
from fidtool.images.plan import deal, plan_batches
from fidtool.images.verification import Verification
from fidtool.inputs import open_source
from fidtool.session import Session, open_session
from fidtool.settings import Settings
from fidtool.sources.census import PassedOver
from fidtool.sources.contents import BadFile
from fidtool.sources.image_set import ImageSet, Indices, real_path
from fidtool.sources.memory import Images
from fidtool.statistics.canonical import in_canonical_order
from fidtool.statistics.kept import KeptRows
from fidtool.statistics.pictures import Pictures
from fidtool.statistics.store import Statistics

_BATCH = 32
_WORTH_A_WORKER = 8


def check(
    path: str,
    against: str | None,
    config: Settings,
    console: Console,
    strict: bool = False,
    given: Mapping[str, Images] | None = None,
) -> Checkup:
    """Looks at a set of images. Under torchrun a collective: every rank calls it, and returns the same.

    Args:
        path: images, see `fidtool.sources.opening.open_images`.
        against: others, REAL, or a statistics file of fidtool's; None looks at one set alone.
        config: ``num``, ``seed``, ``recursive``, ``max_pixels``, ``num_workers``, the deadlines.
        console: where rank zero speaks.
        strict: findings are a failure.
        given: those of the sets that are in no file, by the names under which they go.

    Raises:
        InputError: no images there, or both are the same.
        RunError: a rank was lost.
    """
    paths = [path] if against is None else [path, against]
    same = path == against or (against is not None and not given and real_path(path) == real_path(against))
    if same:
        raise InputError(f"{path} and {against} are the same: name another set to look at {path} against")
    with open_session(paths, config, console, None, given) as session:
        looks = [_Look(session, name) for name in paths]
        for one in looks:
            one.read()

        def conclude() -> Checkup:
            found = [one.found() for one in looks]
            fake, *reals = [
                inspect_set(name, pictures, one.passed_over)
                for name, (pictures, _), one in zip(paths, found, looks, strict=True)
            ]
            real = reals[0] if reals else None
            assert fake is not None
            health = health_of(fake, found[0][1], real, generated=True)
            if real is None:
                return Checkup(health, None, (), strict)
            usual = health_of(real, found[1][1], fake, generated=False)
            return Checkup(health, usual, tuple(_between(real, fake)), strict)

        return session.world.on_rank_zero(conclude)


def _between(real: SetInspection, fake: SetInspection) -> list[Finding]:
    found = pair_findings(real.pictures, fake.pictures, fake.unusual_findings(real))
    shared = shared_copies_of(real.pictures, fake.pictures)
    if shared.count:
        message = shared_warning(real.path, fake.path, shared, len(fake.pictures))
        found.append(Finding("leak", "high", shared.count, shared.examples[0][0], message))
    return found


class _Look:
    """One set, decoded by all ranks together. Made and used on all ranks alike.

    Args:
        session: the run.
        path: the set, as given.
    """

    def __init__(self, session: Session, path: str) -> None:
        self._session, self._world, self._config = session, session.world, session.config
        self._path = path
        self._skipped: list[BadFile] = []
        self._images: ImageSet | None = None
        self._rows: KeptRows | None = None
        self._known: Pictures | None = None

    def read(self) -> None:
        """Decodes the set. A collective."""
        if not self._world.on_rank_zero(self._open):
            return
        given = self._session.given.get(self._path)
        here = self._images
        self._images = images = broadcast_images(self._world, here, given, self._config.value_range)
        batches = plan_batches(images, _BATCH)
        with Verification(here) as verification:
            self._read_batches(images, batches)
            self._world.on_rank_zero(verification.settle)

    def _read_batches(self, images: ImageSet, batches: Sequence[Indices]) -> None:
        with self._world.together():
            self._rows = rows = KeptRows(list(map(len, batches)), RECORD.itemsize, np.uint8)
            planned = [PlannedBatch(number, images) for number, images in enumerate(batches)]
            mine = deal(planned, self._world.rank, self._world.size, images.in_order)
            self._decode(images, mine, rows)
        rows.exchange(self._world)
        skipped = [bad for theirs in self._world.gather(self._skipped) for bad in theirs]
        self._skipped = sorted(skipped, key=lambda bad: bad.file)

    @property
    def passed_over(self) -> PassedOver | None:
        """What the source holds beside the set's images; None of a statistics file."""
        return None if self._images is None else self._images.source.passed_over

    def found(self) -> tuple[Pictures, list[BadFile]]:
        """The set's images and the files that cannot be read; on rank zero, once it was read.

        Raises:
            InputError: none of them can.
        """
        if self._known is not None:
            return self._known, []
        assert self._images is not None
        assert self._rows is not None
        if len(self._skipped) == len(self._images):
            reason = f"{self._skipped[0].file}: {self._skipped[0].reason}"
            raise InputError(f"none of the {len(self._images)} files in {self._path} can be read ({reason})")
        rows = in_canonical_order(self._images, self._rows.array(), self._skipped)
        return Pictures.of(self._images, rows, self._skipped), self._skipped

    def _open(self) -> bool:
        """Whether there are images to decode; a statistics file knows its images."""
        config = self._config
        given = self._session.given.get(self._path)
        if given is not None and given.is_stream:
            raise InputError(f"{self._path} is an iterable: pass images that can be indexed, such as a list")
        if given is not None:
            opened: ImageSet | Statistics = given.image_set(config.value_range)
        else:
            opened = open_source(self._path, config, (), self._session.console.warn)
        if isinstance(opened, ImageSet):
            self._images = opened.draw(config.num, config.seed)
            return True
        if opened.pictures is None:
            raise InputError(f"{self._path} does not say what its images look like: give the images")
        self._known = opened.pictures
        return False

    def _decode(self, images: ImageSet, mine: list[PlannedBatch], rows: KeptRows) -> None:
        config, launch = self._config, self._world.launch
        reading = Reading(skip=True, max_pixels=config.max_pixels, inspected=True)
        workers = config.num_workers
        if workers is None:  # a few images are decoded before a process has started
            workers = min(8, available_cores() // launch.local_world_size, len(mine) // _WORTH_A_WORKER)
        watch = WorkerWatch(config.timeout)
        ranks = launch.local_world_size
        total = sum(len(batch.indices) for batch in mine)
        with self._session.console.progress(images.path, total) as progress, watch.explained():
            for batch in load(images, mine, reading, workers, False, ranks, watch, self._session.console.warn):
                self._take(batch, rows)
                progress.advance(len(batch.sizes) + len(batch.skipped))
                if self._world.must_stop():
                    break

    def _take(self, batch: DecodedBatch, rows: KeptRows) -> None:
        if batch.failure is not None:
            raise batch.failure.error("")
        rows.put(batch.number, batch.records.view(np.uint8).reshape(len(batch.records), RECORD.itemsize))
        self._skipped += batch.skipped
