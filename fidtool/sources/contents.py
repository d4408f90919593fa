"""Contents of images, the files that store them, and readers, which return contents by number or in
stored order.
"""

from __future__ import annotations

import abc
import contextlib
import copy
import errno
import io
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import groupby, islice
from typing import IO, Any, BinaryIO, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile

from fidtool.errors import FidtoolError, InputError, format_message, format_reason
from fidtool.sources.kinds import HEAD, refuse_foreign
from fidtool.sources.labels import NO_LABELS, Labels
from fidtool.system.background import start_in_background
from fidtool.system.local_files import open_regular

MAX_BYTES = 2**31
"""Largest size of an image file. A larger one could fill the memory before it is refused."""
MISSING_FILE = -1
"""Size of a file that is missing."""
Stamps = NDArray[np.int64]
"""int64 array of shape (files, 5): size in bytes, mtime and ctime in nanoseconds, device, inode;
all `MISSING_FILE` for a missing file.
"""
Numbers = NDArray[np.int64]
"""Numbers of images in stored order."""
STAMPED_AT_ONCE = 256
"""Number of files of which a thread asks for the stamps before it takes the next ones."""
SLOW_SECONDS = 0.02
"""Seconds for so many files from which on one more thread asks: twenty times those of a local disk.
"""
_MAX_THREADS = 16
MAX_OPEN_FILES = 64
"""Number of files that a reader keeps open."""
SAME_FILES = (
    "all ranks must see the same files, on a shared file system or as identical copies on every "
    "machine"
)
"""Advice for the error that ranks see different files."""


class ContentError(Exception):
    """The data is not an image; the message says what is wrong with it."""


@dataclass(frozen=True)
class Pixels:
    """A decoded image, of shape (height, width, channels) with 1, 3 or 4 channels.

    ``clipped``: some of the original values were outside the value range. ``deep``: they had 16
    bits.
    """

    values: NDArray[np.uint8]
    clipped: bool = False
    deep: bool = False


@dataclass(frozen=True)
class ValueRange:
    """How the floats of an array become bytes: the values of black and white; ``floor`` truncates,
    else half up.
    """

    black: float
    white: float
    floor: bool = False

    @property
    def variant(self) -> str:
        """Text that differs if the same floats become different bytes; part of the identity of a
        set.
        """
        floor = ", floor" if self.floor else ""
        return f"value range ({self.black}, {self.white}){floor}"


class Frame(NamedTuple):
    """One frame of an encoded image; the first has the number 0."""

    data: bytes
    number: int


Content: TypeAlias = "bytes | Frame | Pixels | Image.Image"
"""An encoded image, a frame of one, pixels, or a Pillow image."""
Read: TypeAlias = "Content | Exception"
"""A content, or the error that occurred instead.

It is a `ContentError`, `OSError`, `MemoryError` or `fidtool.errors.ProgramError`; if more than one
image is affected, an `InputError`, or a `RunError` of a store that does not respond.
"""


def too_large_error(size: int) -> ContentError:
    return ContentError(f"it has {size} bytes; an image file may have at most {MAX_BYTES}")


def comparable_bytes(content: Read) -> bytes:
    """Return bytes for comparing contents; for an error, the name of its class."""
    if isinstance(content, Exception):
        return type(content).__name__.encode()
    if isinstance(content, bytes):
        return content
    if isinstance(content, Frame):
        return content.data
    if isinstance(content, Pixels):
        return content.values.tobytes()
    try:
        return np.asarray(content).tobytes()
    except Exception as error:  # a damaged image that Pillow has opened but not yet decoded
        return type(error).__name__.encode()


def to_content(value: Any) -> Read:
    """Return the image in a value of a program or a table: its bytes, or those of the file that it
    names.

    It may be a dict of either, as of Hugging Face's ``Image(decode=False)``; if there are both, the
    bytes are used.
    """
    if isinstance(value, Mapping):
        value = value.get("path") if value.get("bytes") is None else value["bytes"]
    if value is None:
        return ContentError("its row has no image bytes")
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    try:
        with open_regular(value) as handle:
            return handle.read()
    except OSError as error:  # named by its position in the set, which does not show the path
        return OSError(error.errno, f"{error.strerror}: {os.fspath(value)!r}")


@dataclass(frozen=True)
class BadFile:
    """An image file that cannot be used.

    Attributes:
        file: path of the file.
        reason: why it cannot be read.
    """

    file: str
    reason: str


