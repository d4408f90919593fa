"""Feature extraction for one set of images: each rank processes its batches, then the ranks merge
their statistics.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from operator import attrgetter

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.errors import InputError, Say, option
from fidtool.features.device import StreamTimer, Uploads
from fidtool.features.extractor import Extractor
from fidtool.features.passes import ForwardPasses, GroupFeatures
from fidtool.features.resize import ImageTensors
from fidtool.names import format_count
from fidtool.reading.batches import Batch, deal, plan_batches
from fidtool.reading.decode import DecodeOptions
from fidtool.reading.loader import Piece, load_pieces, unusable_file_error
from fidtool.reading.stream import Stream
from fidtool.run.context import RunContext
from fidtool.run.pairs import PairEvaluator
from fidtool.settings.settings import Settings
from fidtool.sources.contents import BadFile
from fidtool.sources.crops import EXAMPLE, Crop
from fidtool.sources.image_set import ImageSet
from fidtool.statistics.accumulator import Accumulator, Layers, Places
from fidtool.statistics.checkpoint import Checkpoint, CheckpointPart, plan_parts
from fidtool.statistics.rows import empty_rows

_Add = Callable[[Piece, GroupFeatures, Places], None]


def decode_options(
    settings: Settings, crop: Crop | None, records: bool = False, pixels: bool = True
) -> DecodeOptions:
    """Return how a run's images are decoded: the settings that concern each image."""
    return DecodeOptions(
        skip=settings.on_error == "skip",
        max_pixels=settings.max_pixels,
        records=records,
        pixels=pixels,
        crop=crop,
        floats=settings.floats,
    )


def _name_batch(pieces: Sequence[Piece]) -> str:
    files = [*chain.from_iterable(piece.files for piece in pieces)]
    if len(files) > 1:
        return f"{files[0]} and {format_count(len(files) - 1, 'more image')}"
    return "".join(files)


def split_images(pixels: torch.Tensor, sizes: Sequence[tuple[int, int]]) -> ImageTensors:
    """Return the images of a piece: uint8, of shape (height, width, 3), in the memory of its
    pixels.
    """
    if not pixels.numel():
        return ()
    if len(set(sizes)) == 1:
        return pixels.view(-1, *sizes[0], 3)
    images = torch.split(pixels, [height * width * 3 for height, width in sizes])
    return [image.view(*size, 3) for image, size in zip(images, sizes, strict=True)]


