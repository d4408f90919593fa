"""Every frame or page of an image file as an image of its own."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from fidtool.images.decode import frame_count
from fidtool.sources.contents import Frame, Read
from fidtool.sources.image_set import ImageSet, Names
from fidtool.sources.readers import Reader


def with_frames(images: ImageSet, max_pixels: int) -> ImageSet:
    """Returns every frame of a set's images, in the order of the set; those of ``a.gif`` are named ``a.gif[0]`` etc.

    Local files are opened, and images in archives, tables, stores and memory are read. What cannot be read counts once.
    """
    source = images.source
    counts = np.array(list(_counts(images, max_pixels)) if source.reader.encoded else [1])
    if counts.max() == 1:
        return images
    firsts = np.cumsum(counts) - counts
    items = np.repeat(np.arange(len(counts)), counts)
    numbers = np.where(counts[items] > 1, np.arange(len(items)) - firsts[items], -1)
    named = zip(items.tolist(), numbers.tolist(), strict=True)
    names = Names(source.names[item] + (f"[{number}]" if number >= 0 else "") for item, number in named)
    files = items if source.file_index is None else source.file_index[items]
    order = np.concatenate([np.arange(counts[item]) + firsts[item] for item in images.order])
    reader = FrameReader(source.reader, items, numbers)
    source = replace(source, names=names, reader=reader, file_index=files.astype(np.int32))
    return replace(images, source=source, order=order)


def _counts(images: ImageSet, max_pixels: int) -> Iterator[int]:
    """Yields the number of frames of each image of a source, in its order."""
    source = images.source
    if source.file_index is not None or source.files.remote:
        for content in source.reader.stream(np.arange(images.found)):
            yield _count(content, max_pixels)
        return
    for file in range(images.found):
        count = 1
        with contextlib.suppress(Exception), source.files.open(file) as handle:
            count = frame_count(handle, max_pixels)
        yield count


def _count(content: Read, max_pixels: int) -> int:
    return frame_count(io.BytesIO(content), max_pixels) if isinstance(content, bytes) else 1


def _frame(content: Read, number: int) -> Read:
    return Frame(content, number) if number >= 0 and isinstance(content, bytes) else content


def split_frames(contents: Generator[Read, None, None], max_pixels: int) -> Generator[Read, None, None]:
    """Yields every frame of the images that a program yields."""
    with contextlib.closing(contents):
        for content in contents:
            count = _count(content, max_pixels)
            yield from (_frame(content, number) for number in (range(count) if count > 1 else [-1]))


class FrameReader(Reader):
    """Reads the frames of images that another reader reads whole.

    Args:
        items: the other reader's number of each frame's image, ascending, int64 array of shape (frames,).
        numbers: number of each frame in its image, int64 array of the same shape; -1 for an image that is read whole.
    """

    def __init__(self, reader: Reader, items: NDArray[np.int64], numbers: NDArray[np.int64]) -> None:
        self._reader, self._items, self._numbers = reader, items, numbers
        self.in_order, self.at_once, self.scaled = reader.in_order, reader.at_once, reader.scaled
        self.variant = f"{reader.variant}, all frames"

    def read(self, items: Sequence[int]) -> list[Read]:
        contents = self._reader.read(self._items[items].tolist())
        return list(map(_frame, contents, self._numbers[items].tolist()))

    def stream(self, items: NDArray[np.int64]) -> Iterator[Read]:
        contents = self._reader.stream(np.unique(self._items[items]))
        for content, (_, frames) in zip(contents, groupby(items.tolist(), self._items.__getitem__), strict=False):
            yield from (_frame(content, int(self._numbers[frame])) for frame in frames)

    def expecting(self, sizes: NDArray[np.int64]) -> FrameReader:
        return self.around(self._reader.expecting(sizes))

    def around(self, reader: Reader) -> FrameReader:
        return FrameReader(reader, self._items, self._numbers)
