"""Readers: they return the contents of a source's images by number, or one after another."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from fidtool.sources.contents import ContentError, Extent, Files, ForeignError, Read, StoreError, message_of


class Reader:
    """Reads the images of a source, which are numbered from 0 in stored order; here, those in one file each.

    Readers are pickled for other ranks.

    Attributes:
        in_order: whether images can only be read sequentially, with `stream`; otherwise `read` accepts any order.
        at_once: number of images that are best read together.
        variant: settings with which the same files have different contents.
        scaled: whether the images are floats, scaled by a value range.
        encoded: whether there may be encoded images.
    """

    in_order = False
    at_once = 1
    variant = ""
    scaled = False
    encoded = True

    def __init__(self, files: Files) -> None:
        self._files = files
        self.at_once = files.at_once

    def read(self, items: Sequence[int]) -> list[Read]:
        """Returns the contents of these images."""
        return list(self._files.read_whole(items))

    def stream(self, items: NDArray[np.int64]) -> Iterator[Read]:
        """Yields the contents of these images, whose numbers must ascend."""
        for start in range(0, len(items), self.at_once):
            yield from self.read(items[start : start + self.at_once].tolist())

    def around(self, reader: Reader) -> Reader:
        """Returns another rank's own reader of images in memory, with what was decided on rank zero."""
        return reader


class ExtentReader(Reader, abc.ABC):
    """Reads images that are stored as extents of files.

    Local files are read in any order, copies of remote ones sequentially, so that each rank downloads only its own.
    """

    at_once = 1

    def __init__(self, files: Files) -> None:
        self._files, self.in_order = files, files.remote

    @abc.abstractmethod
    def extent(self, item: int) -> Extent:
        """Returns the extent of an image."""

    @abc.abstractmethod
    def unpack(self, item: int, data: bytes) -> Read:
        """Returns the content of an image from the bytes of its extent."""

    def read(self, items: Sequence[int]) -> list[Read]:
        return [self._read(int(item)) for item in items]

    def _read(self, item: int) -> Read:
        data = self._files.read(*self.extent(item))
        return data if isinstance(data, Exception) else self.unpack(item, data)


class SequentialReader(Reader, abc.ABC):
    """Reads images whose positions are not known before their file is read, such as those in compressed archives."""

    in_order = True
    form = "the archive"

    def __init__(self, files: Files, counts: Sequence[int]) -> None:
        self._files, self._counts = files, counts

    @abc.abstractmethod
    def walk(self, handle: BinaryIO, file: int, items: NDArray[np.int64]) -> Iterator[Read]:
        """Yields the images of one file with these numbers, which ascend and start at 0 in each file.

        May raise any exception if the file is damaged.
        """

    def damaged(self, file: int, reason: str) -> Exception:
        """Returns the error for each image of a damaged file that could not be reached."""
        return ContentError(f"{self.form} is damaged: {reason}")

    def read(self, items: Sequence[int]) -> list[Read]:
        order = np.argsort(np.asarray(items, dtype=np.int64), kind="stable")
        found = dict(zip(order.tolist(), self.stream(np.asarray(items, dtype=np.int64)[order]), strict=True))
        return [found[position] for position in range(len(items))]

    def stream(self, items: NDArray[np.int64]) -> Iterator[Read]:
        first = 0
        for file, count in enumerate(self._counts):
            inside = items[(items >= first) & (items < first + count)] - first
            if len(inside):
                yield from self._of_file(file, inside)
            first += count

    def _of_file(self, file: int, items: NDArray[np.int64]) -> Iterator[Read]:
        done = 0
        try:
            with self._files.open(file) as handle:
                for content in self.walk(handle, file, items):
                    yield content
                    done += 1
                return
        except (OSError, StoreError, ForeignError, MemoryError) as error:
            failure: Exception = error
        except Exception as error:  # libraries raise many kinds of errors for damaged files
            failure = self.damaged(file, message_of(error))
        yield from [failure] * (len(items) - done)
