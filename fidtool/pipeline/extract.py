"""Feature extraction for one set of images: each rank processes its batches, then the ranks merge their statistics."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import repeat
from typing import Any

import torch

from fidtool.errors import InputError, option
from fidtool.features.extractor import Extractor, ForwardPasses
from fidtool.images.batches import Batch, Stream, deal, plan_batches
from fidtool.images.decode import DecodeOptions
from fidtool.images.framing import Crop
from fidtool.images.loader import DecodedBatch, LoadOptions, load
from fidtool.names import counted
from fidtool.pipeline.run import RunContext
from fidtool.settings import Settings
from fidtool.sources.contents import BadFile
from fidtool.sources.image_set import ImageSet
from fidtool.statistics.accumulator import Accumulator, Layer
from fidtool.statistics.saved import Checkpoint, Part, parts_of

_STREAM_BATCHES = 64
"""Initial capacity for an iterable, in batches."""
_EXAMPLES = 3
"""Number of skipped files that an error names."""


class Extraction:
    """Feature extraction for one set. All ranks create and use it in the same way. Counts are over all ranks.

    Without networks, only the images' records are collected.
    """

    def __init__(
        self,
        run: RunContext,
        settings: Settings,
        networks: Sequence[Extractor],
        layers: Mapping[str, Layer],
        batch_size: int,
        num_workers: int,
        framing: str | None,
        checkpoint: Checkpoint | None,
        warn: Callable[[str], None],
    ) -> None:
        self._run, self._world, self._settings = run, run.world, settings
        self._networks, self._layers = networks, layers
        self._batch_size, self._num_workers = batch_size, num_workers
        self._checkpoint, self._warn = checkpoint, warn
        fix = "fix or remove the file" if checkpoint is None else "fix the file"
        self._options = DecodeOptions(
            self._settings.on_error == "skip",
            self._settings.max_pixels,
            self._settings.diagnose,
            pixels=bool(networks),
            crop=None if framing is None else Crop.parse(framing),
            floats=self._settings.floats,
            remedies=(fix, f"pass {option('on_error', 'skip')}"),
        )
        self.images = self.forward_passes = self.resumed = 0

    def run(self, number: int, source: ImageSet) -> Accumulator:
        """Returns the set's statistics, on every rank; ``number`` is its index in the checkpoint. A collective."""
        batches = plan_batches(source, self._batch_size)
        with self._world.together():
            statistics = self._empty([len(batch.images) for batch in batches])
        rank, size, in_order = self._world.rank, self._world.size, source.in_order
        add: Callable[..., None] = statistics.add
        if self._checkpoint is None:
            mine = deal(batches, rank, size, in_order)
        else:
            left = self._resume(self._checkpoint, number, source, batches, statistics)
            parts = deal(left, rank, size, in_order)
            mine = [batches[batch] for part in parts for batch in part.batches]
            add = self._checkpoint.part_by_part(parts, statistics)
        self.resumed = statistics.count + len(statistics.skipped)
        with self._run.clock("extract"), self._world.together():
            total = sum(len(batch.images) for batch in mine)
            self._extract(source, source.path, mine, total, add)
            statistics.flush()  # here, where a failure reaches every rank, not between two collectives
        with self._run.clock("merge"):
            self._merge(statistics, len(source), source.path)
        return statistics

    def run_stream(self, stream: Stream) -> tuple[Accumulator, ImageSet]:
        """Returns the statistics of an iterable, whose length is not known in advance, and its images. A collective."""
        # Closed here, while torch's settings can still be switched to the calling program's.
        with self._run.clock("extract"), self._world.together(), contextlib.closing(iter(stream)) as fetched:
            own = self._empty([self._batch_size] * _STREAM_BATCHES)

            def add(number: int, *batch: Any) -> None:
                nonlocal own
                if number >= len(own.counts):
                    smaller, own = own, self._empty([self._batch_size] * 2 * (number + 1))
                    own.absorb(smaller)
                own.add(number, *batch)

            self._extract(None, stream.name, fetched, None, add)
            own.flush()
        with self._run.clock("merge"):
            images, sizes, own.first = stream.conclude()
            with self._world.together():
                statistics = self._empty(sizes)
                statistics.absorb(own)
            self._merge(statistics, len(images), stream.name)
        return statistics, images

    def _merge(self, statistics: Accumulator, count: int, name: str) -> None:
        statistics.merge(self._world, name)
        self._world.on_rank_zero(lambda: self._check_skipped(count, name, statistics.skipped))
        counts = self._world.gather((self.images, self.forward_passes, self.resumed))
        self.images, self.forward_passes, self.resumed = (sum(each) for each in zip(*counts, strict=True))

    def _empty(self, sizes: Sequence[int]) -> Accumulator:
        return Accumulator(self._layers, sizes, self._run.device.exact_sums, self._settings.diagnose)

    def _resume(
        self, checkpoint: Checkpoint, number: int, source: ImageSet, batches: Sequence[Batch], total: Accumulator
    ) -> list[Part]:
        """Adds the parts in the checkpoint on rank zero, and returns all others, on every rank. A collective."""

        def load() -> list[Part]:
            parts = parts_of(number, source, batches)
            left = checkpoint.load(parts, total, lambda skipped: self._readable_now(source, skipped))
            if total.skipped and self._settings.on_error == "fail":
                bad = total.skipped[0]
                raise InputError(f"{bad.file}: {bad.reason}", "fix the file", f"pass {option('on_error', 'skip')}")
            self._check_skipped(len(source), source.path, total.skipped)
            if len(left) < len(parts):
                have = f"{(total.counts >= 0).sum()} of {len(batches)} batches of {source.path}"
                self._run.console.say(f"{self._settings.checkpoint} already has {have}")
            return left

        return self._world.on_rank_zero(load)

    def _readable_now(self, source: ImageSet, skipped: Sequence[BadFile]) -> str:
        """A skipped file that can now be read, or an empty string. For archives the marks detect any change."""
        if source.in_order or not skipped:
            return ""
        files = {bad.file for bad in skipped}
        indices = [index for index in range(len(source)) if source.file(index) in files]
        options = replace(self._options, skip=True, records=False, pixels=False)
        (read,) = load(source, [Batch(0, indices)], LoadOptions(options))
        still = {bad.file for bad in read.skipped}
        return next((bad.file for bad in skipped if bad.file not in still), "")

    def _extract(
        self,
        source: ImageSet | None,
        name: str,
        batches: Iterable[Batch],
        total: int | None,
        add: Callable[..., None],
    ) -> None:
        """Adds the batches of this rank, which have ``total`` images; without a source, those of an iterable."""
        workers = self._num_workers if total is None else min(self._num_workers, total)
        options = LoadOptions(self._options, workers, self._settings.timeout, self._warn)
        timed = partial(self._run.clock.busy, "network", 1 / self._run.device.forward_threads)
        in_turns = source is None
        passes = None
        if self._networks:
            passes = ForwardPasses(self._networks, self._pixels, self._world.must_stop, timed, in_turns)

        def resize(batch: DecodedBatch) -> None:
            with self._run.clock.busy("decode", -1.0):  # it is called while the next batch is decoded
                if passes is not None:
                    passes.resize(batch)

        # Closed here, because the caller may keep an exception, and with it the decoding workers.
        with (
            self._run.console.progress(name, total) as advance,
            contextlib.closing(load(source, batches, options, resize)) as decoded,
        ):
            usable = self._usable(decoded, source)
            for batch, features in passes.run(usable) if passes is not None else zip(usable, repeat(None)):
                with self._run.clock.busy("moments"):
                    add(batch.number, features, batch.properties, batch.records, batch.skipped)
                self.images += batch.count
                self.forward_passes += features is not None
                advance(batch.count + len(batch.skipped))
                if self._world.must_stop():
                    break

    def _usable(self, decoded: Iterator[DecodedBatch], source: ImageSet | None) -> Iterator[DecodedBatch]:
        skipped: list[BadFile] = []
        while True:
            with self._run.clock.busy("decode"):
                batch = next(decoded, None)
            if batch is None:
                return
            batch.skipped = [replace(bad, reason=self._run.console.shown(bad.reason)) for bad in batch.skipped]
            skipped += batch.skipped
            if source is not None:
                self._check_skipped(len(source), source.path, skipped)
            yield batch

    def _pixels(self, batch: DecodedBatch) -> list[torch.Tensor]:
        with self._run.clock.busy("transfer", 1 / self._run.device.forward_threads):
            return batch.take_images(lambda pixels: pixels.to(self._run.device.torch_device))

    def _check_skipped(self, count: int, path: str, skipped: Sequence[BadFile]) -> None:
        if not skipped:
            return
        allowed = self._settings.most_skipped(count)
        example = "; ".join(f"{bad.file}: {bad.reason}" for bad in skipped[:_EXAMPLES])
        if len(skipped) > allowed:
            enough = math.ceil(1000 * len(skipped) / count) / 1000
            raise InputError(
                f"{len(skipped)} of {counted(count, 'file')} in {path} cannot be used, but {option('max_skip')} "
                f"{self._settings.max_skip:g} allows {allowed} ({example}):",
                "fix them" if len(skipped) > 1 else "fix it",
                f"pass {option('max_skip', enough)}",
                setting="max_skip",
            )
        if len(skipped) == count:
            raise InputError(f"no file in {path} can be used ({example})")