# Pillow's settings and Python's warning filters are global: overlapping threads would restore each
# other's.
_pillow_lock = threading.Lock()


def _renew_pillow_lock() -> None:
    global _pillow_lock
    _pillow_lock = threading.Lock()


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    # If another thread holds the lock during a fork, the child would wait for it forever.
    os.register_at_fork(after_in_child=_renew_pillow_lock)


@contextlib.contextmanager
def pillow_defaults(max_pixels: int | None = None) -> Iterator[None]:
    """Apply fidtool's Pillow settings within the block and restore the program's afterwards. One
    thread at a time.

    Pillow refuses images of more than ``max_pixels`` with an `Image.DecompressionBombError`; None
    keeps the limit.
    """
    with _pillow_lock, warnings.catch_warnings():
        # Pillow warns about sizes and palettes; fidtool has its own warnings for those that matter.
        warnings.simplefilter("ignore")
        most = Image.MAX_IMAGE_PIXELS
        truncated = ImageFile.LOAD_TRUNCATED_IMAGES
        if max_pixels is not None:
            # Pillow refuses images beyond twice this value. No integer division, because the limit
            # may be odd.
            Image.MAX_IMAGE_PIXELS = max_pixels / 2  # type: ignore[assignment]
        # Training scripts often set it: truncated images would be accepted.
        ImageFile.LOAD_TRUNCATED_IMAGES = False
        try:
            yield
        finally:
            Image.MAX_IMAGE_PIXELS = most
            ImageFile.LOAD_TRUNCATED_IMAGES = truncated


class Reader(abc.ABC):
    """Reads the images of a source, which are numbered from 0 in stored order.

    Readers are pickled for other ranks.

    Attributes:
        files: the files that contain the images; none of images in memory.
        file_index: index of the file of each image, int32 array; None if every image is a file.
        in_order: whether images can only be read sequentially.
        variant: settings with which the same files have different contents.
        scaled: whether the images are floats, scaled by a value range.
        encoded: whether there may be encoded images.
    """

    scaled = False
    encoded = True

    def __init__(
        self,
        files: Files,
        file_index: NDArray[np.int32] | None = None,
        in_order: bool = False,
        variant: str = "",
    ) -> None:
        self.files = files
        self.file_index = file_index
        self.in_order = in_order
        self.variant = variant

    @abc.abstractmethod
    def read(self, items: Numbers) -> Iterator[Read]:
        """Yield the contents of these images, whose numbers must ascend if they can only be read
        sequentially.
        """

    def for_processes(self, processes: int) -> Reader:
        """Return the reader for one of so many processes that read many images at the same
        time.
        """
        return self

    def read_labels(self, items: Numbers, requested: bool) -> Labels:
        """Return the labels that are stored with the images, at least those of ``items``; none if
        there are none, or if reading them takes time and they were not ``requested``.
        """
        return NO_LABELS

    def wrap(self, reader: Reader) -> Reader:
        """Return another rank's own reader of images in memory, with what was decided on
        rank 0.
        """
        return reader


class Files(Reader):
    """Numbered files on this machine, which are images unless another reader reads parts of them.

    Other ranks get only their sizes, which the files that they open must have.

    Attributes:
        stamps: numbers that change if a file changes, from when the source was listed; see
            `Stamps`.
        remote: whether the files are in a remote store, which is the same for all ranks.
        versioned: whether the stamps distinguish versions of a file. Images in memory have no
            files.
    """

    remote = False
    _received = False

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__(self)
        self.paths = paths
        self.versioned = len(paths) > 0
        self.stamps = _stat_files(paths)

    def __getstate__(self) -> dict[str, Any]:
        stamps = self.stamps if self.remote else self.stamps[:, :1].copy()
        return {**vars(self), "stamps": stamps, "_received": True}

    def read(self, items: Numbers) -> Iterator[Read]:
        return map(self.read_bytes, items.tolist())

    def read_bytes(self, file: int, start: int = 0, length: int | None = None) -> bytes | Exception:
        """Return these bytes of a file (None up to its end), or an error; see `Read`."""
        try:
            with self.open(file) as handle:
                if length is None:
                    length = os.fstat(handle.fileno()).st_size - start
                return read_extent(handle, start, length)
        except (OSError, MemoryError, ContentError, FidtoolError) as error:
            return error

    def open(self, file: int) -> BinaryIO:
        """Open a file, or a copy of it on this machine, for reading and seeking."""
        path = self.paths[file]
        expected = int(self.stamps[file, 0])
        try:
            handle = open_regular(path)
        except FileNotFoundError as error:
            if self._received and expected != MISSING_FILE:
                raise InputError(
                    f"{path} exists on rank 0 but not on this rank: {SAME_FILES}"
                ) from None
            broken = broken_link(path)
            if broken:
                raise FileNotFoundError(errno.ENOENT, f"it is {broken}") from error
            raise
        size = os.fstat(handle.fileno()).st_size
        if self._received and size != expected:
            handle.close()
            seen = (
                "could not be opened on rank 0"
                if expected == MISSING_FILE
                else f"{expected} on rank 0"
            )
            raise InputError(f"{path} has {size} bytes on this rank and {seen}: {SAME_FILES}")
        return handle

    def find_changed(self) -> list[str]:
        """Return the paths of files that have changed since the source was listed."""
        changed = (_stat_files(self.paths) != self.stamps).any(axis=1)
        return [self.paths[int(file)] for file in np.flatnonzero(changed)]


