"""Images that are known only once they are read: those of an iterable, and every frame or page of an image file."""

from __future__ import annotations

import contextlib
import io
import itertools
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fidtool.distributed.world import World
from fidtool.errors import InputError, on_every_rank, option
from fidtool.images.batches import cut_batches
from fidtool.images.decode import ONE_IMAGE_FORMATS, has_frame
from fidtool.images.loader import Batch
from fidtool.seeds import sample_seed
from fidtool.sources.contents import Frame, Read, Reader, ValueRange, bytes_of, pillow_defaults
from fidtool.sources.image_set import ImageSet, Names, Numbered, Sampling, canonical_order
from fidtool.sources.memory import Images, MemoryReader


@dataclass(frozen=True)
class StreamPlan:
    """The batches that all ranks together have read: their sizes, this rank's first, and the names in their order."""

    sizes: list[int]
    first: int
    names: Names


class Stream:
    """Yields this rank's batches of an iterable. All ranks must create and use it.

    ``sampling.num`` images are taken on all ranks together; None takes all. ``max_pixels`` is set if each frame of a
    file counts as an image. The calling program's code runs in the context that ``outside`` returns. With several
    ranks, ``images.sharded`` must be set: otherwise an InputError.
    """

    def __init__(
        self,
        images: Images,
        value_range: ValueRange | None,
        world: World,
        batch_size: int,
        sampling: Sampling,
        outside: Callable[[], contextlib.AbstractContextManager[None]],
        max_pixels: int | None = None,
    ) -> None:
        if world.size > 1 and images.sharded is None and not images.generates:
            raise on_every_rank(
                InputError(
                    f"{images.name} is an iterable, and there are {world.size} ranks:",
                    "pass fidtool.Images(…, sharded=True) if each rank's iterable yields different images",
                    "sharded=False if all yield the same images",
                )
            )
        self._images, self._value_range, self._world = images, value_range, world
        self._batch_size, self._sampling, self._outside = batch_size, sampling, outside
        self._max_pixels = max_pixels
        self._sharded = bool(images.sharded) and world.size > 1
        self._limit = num = sampling.num  # number of images that this rank takes from its iterable
        if num is not None and self._sharded:
            self._limit = num // world.size + (world.rank < num % world.size)
        self._count = self._digest = 0

    def __iter__(self) -> Generator[Batch, None, None]:
        return self._generated() if self._images.generates else self._read()

    def _generated(self) -> Generator[Batch, None, None]:
        self._count = self._sampling.num or 0
        for number, positions in enumerate(cut_batches(self._count, self._batch_size)):
            if number % self._world.size == self._world.rank:
                seed = sample_seed(self._sampling.seed, positions.start)
                with self._outside():
                    contents = self._images.generated(len(positions), seed, self._value_range)
                yield self._batch(number, positions, contents)

    def _read(self) -> Generator[Batch, None, None]:
        contents = self._images.stream(self._value_range)
        frames: Iterator[Read] = contents
        if self._max_pixels is not None:
            frames = itertools.chain.from_iterable(split(content, self._max_pixels) for content in contents)
        size, limit = self._batch_size, self._limit
        try:
            for number in itertools.count():
                with self._outside():
                    batch = list(islice(frames, size if limit is None else min(size, limit - self._count)))
                if not batch:
                    return
                self._count += len(batch)
                # `plan` compares the digests if all ranks should have read the same images.
                for content in [] if self._sharded or self._world.size == 1 else batch:
                    self._digest = zlib.crc32(bytes_of(content), self._digest)
                if self._sharded or number % self._world.size == self._world.rank:
                    yield self._batch(number, range(number * size, number * size + len(batch)), batch)
        finally:
            with self._outside():
                contents.close()

    def _batch(self, number: int, positions: range, contents: list[Read]) -> Batch:
        files = [f"{self._images.name}{self._name(position)}" for position in positions]
        return Batch(number, list(zip(files, contents, strict=True)))

    def _name(self, position: int, rank: int | None = None) -> str:
        return f"[{self._world.rank if rank is None else rank}:{position}]" if self._sharded else f"[{position}]"

    def plan(self) -> StreamPlan:
        """Returns the batches that all ranks have read, after the end of iteration. A collective.

        Raises an InputError if there are no images or fewer than requested, or if ranks read different images although
        ``sharded`` is False.
        """
        seen = self._world.gather((self._count, self._digest))
        counts = [count for count, _ in seen]
        if not self._sharded and len(set(seen)) > 1:
            rank = next(rank for rank, theirs in enumerate(seen) if theirs != seen[0])
            raise on_every_rank(
                InputError(
                    f"{self._images.name} yielded different images on rank {rank} and rank 0 ({counts[rank]} and "
                    f"{counts[0]} images):",
                    "pass sharded=True if each rank's iterable should yield different images",
                )
            )
        total = sum(counts) if self._sharded else counts[0]
        if not total:
            raise on_every_rank(InputError(f"no images in {self._images.name}: the iterable yielded none"))
        if total < (self._sampling.num or 0):
            per_rank = f" ({', '.join(map(str, counts))} on the individual ranks)" if self._sharded else ""
            raise on_every_rank(self._sampling.too_few(f"{self._images.name} yielded {total}{per_rank}"))
        if not self._sharded:
            return StreamPlan(list(map(len, cut_batches(total, self._batch_size))), 0, Numbered(total))
        batches = [list(map(len, cut_batches(count, self._batch_size))) for count in counts]
        names = Names(self._name(position, rank) for rank, count in enumerate(counts) for position in range(count))
        return StreamPlan(list(chain(*batches)), sum(map(len, batches[: self._world.rank])), names)


