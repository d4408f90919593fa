"""The frames of animated images and the pages of documents, as images of a set."""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fidtool.errors import InputError, option
from fidtool.reading.decode import ONE_IMAGE_FORMATS, has_frame
from fidtool.sources.contents import Frame, Read, Reader, pillow_defaults
from fidtool.sources.image_set import ImageSet, Names
from fidtool.sources.labels import Labels


def expand_frames(images: ImageSet, max_pixels: int) -> ImageSet:
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
    reader = FrameReader(images.reader, np.array(frames))
    order = np.argsort(np.argsort(images.order)[reader.frames[:, 0]], kind="stable")
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

    def read_labels(self, items: NDArray[np.int64], requested: bool) -> Labels:
        of_frames = self.frames[:, 0]
        labels = self._reader.read_labels(np.unique(of_frames[items]), requested)
        if not labels.of_images:
            return labels
        return replace(labels, of_images=[labels.of_images[item] for item in of_frames.tolist()])

    def for_processes(self, processes: int) -> FrameReader:
        return FrameReader(self._reader.for_processes(processes), self.frames)

    def wrap(self, reader: Reader) -> FrameReader:
        return FrameReader(reader, self.frames)
