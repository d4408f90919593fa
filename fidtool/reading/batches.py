"""Batches of the images of a set, and their assignment to ranks; every frame of image files.

The assignment depends only on the number of images and the seed. Images are divided into batches
before batches are distributed to ranks, so that every forward pass processes the same images at any
world size.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fidtool.errors import InputError, option
from fidtool.names import format_count
from fidtool.reading.decode import ONE_IMAGE_FORMATS, has_frame
from fidtool.sources.contents import Frame, Read, Reader, pillow_defaults
from fidtool.sources.image_set import ImageSet, Indices, Names, SetPart

T = TypeVar("T")


class Batch(NamedTuple):
    """A batch before it is decoded, or some of its images.

    Attributes:
        images: their positions in the set, or in what an iterable yields on this rank.
        last: whether they include the last ones of the batch.
        contents: the images with their names if they have been read, as those of an iterable.
    """

    number: int
    images: Indices
    last: bool = True
    contents: Sequence[tuple[str, Read]] | None = None

    def part(self, start: int, stop: int) -> Batch:
        """Return the images from ``start`` to ``stop``."""
        contents = None if self.contents is None else self.contents[start:stop]
        return Batch(
            self.number, self.images[start:stop], self.last and stop >= len(self.images), contents
        )


def plan_batches(images: ImageSet, batch_size: int) -> list[Batch]:
    """Divide a set as `cut_batches` does. If images can only be read sequentially, those of a
    batch are stored next to each other instead.
    """
    positions: Indices = range(len(images))
    if images.reader.in_order:
        positions = np.argsort(images.order, kind="stable")
    parts = cut_batches(len(images), batch_size)
    return [Batch(number, positions[part.start : part.stop]) for number, part in enumerate(parts)]


def cut_batches(count: int, batch_size: int) -> list[range]:
    """Divide the positions 0 .. count - 1 into consecutive batches. The last may be smaller; none
    is empty.
    """
    return [range(start, min(start + batch_size, count)) for start in range(0, count, batch_size)]


def deal(batches: Sequence[T], rank: int, world_size: int, in_order: bool = False) -> list[T]:
    """Return the batches of one rank. Each batch is assigned to exactly one rank, and all ranks
    get similar numbers.

    A rank gets every ``world_size``-th batch. If images can only be read sequentially
    (``in_order``), it gets consecutive batches, so that it need not read past its own last image.
    """
    if not in_order:
        return list(batches[rank::world_size])
    start = len(batches) * rank // world_size
    stop = len(batches) * (rank + 1) // world_size
    return list(batches[start:stop])


def part_of(images: ImageSet, part: str, batch_size: int) -> ImageSet:
    """Return a part of a set, such as ``3/16``: consecutive batches of its plan, so that forward
    passes are the same.

    Raises:
        InputError: if there is no such part, or there are fewer batches than parts.
    """
    match = re.fullmatch(r"(\d+)/(\d+)", part)
    number, count = map(int, match.groups()) if match else (0, 0)
    if not 1 <= number <= count:
        raise InputError(
            f"there is no part {part!r}:", "pass its number and how many there are, such as 3/16"
        )
    batches = plan_batches(images, batch_size)
    if count > len(batches):
        raise InputError(
            f"there is no part {part} of {images.path}, which has "
            f"{format_count(len(images), 'image')} in "
            f"{format_count(len(batches), 'batch', 'batches')} of {batch_size}:",
            f"pass at most {len(batches)} as the number of parts",
            f"a smaller {option('batch_size')}",
        )
    own = deal(batches, number - 1, count, in_order=True)
    places = np.sort(np.concatenate([np.asarray(batch.images) for batch in own]))
    return images.restricted(SetPart(f"{number}/{count}", images.digest(), len(images), places))


# --- frames ---------------------------------------------------------------------------------------


def with_frames(images: ImageSet, max_pixels: int) -> ImageSet:
    """Return every frame of a set's images, in the order of the set; those of ``a.gif`` are named
    ``a.gif[0]`` etc.

    All images are read for this. What cannot be read counts once.
    """
    contents = (
        images.reader.read(np.arange(len(images.stored))) if images.reader.encoded else iter(())
    )
    counts = [len(split(content, max_pixels)) for content in contents]
    if max(counts, default=1) == 1:
        return images
    frames = [(item, number) for item, count in enumerate(counts) for number in range(count)]
    names = Names(
        images.stored[item] + f"[{number}]" * (counts[item] > 1) for item, number in frames
    )
    items = np.array(frames)[:, 0]
    reader = FrameReader(images.reader, np.array(frames))
    order = np.argsort(np.argsort(images.order)[items], kind="stable")
    return replace(images, stored=names, reader=reader, order=order)


def _frame_count(data: bytes, max_pixels: int) -> int:
    """Return the number of frames or pages in a file, of which none is decoded; 1 for a file that
    is not an image.
    """
    with (
        pillow_defaults(max_pixels),
        contextlib.suppress(Exception),
        Image.open(io.BytesIO(data)) as image,
    ):
        if image.format in ONE_IMAGE_FORMATS:
            return 1
        with contextlib.suppress(Exception):
            return int(getattr(image, "n_frames", 1))
        # It is damaged. The first frame that cannot be reached counts, so that reading it reports
        # the damage.
        return 1 + next(number for number in itertools.count(1) if not has_frame(image, number))
    return 1


def split(content: Read, max_pixels: int) -> Sequence[Read]:
    """Return every frame of an encoded image; of anything else, the content itself."""
    if isinstance(content, Image.Image) and has_frame(content, 1):
        raise InputError(
            f"{option('frames', 'all')} needs files, but a Pillow object with several frames was "
            "passed:",
            "pass its path or bytes",
            "a copy() of each frame",
            setting="frames",
        )
    if not isinstance(content, bytes):
        return [content]
    return [Frame(content, number) for number in range(_frame_count(content, max_pixels))]


class FrameReader(Reader):
    """Reads the frames of images that another reader reads whole.

    Args:
        frames: for each frame, the other reader's number of its image, ascending, and its number in
            this image: int64 array of shape (frames, 2).
    """

    def __init__(self, reader: Reader, frames: NDArray[np.int64]) -> None:
        items = frames[:, 0]
        files = (items if reader.file_index is None else reader.file_index[items]).astype(np.int32)
        super().__init__(reader.files, files, reader.in_order, f"{reader.variant}, all frames")
        self._reader = reader
        self.frames = frames
        self.scaled = reader.scaled

    def read(self, items: NDArray[np.int64]) -> Iterator[Read]:
        groups = [
            (item, list(same)) for item, same in groupby(self.frames[items].tolist(), itemgetter(0))
        ]
        contents = self._reader.read(np.array([item for item, _ in groups], dtype=np.int64))
        for content, (_, frames) in zip(contents, groups, strict=False):
            for _, number in frames:
                yield Frame(content, number) if isinstance(content, bytes) else content

    def shared_by(self, processes: int) -> FrameReader:
        return FrameReader(self._reader.shared_by(processes), self.frames)

    def around(self, reader: Reader) -> FrameReader:
        return FrameReader(reader, self.frames)
