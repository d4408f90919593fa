"""What is read of an image before it is decoded: contents, the files they lie in, their readers. Imports no torch."""

from __future__ import annotations

import abc
import contextlib
import os
import stat
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile

from fidtool.errors import FidtoolError, InputError

READ_AT_ONCE = 1 << 21
"""Bytes of a compressed stream to decompress at a time: other threads run meanwhile."""
MOST_BYTES = 2**31
"""Largest size of an image file; a larger one would fill the memory before it could be refused."""
Extent = tuple[int, int, int]
"""File number, first byte, and number of bytes; -1 means up to the end of the file."""
GONE = -1
"""Size of a file that is missing."""
Stamps = NDArray[np.int64]
"""int64 array of shape (files, 5): size in bytes, mtime and ctime in nanoseconds, device, inode; all `GONE` for a
missing file."""
_ADVICE = "all ranks must see the same files, on a shared file system or as the same copy on every machine"


class ContentError(Exception):
    """The data is not an image; the message says what is wrong with it."""


class ForeignError(Exception):
    """This rank sees other files than rank zero, which listed them; the message is a whole sentence."""


class StoreError(Exception):
    """A remote store does not answer or refuses, so nothing is known about the image; the message is a sentence."""


class RefusedError(StoreError):
    """A store refuses in a way that retrying would not change: access is denied, or it does not serve byte ranges."""


class ProgramError(Exception):
    """The program that provides the image failed; the message is a whole sentence."""


@dataclass(frozen=True)
class Pixels:
    """A decoded image.

    Attributes:
        values: uint8 array of shape (height, width, channels), with 1, 3 or 4 channels.
        clipped: some of the original values were outside the value range.
    """

    values: NDArray[np.uint8]
    clipped: bool = False


Content: TypeAlias = "bytes | Pixels | Image.Image"
"""An encoded image, pixels, or a Pillow image."""
Read: TypeAlias = "Content | Exception"
"""A content, or the reason why there is none: `ContentError`, `ForeignError`, `StoreError`, `ProgramError`, `OSError`,
`MemoryError`, or an `InputError` where it is not about one image."""


def bytes_of(content: Read) -> bytes:
    """Bytes to compare contents by; for a missing content, the name of the error's class."""
    if isinstance(content, Exception):
        return type(content).__name__.encode()
    if isinstance(content, bytes):
        return content
    try:
        return np.asarray(content.values if isinstance(content, Pixels) else content).tobytes()
    except Exception as error:  # a damaged image that Pillow has opened and not yet decoded
        return type(error).__name__.encode()


@dataclass(frozen=True)
class BadFile:
    """An image file that cannot be used.

    Attributes:
        file: its path, as the user typed the folder's.
        reason: what is wrong with it.
    """

    file: str
    reason: str


_pillow_lock = threading.Lock()
"""Pillow's settings and Python's warning filters are global: threads that overlapped would restore each other's."""


def _renew_pillow_lock() -> None:
    global _pillow_lock
    _pillow_lock = threading.Lock()


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    # A process forked while another thread was decoding would wait for that thread, which it does not have.
    os.register_at_fork(after_in_child=_renew_pillow_lock)


@contextlib.contextmanager
def pillow_defaults(max_pixels: int | None = None) -> Iterator[None]:
    """Gives one thread at a time Pillow with fidtool's settings, and restores the program's settings afterwards.

    Args:
        max_pixels: beyond this, Pillow refuses an image with an `Image.DecompressionBombError`; None leaves its limit.
    """
    with _pillow_lock, warnings.catch_warnings():
        # Pillow's remarks are about size and palettes; what matters of them is reported by our own means.
        warnings.simplefilter("ignore")
        before = Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES
        if max_pixels is not None:
            # Pillow warns beyond this and refuses beyond twice this; a half matters where the limit is odd.
            Image.MAX_IMAGE_PIXELS = max_pixels / 2  # type: ignore[assignment]
        ImageFile.LOAD_TRUNCATED_IMAGES = False  # training scripts like to set it: half an image would count as whole
        try:
            yield
        finally:
            Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = before


class Files(abc.ABC):
    """Numbered files to read from.

    Attributes:
        paths: paths of the files.
        at_once: number of extents that are best fetched together.
        remote: whether the files are in a store, which looks the same from every rank.
        timed: whether the stamps hold times.
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
        """The bytes of these extents, or the reason why there are none; see `Read`."""

    def stream(self, extents: Sequence[Extent]) -> Iterator[bytes | Exception]:
        """The same for many extents, one after the other; extents ascend within each file."""
        return (data for extent in extents for data in self.fetch([extent]))

    @abc.abstractmethod
    def open(self, file: int) -> BinaryIO:
        """Opens a file for reading and seeking.

        Raises:
            OSError, ContentError, StoreError, ForeignError: it cannot be.
        """

    @abc.abstractmethod
    def stamps(self) -> Stamps:
        """Numbers that change when a file changes; see `Stamps`."""

    def changed(self, stamps: Stamps) -> list[int]:
        """Numbers of the files that have changed since they had these stamps."""
        return [int(file) for file in np.flatnonzero((self.stamps() != stamps).any(axis=1))]

    @abc.abstractmethod
    def expecting(self, sizes: NDArray[np.int64]) -> Files:
        """The same files for another rank, on which they must have these sizes."""


class LocalFiles(Files):
    """Files on this machine.

    Args:
        paths: paths of the files.
        sizes: the sizes that rank zero found; None on rank zero itself.
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
            handle = open(path, "rb", opener=_open_at_once)  # noqa: SIM115 - the caller closes it
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
    """Does not wait for the other end of a pipe."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _stamp(path: str) -> tuple[int, int, int, int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return GONE, GONE, GONE, GONE, GONE
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_dev, status.st_ino


@contextlib.contextmanager
def readable(archive: str) -> Iterator[None]:
    """Turns whatever a library raises about a file into an error that says what is wrong with it.

    Raises:
        InputError: the file is missing, damaged, or of another kind.
        StoreError, ForeignError: see `fidtool.sources.contents`.
    """
    try:
        yield
    except (FidtoolError, StoreError, ForeignError, MemoryError):
        raise
    except (OSError, ContentError) as error:
        raise InputError(f"{archive} cannot be read: {_reason(error)}") from None
    except Exception as error:  # damaged archives raise a dozen kinds
        raise InputError(f"{archive} is damaged or cut off: {_reason(error)}", "copy or make it anew") from None


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or words_of(error)


def words_of(error: Exception) -> str:
    """An exception's message on one line, or its class where it has none."""
    return " ".join(str(error).split()) or type(error).__name__