def _stat_files(paths: Sequence[str]) -> Stamps:
    """Return the stamps of files. Storage that responds slowly, as on a network, is asked by
    several threads.

    Fast storage is asked by one, because threads that take turns with Python's lock would take
    longer.
    """
    stamps: Stamps = np.full((len(paths), 5), MISSING_FILE, dtype=np.int64)
    starts = iter(range(0, len(paths), STAMPED_AT_ONCE))

    def stamp_the_rest() -> None:
        for start in starts:
            _stat_chunk(paths, stamps, start)

    helpers: list[Future[None]] = []
    try:
        for start in starts:
            began = time.monotonic()
            _stat_chunk(paths, stamps, start)
            if time.monotonic() - began > SLOW_SECONDS and len(helpers) < _MAX_THREADS:
                helpers.append(start_in_background(stamp_the_rest))
        for helper in helpers:
            helper.result()
    finally:
        list(starts)  # after an interrupt, the threads take no more files
    return stamps


def _stat_chunk(paths: Sequence[str], stamps: Stamps, start: int) -> None:
    """Fill in the stamps of some files, the first of which has the number ``start``."""
    for row, path in enumerate(paths[start : start + STAMPED_AT_ONCE], start):
        with contextlib.suppress(OSError, ValueError):  # a null byte
            status = os.stat(path)
            stamps[row] = (
                status.st_size,
                status.st_mtime_ns,
                status.st_ctime_ns,
                status.st_dev,
                status.st_ino,
            )


def broken_link(path: str) -> str:
    """Return what a link is whose target does not exist; empty for other files."""
    if not os.path.islink(path) or os.path.exists(path):
        return ""
    target = os.readlink(path)
    if "annex/objects/" not in target:
        return f"a link to {target}, which does not exist"
    return (
        "a git-annex link to a file that is not on this machine: run `git annex get` in its "
        "repository"
    )


def read_head(files: Files) -> bytes:
    """Return the first bytes of the first file; a null byte if it cannot be read, which whoever
    reads it reports.
    """
    try:
        with files.open(0) as handle:
            return handle.read(HEAD)
    except OSError:
        return b"\0"


def pickle_error(name: str, *remedies: str, example: object = None) -> InputError:
    """Return the error about a file with objects that are not read, such as ``example``."""
    shown = "" if example is None else f" ({example})"
    return InputError(
        f"{name} contains pickled objects{shown}, which are never loaded, because loading them can "
        "run code:",
        *remedies,
    )


@contextlib.contextmanager
def explain_errors(name: str, problem: str = "cannot be read") -> Iterator[None]:
    """Convert any exception that a library raises while it reads a damaged file to an `InputError`
    that names it.
    """
    try:
        yield
    except (FidtoolError, MemoryError):
        raise
    except Exception as error:  # damaged files raise many kinds of errors
        if "allow_pickle" in str(error):
            raise pickle_error(name, "save arrays of numbers, with numpy.savez") from None
        reason = format_reason(error)
        if isinstance(error, (OSError, ContentError)):
            raise InputError(f"{name} cannot be read: {reason}") from None
        if reason == "File is not a zip file":  # users need not know that an .npz is one
            reason = "its end is missing"
        raise InputError(f"{name} {problem}: {reason}", "copy or create it again") from None


@contextlib.contextmanager
def open_with_errors(files: Files, file: int) -> Iterator[BinaryIO]:
    """Open a file and explain errors. Say if it is something else, such as a web page in its
    place.
    """
    name = files.paths[file]
    with explain_errors(name, "is damaged or truncated"), files.open(file) as handle:
        try:
            yield handle
        except Exception:
            handle.seek(0)
            refuse_foreign(name, handle.read(HEAD))
            raise