def images_of(stream: Images, plan: StreamPlan, seed: int) -> ImageSet:
    """Returns the images of an iterable as a set in canonical order. Their contents cannot be read again."""
    reader, order = MemoryReader(stream.name, None, None), canonical_order(len(plan.names), seed)
    reader.in_order = True
    files = np.zeros(len(plan.names), dtype=np.int32)
    return ImageSet(stream.name, "iterable", plan.names, stream.name, reader, order, files)


# --- frames -----------------------------------------------------------------------------------------------------------


def with_frames(images: ImageSet, max_pixels: int) -> ImageSet:
    """Returns every frame of a set's images, in the order of the set; those of ``a.gif`` are named ``a.gif[0]`` etc.

    Local files are opened, and images in archives, tables, stores and memory are read. What cannot be read counts once.
    """
    counts = list(_counts(images, max_pixels)) if images.reader.encoded else [1]
    if max(counts) == 1:
        return images
    frames = [(item, number) for item, count in enumerate(counts) for number in range(count)]
    names = Names(images.stored[item] + f"[{number}]" * (counts[item] > 1) for item, number in frames)
    items, numbers = np.array(frames).T
    files = (items if images.file_index is None else images.file_index[items]).astype(np.int32)
    reader = FrameReader(images.reader, items, numbers)
    order = np.argsort(np.argsort(images.order)[items], kind="stable")
    return replace(images, stored=names, reader=reader, file_index=files, order=order)


def _counts(images: ImageSet, max_pixels: int) -> Iterator[int]:
    """Yields the number of frames of each image in a source."""
    files = images.reader.files
    if images.file_index is not None or files.remote:
        yield from (len(split(content, max_pixels)) for content in images.reader.read(np.arange(images.found)))
        return
    for file in range(images.found):
        count = 1
        with contextlib.suppress(Exception), files.open(file) as handle:
            count = _frame_count(handle, max_pixels)
        yield count


def _frame_count(file: BinaryIO, max_pixels: int) -> int:
    """Returns the number of frames or pages in a file, of which none is decoded; 1 for a file that is not an image."""
    with pillow_defaults(max_pixels), contextlib.suppress(Exception), Image.open(file) as image:
        if image.format in ONE_IMAGE_FORMATS:
            return 1
        with contextlib.suppress(Exception):
            return int(getattr(image, "n_frames", 1))
        # It is damaged. The first frame that cannot be reached counts, so that reading it reports the damage.
        return 1 + next(number for number in itertools.count(1) if not has_frame(image, number))
    return 1


def split(content: Read, max_pixels: int) -> Sequence[Read]:
    """Returns every frame of an encoded image; of anything else, the content itself."""
    if isinstance(content, Image.Image) and has_frame(content, 1):
        problem = f"{option('frames', 'all')} needs files, but a Pillow object with several frames was passed:"
        raise InputError(problem, "pass its path or bytes", "a copy() of each frame", setting="frames")
    count = _frame_count(io.BytesIO(content), max_pixels) if isinstance(content, bytes) else 1
    return [_frame(content, number) for number in range(count)]


def _frame(content: Read, number: int) -> Read:
    return Frame(content, number) if isinstance(content, bytes) else content


class FrameReader(Reader):
    """Reads the frames of images that another reader reads whole.

    Args:
        items: the other reader's number of each frame's image, ascending, int64 array of shape (frames,).
        numbers: number of each frame in its image, int64 array of the same shape.
    """

    def __init__(self, reader: Reader, items: NDArray[np.int64], numbers: NDArray[np.int64]) -> None:
        self.files, self._reader, self._items, self._numbers = reader.files, reader, items, numbers
        self.in_order, self.scaled = reader.in_order, reader.scaled
        self.variant = f"{reader.variant}, all frames"

    def read(self, items: NDArray[np.int64]) -> Iterator[Read]:
        frames = [(item, list(same)) for item, same in itertools.groupby(items.tolist(), self._items.__getitem__)]
        contents = self._reader.read(np.array([item for item, _ in frames], dtype=np.int64))
        for content, (_, same) in zip(contents, frames, strict=False):
            yield from (_frame(content, int(self._numbers[frame])) for frame in same)

    def around(self, reader: Reader) -> FrameReader:
        return FrameReader(reader, self._items, self._numbers)