class Reader(abc.ABC):
    """Reads the images of a source, which are numbered from 0 as they are stored.

    It is pickled for other ranks and for decoding processes.

    Attributes:
        in_order: whether images can only be read from first to last, with `stream`; else `read` takes any order.
        at_once: number of images that are best read together.
        variant: settings that change the contents of the same files.
        scaled: whether the images are floats, scaled by a value range.
        has_checksums: whether `damage` has checksums to compare.
    """

    in_order = False
    at_once = 1
    variant = ""
    scaled = False
    has_checksums = False

    def damage(self, stop: Callable[[], bool]) -> str:
        """What is wrong with the files, as a sentence; empty if nothing is, or once ``stop()`` is true."""
        return ""

    def read(self, items: Sequence[int]) -> list[Read]:
        """The contents of these images. A subclass overrides this or `stream`."""
        order = np.argsort(np.asarray(items, dtype=np.int64), kind="stable")
        found = dict(zip(order.tolist(), self.stream(np.asarray(items, dtype=np.int64)[order]), strict=True))
        return [found[place] for place in range(len(items))]

    def stream(self, items: NDArray[np.int64]) -> Iterator[Read]:
        """The contents of these images; their numbers ascend."""
        for item in items.tolist():
            yield from self.read([item])

    @abc.abstractmethod
    def expecting(self, sizes: NDArray[np.int64]) -> Reader:
        """The same reader for another rank, on which the files must have these sizes."""


class FileReader(Reader):
    """Reads images that are one file each.

    Args:
        files: the files; image i is file i.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self.at_once = files.at_once

    def read(self, items: Sequence[int]) -> list[Read]:
        return list(self._files.fetch([(int(item), 0, -1) for item in items]))

    def expecting(self, sizes: NDArray[np.int64]) -> FileReader:
        return FileReader(self._files.expecting(sizes))


class ExtentReader(Reader):
    """Reads images that are extents of files.

    Local files are read in any order. Remote files are read from first to last, so that one request fetches neighbours.

    Args:
        files: the files.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self.in_order = files.remote

    @abc.abstractmethod
    def extent(self, item: int) -> Extent:
        """Where an image lies; extents ascend with the images' numbers."""

    @abc.abstractmethod
    def unpack(self, item: int, data: bytes) -> Read:
        """The image in these bytes."""

    def read(self, items: Sequence[int]) -> list[Read]:
        fetched = self._files.fetch([self.extent(int(item)) for item in items])
        return [self._unpacked(int(item), data) for item, data in zip(items, fetched, strict=True)]

    def stream(self, items: NDArray[np.int64]) -> Iterator[Read]:
        flowing = self._files.stream([self.extent(item) for item in items.tolist()])
        for item, data in zip(items.tolist(), flowing, strict=True):
            yield self._unpacked(item, data)

    def _unpacked(self, item: int, data: bytes | Exception) -> Read:
        return data if isinstance(data, Exception) else self.unpack(item, data)


class MemberReader(ExtentReader):
    """Reads images that lie in files as they are encoded, each at its place, such as members of tar archives.

    Args:
        files: the files.
        file_index: which of them each image is in.
        extents: of each image the first byte and the number of bytes: int64 array of shape (images, 2).
        problems: why some of them cannot be read, by image.
    """

    def __init__(
        self,
        files: Files,
        file_index: NDArray[np.int32],
        extents: NDArray[np.int64],
        problems: Mapping[int, str] | None = None,
    ) -> None:
        super().__init__(files)
        self._file_index, self._extents, self._problems = file_index, extents, problems or {}

    def extent(self, item: int) -> Extent:
        start, length = self._extents[item]
        return int(self._file_index[item]), int(start), int(length)

    def unpack(self, item: int, data: bytes) -> Read:
        return ContentError(self._problems[item]) if item in self._problems else data

    def expecting(self, sizes: NDArray[np.int64]) -> MemberReader:
        return MemberReader(self._files.expecting(sizes), self._file_index, self._extents, self._problems)


class SequentialReader(Reader):
    """Reads images that can only be found by going through their file, such as those of a compressed archive.

    Args:
        files: the files.
        counts: number of images in each.
    """

    in_order = True

    def __init__(self, files: Files, counts: Sequence[int]) -> None:
        self._files, self._counts = files, counts

    @abc.abstractmethod
    def walk(self, handle: BinaryIO, file: int, items: NDArray[np.int64]) -> Iterator[Read]:
        """The images of one file with these numbers, which ascend and are counted from 0 in each file.

        May raise whatever the file's library raises where the file is damaged.
        """

    @abc.abstractmethod
    def damaged(self, file: int, words: str) -> Exception:
        """What stands in place of the images of a damaged file that could not be reached."""

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
        except Exception as error:  # a dozen kinds, from the libraries that read damaged files
            failure = self.damaged(file, words_of(error))
        yield from [failure] * (len(items) - done)
