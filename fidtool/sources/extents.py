"""Readers of images that are parts of files: extents of them, of their decompressed contents, or found one by one."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import IO, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fidtool.errors import FidtoolError, message_of
from fidtool.sources.contents import ContentError, Files, Read, Reader

Extent = tuple[int, int, int]
"""File number, first byte, and number of bytes."""


class ExtentReader(Reader, abc.ABC):
    """Reads images that are stored as extents of files.

    Local files are read in any order, copies of remote ones sequentially, so that each rank downloads only its own.
    """

    def __init__(self, files: Files) -> None:
        self.files, self.in_order = files, files.remote

    @abc.abstractmethod
    def extent(self, item: int) -> Extent:
        """Returns the extent of an image."""

    @abc.abstractmethod
    def unpack(self, item: int, data: bytes) -> Read:
        """Returns the content of an image from the bytes of its extent."""

    def decompressed(self, handle: BinaryIO, file: int) -> IO[bytes]:
        """Returns the contents of a compressed file, for `PackedReader`."""
        raise NotImplementedError

    def read(self, items: NDArray[np.int64]) -> Iterator[Read]:
        for item in items.tolist():
            data = self.files.read(*self.extent(item))
            yield data if isinstance(data, Exception) else self.unpack(item, data)


class SequentialReader(Reader, abc.ABC):
    """Reads images whose files must be read from their beginning. ``counts`` is the number of images in each file."""

    in_order = True

    def __init__(self, files: Files, counts: Sequence[int]) -> None:
        self.files, self._ends = files, np.cumsum(counts)

    @abc.abstractmethod
    def walk(self, handle: BinaryIO, file: int, items: list[int]) -> Iterator[Read]:
        """Yields these images of one file, whose numbers ascend. May raise any exception if the file is damaged."""

    def read(self, items: NDArray[np.int64]) -> Iterator[Read]:
        for file, of_file in groupby(items.tolist(), lambda item: int(np.searchsorted(self._ends, item, "right"))):
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


class PackedReader(SequentialReader):
    """Reads the images of ``rows``, whose extents are those in the decompressed contents of files."""

    def __init__(self, rows: ExtentReader, counts: Sequence[int], variant: str) -> None:
        super().__init__(rows.files, counts)
        self._rows, self.scaled, self.encoded, self.variant = rows, rows.scaled, rows.encoded, variant

    def walk(self, handle: BinaryIO, file: int, items: list[int]) -> Iterator[Read]:
        with self._rows.decompressed(handle, file) as stream:
            for item in items:
                _, start, length = self._rows.extent(item)
                data = stream.read(length) if length and stream.seek(start) == start else b""
                if len(data) < length:
                    raise EOFError("it is truncated")
                yield self._rows.unpack(item, data)
