"""Readers of images that are parts of files: extents of them, of their decompressed contents, or found one by one."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from itertools import groupby
from typing import IO, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fidtool.errors import FidtoolError, message_of
from fidtool.sources.contents import MOST_BYTES, ContentError, Files, Read, Reader, too_large

Extent = tuple[int, int, int]
"""File number, first byte, and number of bytes."""


class SequentialReader(Reader):
    """Reads images whose files must be read from their beginning."""

    in_order = True

    def __init__(self, files: Files) -> None:
        self.files = files

    @abc.abstractmethod
    def file_of(self, item: int) -> int:
        """Returns the number of an image's file."""

    @abc.abstractmethod
    def walk(self, handle: BinaryIO, file: int, items: list[int]) -> Iterator[Read]:
        """Yields these images of one file, whose numbers ascend. May raise any exception if the file is damaged."""

    def read(self, items: NDArray[np.int64]) -> Iterator[Read]:
        for file, of_file in groupby(items.tolist(), self.file_of):
            inside, done = list(of_file), 0
            try:
                with self.files.open(file) as handle:
                    for content in self.walk(handle, file, inside):
                        yield content
                        done += 1
                continue
            except (OSError, FidtoolError, MemoryError) as error:
                failure: Exception = error
            except Exception as error:  # libraries raise many kinds of errors for damaged files
                failure = ContentError(f"its file is damaged: {message_of(error)}")
            yield from [failure] * (len(inside) - done)


class ExtentReader(SequentialReader):
    """Reads images that are stored as extents of files, or of the decompressed contents of ``packed`` ones.

    Other local files are read in any order, copies of remote ones sequentially, so that each rank downloads only its
    own.
    """

    def __init__(self, files: Files, packed: bool) -> None:
        self.files, self.in_order = files, packed or files.remote

    @abc.abstractmethod
    def extent(self, item: int) -> Extent:
        """Returns the extent of an image."""

    @abc.abstractmethod
    def unpack(self, item: int, data: bytes) -> Read:
        """Returns the content of an image from the bytes of its extent."""

    @abc.abstractmethod
    def decompressed(self, handle: BinaryIO, file: int) -> IO[bytes]:
        """Returns the contents of a compressed file; ``handle`` itself for others."""

    def file_of(self, item: int) -> int:
        return self.extent(item)[0]

    def walk(self, handle: BinaryIO, file: int, items: list[int]) -> Iterator[Read]:
        with self.decompressed(handle, file) as stream:
            for item in items:
                _, start, length = self.extent(item)
                if length > MOST_BYTES:
                    yield too_large(length)
                    continue
                data = stream.read(length) if length and stream.seek(start) == start else b""
                if len(data) < length:
                    raise EOFError("it is truncated")
                yield self.unpack(item, data)

    def read(self, items: NDArray[np.int64]) -> Iterator[Read]:
        return super().read(items) if self.in_order else map(self._read, items.tolist())

    def _read(self, item: int) -> Read:
        data = self.files.read_bytes(*self.extent(item))
        return data if isinstance(data, Exception) else self.unpack(item, data)
