"""Files that contents are read from, on this machine. Imports no torch."""

from __future__ import annotations

import abc
import os
import stat
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from fidtool.sources.contents import MOST_BYTES, ContentError, ForeignError

Extent = tuple[int, int, int]
"""Which of the files, the first byte, and how many: -1 is all there are."""
GONE = -1
"""The size of a file that cannot be asked for it."""
Stamps = NDArray[np.int64]
"""Array of shape (files, 5): each one's size in bytes, mtime and ctime in nanoseconds, device and inode; all -1 for one
that has gone."""
_ADVICE = "all ranks must see the same files, on a shared file system or as the same copy on every machine"


class Files(abc.ABC):
    """Some files by number, for reading.

    Attributes:
        paths: theirs.
        at_once: so many pieces are worth asking for together.
        remote: they are in a store, which every rank sees alike.
        timed: the stamps hold times.
    """

    paths: Sequence[str]
    at_once = 1
    remote = False
    timed = True

    @property
    def versioned(self) -> bool:
        """Whether the stamps tell one version of a file from another."""
        return True

    @abc.abstractmethod
    def fetch(self, extents: Sequence[Extent]) -> list[bytes | Exception]:
        """Bytes from these places, or why there are none: see `fidtool.sources.contents.Read`."""

    def flow(self, extents: Sequence[Extent]) -> Iterator[bytes | Exception]:
        """The same of many places, one after the other; they ascend within each file."""
        return (data for extent in extents for data in self.fetch([extent]))

    @abc.abstractmethod
    def open(self, file: int) -> BinaryIO:
        """A file to be read from its start, in which one can also seek.

        Raises:
            OSError, ContentError, StoreError, ForeignError: it cannot be.
        """

    @abc.abstractmethod
    def stamps(self) -> Stamps:
        """What would change if one of the files did."""

    def changed(self, stamps: Stamps) -> list[int]:
        """Which files are no longer as they were when they had these stamps."""
        return [int(file) for file in np.flatnonzero((self.stamps() != stamps).any(axis=1))]

    @abc.abstractmethod
    def expecting(self, sizes: NDArray[np.int64]) -> Files:
        """The same files on another rank, where they must have these sizes."""


class LocalFiles(Files):
    """Files that the operating system opens.

    Args:
        paths: theirs.
        sizes: what rank zero found, on the other ranks; None on rank zero.
    """

    def __init__(self, paths: Sequence[str], sizes: NDArray[np.int64] | None = None) -> None:
        self.paths, self._sizes = paths, sizes

    def fetch(self, extents: Sequence[Extent]) -> list[bytes | Exception]:
        return [self._fetched(*extent) for extent in extents]

    def _fetched(self, file: int, start: int, length: int) -> bytes | Exception:
        try:
            with self.open(file) as handle:
                whole = length < 0
                if whole:
                    length = os.fstat(handle.fileno()).st_size - start
                if length > MOST_BYTES:
                    return ContentError(f"it has {length} bytes, and no image file has more than {MOST_BYTES}")
                handle.seek(start)
                # Some file systems call everything empty.
                data = handle.read() if whole and not length else handle.read(length)
        except (OSError, MemoryError, ForeignError, ContentError) as error:
            return error
        if len(data) < length:
            return ContentError(f"the file ends after {start + len(data)} bytes of {start + length}")
        return data

    def open(self, file: int) -> BinaryIO:
        path = self.paths[file]
        expected = None if self._sizes is None else int(self._sizes[file])
        try:
            handle = open(path, "rb", opener=_open_at_once)  # noqa: SIM115 - whoever asked closes it
        except FileNotFoundError:
            if expected is None or expected == GONE:
                raise
            raise ForeignError(f"{path} is not here, and rank 0 found it: {_ADVICE}") from None
        status = os.fstat(handle.fileno())
        if not stat.S_ISREG(status.st_mode):
            handle.close()
            raise ContentError("it is no regular file")
        size = status.st_size
        if expected is not None and size != expected:
            handle.close()
            found = "could not open it" if expected == GONE else f"found {expected}"
            raise ForeignError(f"{path} has {size} bytes here, and rank 0 {found}: {_ADVICE}")
        return handle

    def stamps(self) -> Stamps:
        found = np.empty((len(self.paths), 5), dtype=np.int64)
        for row, path in enumerate(self.paths):
            found[row] = _stamp(path)
        return found

    def expecting(self, sizes: NDArray[np.int64]) -> LocalFiles:
        return LocalFiles(self.paths, sizes)


def _open_at_once(path: str, flags: int) -> int:
    """Where a pipe is in the place of a file, nobody waits for its other end."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _stamp(path: str) -> tuple[int, int, int, int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return GONE, GONE, GONE, GONE, GONE
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_dev, status.st_ino