@dataclass
class Extraction:
    """Feature extraction for one set. All ranks create and use it in the same way.

    Without networks, only the images' records are collected. The work of all ranks is counted in
    ``work`` on rank 0, by the fields of `fidtool.settings.record.RunRecord`.

    With ``pairs``, the images are compared with their partners; ``partner_layers`` are those of the
    partners whose statistics are collected in the same pass, see `Accumulator`.
    """

    context: RunContext
    settings: Settings
    networks: Sequence[Extractor]
    layers: Layers
    batch_size: int
    num_workers: int
    crop: Crop | None
    warn: Say
    work: Counter[str] = field(default_factory=Counter)
    pairs: PairEvaluator | None = None
    partner_layers: Layers | None = None

    def __post_init__(self) -> None:
        device = self.context.device.torch_device
        self._uploads = Uploads(device)
        self._gpu_timer = StreamTimer() if device.type == "cuda" else None

    def run(self, number: int, source: ImageSet) -> Accumulator:
        """Return the set's statistics, on every rank; ``number`` is its index in the checkpoint. A
        collective.
        """
        world = self.context.world
        batches = plan_batches(source, self.batch_size)
        places = [np.asarray(batch.images) for batch in batches]
        in_order = source.reader.in_order
        with world.together():
            statistics = self._empty_statistics(len(source))
        add: _Add = statistics.add
        checkpoint = self.context.finished.checkpoint
        if checkpoint is None:
            mine = deal(batches, world.rank, world.size, in_order)
        else:
            left = self._resume(checkpoint, number, source, batches, statistics)
            parts = deal(left, world.rank, world.size, in_order)
            mine = []
            for part in parts:
                mine += batches[part.batches.start : part.batches.stop]
            add = checkpoint.make_adder(parts, source, statistics)
        resumed = statistics.used.copy()
        self.work["images_resumed"] += self._sets * int((resumed | statistics.unusable).sum())
        with self.context.clock("extract"), world.together():
            count = sum(len(batch.images) for batch in mine)
            passes = self._passes()
            self._extract(source, source.path, mine, count, add, statistics.finish, passes)
        self._merge(statistics, resumed, places, source.whole_count, source.path)
        return statistics

    def run_stream(self, stream: Stream) -> tuple[Accumulator, ImageSet]:
        """Return the statistics of an iterable, whose length is not known in advance, and its
        images. A collective.
        """
        context = self.context
        passes = self._passes()

        @contextlib.contextmanager
        def outside() -> Iterator[None]:
            """Run the calling program's code under its own settings of torch, while no thread
            works.
            """
            passes.finish()
            with context.program_context():
                yield

        # Closed here, while torch's settings can still be switched to the calling program's.
        with (
            context.clock("extract"),
            context.world.together(),
            contextlib.closing(stream.read(outside)) as batches,
        ):
            # Of an iterable the number of images is unknown: more capacity is added below.
            own = self._empty_statistics(64 * self.batch_size)

            def add(piece: Piece, features: GroupFeatures, places: Places) -> None:
                nonlocal own
                if places[-1] >= len(own.used):
                    smaller = own
                    own = own.empty_copy(2 * (piece.number + 1) * self.batch_size)
                    own.absorb(smaller, np.arange(len(smaller.used)))
                own.add(piece, features, places)

            def finish() -> None:
                own.finish()

            threads = max(1, context.device.forward_threads)
            several = _read_several(batches, threads)
            self._extract(None, stream.name, several, None, add, finish, passes)
        with context.clock("merge"):
            images, sizes, first = stream.collect()
            places = np.argsort(images.order)
            edges = np.cumsum([0, *sizes])
            with context.world.together():
                statistics = own.empty_copy(len(images))
                statistics.absorb(own, places[edges[first] :])
        resumed = np.zeros(len(images), dtype=bool)
        self._merge(statistics, resumed, np.split(places, edges[1:-1]), len(images), stream.name)
        return statistics, images

    def _empty_statistics(self, count: int) -> Accumulator:
        return Accumulator(
            self.layers,
            count,
            self.context.device.torch_device,
            self.settings.diagnose,
            pairs=len(self.pairs.metrics) if self.pairs else 0,
            partner_layers=self.partner_layers,
        )

    @property
    def _sets(self) -> int:
        """Number of sets that are measured in one pass."""
        return bool(self.layers) + bool(self.partner_layers)

    def _merge(
        self,
        statistics: Accumulator,
        resumed: NDArray[np.bool_],
        batches: Sequence[Places],
        count: int,
        name: str,
    ) -> None:
        """Merge the ranks' statistics, of which rank 0's include ``resumed`` images;
        ``batches`` are places.
        """
        world = self.context.world
        with self.context.clock("merge"):
            statistics.merge(world, name)
            world.on_rank_zero(lambda: self._check_skipped(count, name, statistics.skipped))
        computed = statistics.used & ~resumed
        passes = sum(bool(computed[places].any()) for places in batches)
        self.work["images_computed"] += self._sets * int(computed.sum())
        self.work["forward_passes"] += self._sets * passes

    def _resume(
        self,
        checkpoint: Checkpoint,
        number: int,
        source: ImageSet,
        batches: Sequence[Batch],
        total: Accumulator,
    ) -> list[CheckpointPart]:
        """Add the parts in the checkpoint on rank 0, and return all others, on every rank. A
        collective.
        """

        def load() -> list[CheckpointPart]:
            parts = plan_parts(number, source, batches)
            left = checkpoint.load(parts, total)
            if total.skipped and self.settings.on_error == "fail":
                bad_file = total.skipped[0]
                raise unusable_file_error(f"{bad_file.file}: {bad_file.reason}")
            self._check_skipped(source.whole_count, source.path, total.skipped)
            if len(left) < len(parts):
                finished = len(batches) - sum(len(part.batches) for part in left)
                self.context.console.say(
                    f"{self.settings.checkpoint} already has {finished} of {len(batches)} batches "
                    f"of {source.path}"
                )
            return left

        return self.context.world.on_rank_zero(load)

    def _extract(
        self,
        source: ImageSet | None,
        name: str,
        batches: Iterable[Batch],
        total: int | None,
        add: _Add,
        finish: Callable[[], None],
        passes: ForwardPasses[Piece],
    ) -> None:
        """Add the batches of this rank, which have ``total`` images; without a source, those of an
        iterable.
        """
        context = self.context
        settings = self.settings
        workers = self.num_workers
        if total is not None:
            workers = min(workers, total)
        needs_pixels = bool(self.networks or self.pairs)
        decode = decode_options(settings, self.crop, settings.diagnose, needs_pixels)
        # Closed here, because the caller may keep an exception, and with it the decoding workers.
        with (
            context.console.show_progress(name, total) as advance,
            contextlib.closing(
                load_pieces(source, batches, decode, workers, settings.timeout, self.warn)
            ) as loaded,
            contextlib.closing(passes.run(self._read_pieces(loaded, source))) as computed,
        ):
            done = 0
            for piece, features in computed:
                with context.busy("moments"):
                    add(piece, features, np.asarray(piece.images))
                done += len(piece.images)
                # All pieces of a batch come together, so that a step for each would mislead.
                if piece.last:
                    advance(done)
                    done = 0
                if context.world.must_stop():
                    break
            if context.world.must_stop():
                return
            with context.busy("moments"):
                finish()
        if self._gpu_timer is not None:
            context.busy.add("network", self._gpu_timer.read_seconds())

    def _passes(self) -> ForwardPasses[Piece]:
        return ForwardPasses(
            self.networks,
            self.context.device.forward_threads,
            self._load_piece,
            is_last=attrgetter("last"),
            stop=self.context.world.must_stop,
            timer=self._time_network,
            name=_name_batch,
        )

    def _time_network(self) -> contextlib.AbstractContextManager[None]:
        if self._gpu_timer is not None:
            return self._gpu_timer()
        return self._time_thread("network")

    def _time_thread(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Time the work of one of several threads, of which each counts as its share."""
        return self.context.busy(name, 1 / max(1, self.context.device.forward_threads))

    @contextlib.contextmanager
    def _load_piece(self, piece: Piece) -> Iterator[list[ImageTensors]]:
        """Move the images of a piece to the device for a ``with`` block, and yield their groups
        for the networks.
        """
        with self._time_thread("transfer"):
            images = self._images_on_device(piece)
            partners = () if piece.partner is None else self._images_on_device(piece.partner)
        if self.pairs is not None:
            with self._time_thread("pairs"):
                piece.pairs = self.pairs.values(partners, images, piece.files)
        groups = []
        if self.layers:
            groups.append(images)
        if self.partner_layers:
            groups.append(partners)
        yield groups
        piece.free()

    def _images_on_device(self, piece: Piece) -> ImageTensors:
        pixels = self._uploads.copy(torch.from_numpy(piece.pixels))
        return split_images(pixels, piece.sizes)

    def _read_pieces(self, loaded: Iterator[Piece], source: ImageSet | None) -> Iterator[Piece]:
        """Yield the loaded pieces, as long as not too many of their images are skipped."""
        skipped = []
        while True:
            with self.context.busy("decode"):
                piece = next(loaded, None)
            if piece is None:
                return
            piece.skipped = [
                replace(bad_file, reason=self.context.console.render(bad_file.reason))
                for bad_file in piece.skipped
            ]
            skipped += piece.skipped
            if source is not None:
                self._check_skipped(source.whole_count, source.path, skipped)
            yield piece

    def _check_skipped(self, count: int, path: str, skipped: Sequence[BadFile]) -> None:
        """Refuse more skipped files than allowed of ``count``, those of the whole set."""
        if not skipped:
            return
        allowed = self.settings.max_skipped(count)
        example = "; ".join(f"{bad_file.file}: {bad_file.reason}" for bad_file in skipped[:3])
        if len(skipped) > allowed:
            enough = math.ceil(1000 * len(skipped) / count) / 1000
            raise InputError(
                f"{len(skipped)} of {format_count(count, 'file')} in {path} cannot be used, but "
                f"{option('max_skip')} {self.settings.max_skip:g} allows {allowed} ({example}):",
                "fix them" if len(skipped) > 1 else "fix it",
                f"pass {option('max_skip', enough)}",
            )
        if len(skipped) == count:
            raise InputError(f"no file in {path} can be used ({example})")


def _read_several(batches: Iterator[Batch], count: int) -> Iterator[Batch]:
    """Read several batches before it yields the first, so that threads can work on all of them."""
    while True:
        read: list[Batch] = []
        try:
            read.extend(islice(batches, count))
        except Exception:
            yield from read  # whatever is wrong with them is raised first
            raise
        if not read:
            return
        yield from read


def read_sample(
    images: ImageSet | None, settings: Settings, count: int | None
) -> NDArray[np.uint8]:
    """Return a random sample of a set's images as the network gets them, on rank 0, without
    skipped ones.

    ``count`` is their number; None is ADM's 10,000, or all if there are fewer. The result is a
    uint8 array of shape (n, height, width, 3).
    """
    assert images is not None
    if count is not None and not 1 <= count <= len(images):
        raise InputError(f"--images asks for {count} images but {images.path} has {len(images)}")
    # The first of a random order, in stored order.
    places = np.argsort(images.order[: count or 10_000]).tolist()
    batches = [Batch(place, [place]) for place in places]
    decode = decode_options(settings, images.crop)
    sample = np.empty((0, 0, 0, 3), np.uint8)
    used = 0
    for piece in load_pieces(images, batches, decode, patience=settings.timeout):
        for image in split_images(torch.from_numpy(piece.pixels), piece.sizes):
            if not used:
                sample = empty_rows(len(places), image.numel(), np.uint8).reshape(-1, *image.shape)
            if image.shape != sample.shape[1:]:
                shapes = (sample.shape[1:], image.shape)
                sizes = " and ".join(f"{width}×{height}" for height, width, _ in shapes)
                raise InputError(
                    f"the array arr_0 needs images of one size, but {images.path} has {sizes} "
                    f"({images.file(piece.number)}):",
                    f"pass {option('crop', EXAMPLE)}",
                    setting="crop",
                )
            sample[used] = image.numpy()
            used += 1
    return sample[:used]
