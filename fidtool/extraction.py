"""One set through the network: each rank its share of the batches, then the merge."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.errors import InputError
from fidtool.features.device import transfer_to
from fidtool.features.extractor import Networks
from fidtool.images.batches import PlannedBatch, deal, fetch_batch, plan_batches
from fidtool.images.loader import DecodedBatch, DecodeOptions, WorkerWatch, decode_batch, load
from fidtool.images.stream import Stream, StreamPlan
from fidtool.session import Session
from fidtool.sources.contents import BadFile
from fidtool.sources.image_set import ImageSet
from fidtool.statistics.checkpoint import Checkpoint
from fidtool.statistics.partial import Layer, PartialStatistics

Features = dict[str, torch.Tensor] | None
"""Of a batch, by layer; None where it has no images."""

_ROOM = 64
"""Batches that an iterable is given room for at first."""
_NAMED = 3
"""So many of the files that were too many to skip are named."""


@dataclass(frozen=True)
class Work:
    """What it took to measure a set, over all ranks.

    Attributes:
        images, forward_passes: what went through the network in this run.
        resumed: images whose work was in the checkpoint.
    """

    images: int
    forward_passes: int
    resumed: int


class Extraction:
    """Measures sets, one after the other. Made and used on all ranks alike.

    Args:
        session: the run.
        layers: what is gathered of each image, by name.
        batch_size, num_workers: the settings, or the device's defaults.
        checkpoint: where finished work is kept; None keeps none.
        complain: takes a line about what does not work but does not end the run.
    """

    def __init__(
        self,
        session: Session,
        layers: Mapping[str, Layer],
        batch_size: int,
        num_workers: int,
        checkpoint: Checkpoint | None,
        complain: Callable[[str], None],
    ) -> None:
        self._world, self._device, self._config = session.world, session.device, session.config
        self._console, self._clock, self._layers = session.console, session.clock, layers
        self._batch_size, self._num_workers = batch_size, num_workers
        self._checkpoint, self._complain = checkpoint, complain
        self._watch = WorkerWatch(self._config.timeout)
        self._transfer = transfer_to(self._device.torch_device)
        self._passes = self._images = 0

    def measure(
        self, number: int, source: ImageSet, marks: NDArray[np.uint64], networks: Networks
    ) -> tuple[PartialStatistics, Work]:
        """The whole set's sums, on every rank. A collective.

        Args:
            number: which set of the run this is, for the checkpoint.
            source: the images in canonical order.
            marks: see `ImageSet.marks`; rank zero's, on every rank.
            networks: what the images go through.

        Raises:
            FidtoolError: an image cannot be read, too many cannot, a rank was lost, a feature is out of range.
        """
        batches = plan_batches(source, self._batch_size)
        share = self._resumed(number, source, marks, list(map(len, batches)))
        done = self._world.broadcast(np.packbits(share.done))
        left = [
            PlannedBatch(index, images)
            for index, (images, finished) in enumerate(zip(batches, np.unpackbits(done), strict=False))
            if not finished
        ]
        resumed = share.count + len(share.skipped)
        self._passes = self._images = 0
        with self._clock("extract"), self._world.together(), self._watch.explained():
            mine = deal(left, self._world.rank, self._world.size, source.in_order)
            self._extract(number, source, networks, mine, share)
        with self._clock("merge"):
            share.merge(self._world, source.path)
            work = self._world.gather((self._images, self._passes, resumed))
        self._world.on_rank_zero(lambda: self._check_skipped(len(source), source.path, share.skipped))
        images, passes, resumes = zip(*work, strict=True)
        return share, Work(sum(images), sum(passes), sum(resumes))

    def measure_stream(
        self, stream: Stream, name: str, networks: Networks
    ) -> tuple[PartialStatistics, Work, StreamPlan]:
        """The sums of an iterable, which nobody has counted, on every rank. A collective.

        Args:
            stream: this rank's part of it.
            name: what it is called.
            networks: what the images go through.

        Raises:
            FidtoolError: see `measure`; also see `Stream`.
        """
        with self._world.together():
            share = self._new_share(np.zeros(_ROOM, dtype=np.uint64), [self._batch_size] * _ROOM)
        self._passes = self._images = 0
        with self._clock("extract"), self._world.together():
            self._extract_stream(stream, name, networks, share)
        with self._clock("merge"):
            plan = stream.plan()
            with self._world.together():
                share.replan(plan.sizes, plan.first)
            share.merge(self._world, name)
            work = self._world.gather((self._images, self._passes))
        self._world.on_rank_zero(lambda: self._check_skipped(len(plan.names), name, share.skipped))
        images, passes = zip(*work, strict=True)
        return share, Work(sum(images), sum(passes), 0), plan

    def _extract_stream(self, stream: Stream, name: str, networks: Networks, share: PartialStatistics) -> None:
        # Closed here, while the run's settings can still be left for the program's own.
        with self._console.progress(name, None) as progress, contextlib.closing(iter(stream)) as batches:
            decoded = self._accepted(self._decoding(decode_batch(batch, self._reading()) for batch in batches))
            for batch, features in self._run(networks, decoded, in_turns=True):
                if batch.number >= len(share.done):
                    share.replan([self._batch_size] * 2 * (batch.number + 1))
                self._add(batch, features, share)
                progress.advance(len(batch.sizes) + len(batch.skipped))
                if self._world.must_stop():
                    break
            share.flush()

    def _new_share(self, marks: NDArray[np.uint64], sizes: Sequence[int]) -> PartialStatistics:
        return PartialStatistics(marks, self._layers, sizes, self._device.exact_sums, self._config.diagnose)

    def _resumed(
        self, number: int, source: ImageSet, marks: NDArray[np.uint64], sizes: Sequence[int]
    ) -> PartialStatistics:
        """An empty share, or on rank zero what the checkpoint has of this set."""
        with self._world.together():
            share = self._new_share(marks, sizes)
            if self._checkpoint is not None and self._world.rank == 0:
                self._checkpoint.load(number, share, lambda skipped: self._mended(source, skipped))
                if share.skipped and self._config.on_error == "fail":
                    bad = share.skipped[0]
                    raise InputError(f"{bad.file}: {bad.reason}; mend the file, or pass --on-error skip")
                self._check_skipped(len(source), source.path, share.skipped)
                if share.done.any():
                    have = f"{share.done.sum()} of {len(marks)} batches of {source.path}"
                    self._console.say(f"{self._config.checkpoint} has {have} already")
        return share

    def _mended(self, source: ImageSet, skipped: Sequence[BadFile]) -> str:
        """One of the files that can be read by now, or nothing. Archives are mended as a whole, which marks tell."""
        if source.in_order or not skipped:
            return ""
        files = {bad.file for bad in skipped}
        indices = [index for index in range(len(source)) if source.file(index) in files]
        read = decode_batch(fetch_batch(source, PlannedBatch(0, indices)), DecodeOptions(True, self._config.max_pixels))
        still = {bad.file for bad in read.skipped}
        return next((bad.file for bad in skipped if bad.file not in still), "")

    def _extract(
        self, number: int, source: ImageSet, networks: Networks, mine: list[PlannedBatch], share: PartialStatistics
    ) -> None:
        with self._console.progress(source.path, sum(len(batch.indices) for batch in mine)) as progress:
            # Held here: to let go of it ends the decoding processes, which takes longer than a stop may.
            readable = self._readable(source, mine)
            try:
                for batch, features in self._run(networks, readable):
                    self._add(batch, features, share)
                    progress.advance(len(batch.sizes) + len(batch.skipped))
                    if self._world.must_stop():
                        break
                    if self._checkpoint is not None and self._checkpoint.due():
                        self._checkpoint.save(number, share)
                share.flush()  # here, where every rank hears of a failure, and not between two collectives
            finally:
                if self._checkpoint is not None:
                    self._checkpoint.save(number, share)

    def _run(
        self, networks: Networks, batches: Iterator[DecodedBatch], in_turns: bool = False
    ) -> Iterator[tuple[DecodedBatch, Features]]:
        timed = partial(self._clock.busy, "network", 1 / self._device.lanes)
        return networks.run(batches, self._pixels, self._world.must_stop, timed, in_turns)

    def _add(self, batch: DecodedBatch, features: Mapping[str, torch.Tensor] | None, share: PartialStatistics) -> None:
        with self._clock.busy("moments"):
            share.add(batch.number, features, batch.properties, batch.records, batch.skipped)
        self._images += len(batch.sizes)
        self._passes += features is not None

    def _reading(self) -> DecodeOptions:
        return DecodeOptions(self._config.on_error == "skip", self._config.max_pixels, self._config.diagnose)

    def _readable(self, source: ImageSet, mine: list[PlannedBatch]) -> Iterator[DecodedBatch]:
        pin = self._device.torch_device.type == "cuda"
        ranks_here = self._world.launch.local_world_size
        loaded = load(source, mine, self._reading(), self._num_workers, pin, ranks_here, self._watch, self._complain)
        skipped: list[BadFile] = []
        for batch in self._accepted(self._decoding(loaded)):
            skipped += batch.skipped
            self._check_skipped(len(source), source.path, skipped)
            yield batch

    def _decoding(self, batches: Iterator[DecodedBatch]) -> Iterator[DecodedBatch]:
        while True:
            with self._clock.busy("decode"):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def _accepted(self, batches: Iterable[DecodedBatch]) -> Iterator[DecodedBatch]:
        for batch in batches:
            if batch.failure is not None:
                advice = "mend or remove" if self._checkpoint is None else "mend"
                raise batch.failure.error(f"{advice} the file, or pass --on-error skip")
            yield batch

    def _pixels(self, batch: DecodedBatch) -> list[torch.Tensor]:
        with self._clock.busy("network", 1 / self._device.lanes):  # which a GPU works on while nobody asks for it
            self._transfer.await_room()
        with self._clock.busy("transfer", 1 / self._device.lanes):
            return batch.images(self._transfer)

    def _check_skipped(self, count: int, path: str, skipped: Sequence[BadFile]) -> None:
        if not skipped:
            return
        allowed = self._config.most_skipped(count)
        example = "; ".join(f"{bad.file}: {bad.reason}" for bad in skipped[:_NAMED])
        if len(skipped) > allowed:
            raise InputError(
                f"{len(skipped)} of the {count} files in {path} cannot be used and --max-skip "
                f"{self._config.max_skip:g} allows {allowed} ({example})"
            )
        if len(skipped) == count:
            raise InputError(f"none of the {count} files in {path} can be used ({example})")
