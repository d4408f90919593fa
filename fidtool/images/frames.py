"""Every frame or page of an image file as an image of its own."""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fidtool.errors import InputError, option
from fidtool.images.decode import ONE_IMAGE_FORMATS, has_frame
from fidtool.sources.contents import Frame, Read, Reader, pillow_defaults
from fidtool.sources.image_set import ImageSet, Names


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