# --- parts of files -------------------------------------------------------------------------------


def read_extent(stream: IO[bytes], start: int, length: int) -> bytes:
    """Return these bytes of an open file; a ContentError if they are not all there, or too many
    for an image.
    """
    if length > MAX_BYTES:
        raise too_large_error(length)
    reached = stream.seek(start)
    data = stream.read(length)
    if len(data) < length:
        raise ContentError(f"the file ends after {reached + len(data)} of {start + length} bytes")
    return data


class _OpenFile:
    """An open file, which is closed with the last reference to it: a thread may still read one that
    is replaced.
    """

    def __init__(self, handle: BinaryIO) -> None:
        self._handle = handle
        self.number = handle.fileno()

    def __del__(self) -> None:
        self._handle.close()


class _PositionedFile(io.RawIOBase):
    """Reads an open file from a position of its own: threads and forked processes share that of the
    file.
    """

    def __init__(self, file: _OpenFile) -> None:
        self._file = file
        self._position = 0

    def fileno(self) -> int:
        return self._file.number

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        assert whence == os.SEEK_SET
        self._position = offset
        return offset

    def read(self, size: int = -1) -> bytes:
        """Return so many bytes, fewer only at the end of the file: the system may return less at
        once.
        """
        data = b""
        while len(data) < size:
            piece = os.pread(self._file.number, size - len(data), self._position + len(data))
            if not piece:
                break
            data += piece
        self._position += len(data)
        return data


def _open_file(files: Files, file: int) -> _OpenFile:
    return _OpenFile(files.open(file))


class ContainerReader(Reader):
    """Reads images that are parts of files.

    A reader from `for_processes` keeps the `MAX_OPEN_FILES` files open that were read last, if they
    can be read in any order. Otherwise each file is opened for images next to each other: a run may
    have many sets.
    """

    file_index: NDArray[np.int32]
    _keeps_open = False

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_kept"}

    @cached_property
    def _kept(self) -> Callable[[int], _OpenFile]:
        return lru_cache(MAX_OPEN_FILES)(partial(_open_file, self.files))

    def for_processes(self, processes: int) -> ContainerReader:
        mine = copy.copy(self)
        mine._keeps_open = not self.in_order
        return mine

    def _open(self, file: int) -> BinaryIO:
        if self._keeps_open:
            return cast(BinaryIO, _PositionedFile(self._kept(file)))
        return self.files.open(file)

    @abc.abstractmethod
    def walk(self, handle: BinaryIO, file: int, items: list[int]) -> Iterator[Read]:
        """Yield these images of one file. May raise any exception if the file is damaged."""

    def read(self, items: Numbers) -> Iterator[Read]:
        for file, group in groupby(items.tolist(), lambda item: int(self.file_index[item])):
            inside = list(group)
            done = 0
            failure: Exception = ContentError(
                "its file is damaged: it has fewer images than when it was listed"
            )
            try:
                with self._open(file) as handle:
                    for content in islice(self.walk(handle, file, inside), len(inside)):
                        yield content
                        done += 1
            except (OSError, FidtoolError, MemoryError) as error:
                failure = error
            except Exception as error:  # libraries raise many kinds of errors for damaged files
                failure = ContentError(f"its file is damaged: {format_message(error)}")
            yield from [failure] * (len(inside) - done)

    def first_image(self, file: int) -> int:
        """Return the number of the first image in a file."""
        return int(np.searchsorted(self.file_index, file))


class ExtentReader(ContainerReader):
    """Reads images that are stored as extents of files, or of the contents of compressed files."""

    @abc.abstractmethod
    def content(self, item: int, stream: IO[bytes]) -> Read:
        """Return the content of an image; a ContentError is raised or returned if it cannot be
        read.
        """

    @abc.abstractmethod
    def open_stream(self, handle: BinaryIO, file: int) -> IO[bytes]:
        """Return the contents of a compressed file; ``handle`` itself for others."""

    def walk(self, handle: BinaryIO, file: int, items: list[int]) -> Iterator[Read]:
        with self.open_stream(handle, file) as stream:
            for item in items:
                try:
                    yield self.content(item, stream)
                except (ContentError, MemoryError, OSError) as error:
                    if isinstance(error, OSError) and stream is not handle:
                        raise  # all that follows in a compressed file is lost as well
                    yield error
