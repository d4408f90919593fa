"""Files in remote stores, through fsspec: ``s3://``, ``https://``, ``gs://`` and so on. Imports no torch."""

from __future__ import annotations

import hashlib
import io
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, BinaryIO, TypeVar

import numpy as np
from numpy.typing import NDArray

from fidtool.errors import InputError
from fidtool.sources.contents import ContentError, StoreError
from fidtool.sources.files import Extent, Files, Stamps

T = TypeVar("T")

TRIES = 5
_FIRST_WAIT = 0.5
"""Seconds before the second try; each wait is twice as long as the one before, and up to half as long again."""
_PATIENCE = 120.0
"""Seconds that a store may take to answer one request, of which it has `AT_ONCE` at a time."""
AT_ONCE = 32
_AHEAD = 1 << 22
"""Bytes that are asked for at a time where a file is read from start to end; the next piece is under way meanwhile."""
_ASKED_AGAIN = 16
"""Of so many files at most it is looked up at the end whether they have changed."""
_VERSIONS = ("ETag", "etag", "md5Hash", "LastModified", "mtime", "updated")
"""What stores call that which changes with an object's contents."""
_FINAL = (PermissionError, IsADirectoryError, NotADirectoryError, ImportError, NotImplementedError, ValueError)
_AGAIN = frozenset({408, 425, 429})
"""HTTP's answers below 500 that may be others a moment later."""


def is_remote(path: str) -> bool:
    """Whether a path is a URL."""
    return "://" in path


def file_system(url: str) -> Any:
    """fsspec's file system for a URL, this process's own: connections are not shared with forks.

    Raises:
        InputError: fsspec, or what it needs for this kind of store, is not installed; no such kind.
    """
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise InputError(f"{url} needs fsspec: pip install 'fidtool[remote]'") from None
    try:
        return url_to_fs(url)[0]
    except ImportError as error:
        raise InputError(
            f"{url}: {' '.join(str(error).split())} (pip install 'fidtool[remote]' has s3 and http)"
        ) from None
    except ValueError as error:
        raise InputError(f"{url}: {words(error)}") from None


def asked(work: Callable[[], T], url: str) -> T:
    """What a store says when it is asked for its contents, several times if need be.

    Raises:
        InputError: what no second try would change: it is not there, or may not be read.
        StoreError: it failed each time.
    """
    for attempt in range(1, TRIES + 1):
        try:
            return work()
        except Exception as error:
            try:
                refuse_if_final(error)
            except FileNotFoundError:
                raise InputError(f"there is no {url}") from None
            except PermissionError:
                raise InputError(f"{url} may not be read: see the store's own way to name credentials") from None
            except Exception as final:
                raise InputError(f"{url} cannot be read: {getattr(final, 'strerror', None) or words(final)}") from None
            if attempt == TRIES:
                raise StoreError(f"{url} could not be read in {TRIES} tries: {words(really(error))}") from error
            wait(attempt)
    raise AssertionError


def wait(attempt: int) -> None:
    """Waits before the next try. Processes that failed together should not all come back together."""
    time.sleep(_FIRST_WAIT * 2.0 ** (attempt - 1) * (1.0 + 0.5 * random.random()))


def really(error: Exception) -> Exception:
    """What fsspec's HTTP calls a missing file, whatever did not answer, by its own name."""
    cause = error.__cause__
    hidden = isinstance(error, FileNotFoundError) and isinstance(cause, Exception)
    return cause if hidden and isinstance(cause, Exception) else error


def refuse_if_final(error: Exception) -> None:
    """Raises an error where a store's answer would be the same the next time."""
    error = really(error)
    status = getattr(error, "status", None)
    if isinstance(error, FileNotFoundError) or status in (404, 410):
        raise FileNotFoundError(2, "it is not there") from error
    if isinstance(error, _FINAL):
        raise error
    if not isinstance(status, int) or status >= 500 or status in _AGAIN or status < 400:
        return
    if status in (401, 403):
        raise PermissionError(13, f"the store says {status}: access denied") from error
    raise OSError(5, f"the store says {status} ({words(error)[:120]})") from error


def words(error: Exception) -> str:
    """An exception in a few words; many of a network's have none."""
    return " ".join(str(error).split()) or type(error).__name__


class RemoteFiles(Files):
    """Objects in a store.

    Args:
        paths: their URLs, all of one store.
        stamps: see `Files.stamps`: their sizes, and a hash of what the store says of their versions, which is 0 where
            it says nothing.
    """

    at_once = AT_ONCE
    shared = True
    timed = False

    def __init__(self, paths: Sequence[str], stamps: Stamps) -> None:
        self.paths, self._stamps = paths, stamps

    @property
    def versioned(self) -> bool:
        """Whether the store would tell if an object was another one."""
        return bool(self._stamps[:, 1].all())

    def stamps(self) -> Stamps:
        return self._stamps

    def changed(self, stamps: Stamps) -> list[int]:
        if len(self.paths) > _ASKED_AGAIN:
            return []
        now = np.array([stamp_of(described(url)) for url in self.paths], dtype=np.int64)
        return [int(file) for file in np.flatnonzero((now != stamps).any(axis=1))]

    def fetch(self, extents: Sequence[Extent]) -> list[bytes | Exception]:
        found: list[bytes | Exception] = [StoreError("")] * len(extents)
        left = list(range(len(extents)))
        for attempt in range(1, TRIES + 1):
            answers = self._ask([extents[place] for place in left])
            again = []
            for place, answer in zip(left, answers, strict=True):
                found[place] = self._judged(answer, extents[place])
                if isinstance(found[place], StoreError):
                    again.append(place)
            left = again
            if not left:
                break
            if attempt < TRIES:
                wait(attempt)
        return found

    def _ask(self, extents: Sequence[Extent]) -> list[Any]:
        """The store's answers, exceptions among them."""
        urls = [self.paths[file] for file, _, _ in extents]
        starts = [None if length < 0 else start for _, start, length in extents]
        ends = [None if length < 0 else start + length for _, start, length in extents]
        store = file_system(urls[0])
        # With this, fsspec waits no longer; stores that it asks one by one do not know it.
        patience = {"timeout": _PATIENCE} if store.async_impl else {}
        try:
            answers = store.cat_ranges(urls, starts, ends, on_error="return", **patience)
        except Exception as error:
            return [error] * len(extents)
        return list(answers)

    def _judged(self, answer: Any, extent: Extent) -> bytes | Exception:
        file, start, length = extent
        url = self.paths[file]
        if isinstance(answer, Exception):
            try:
                refuse_if_final(answer)
            except Exception as error:
                return error
            return StoreError(f"{url} could not be read in {TRIES} tries: {words(really(answer))}")
        data = bytes(answer)
        if 0 <= length < len(data):
            return ContentError("its server sends whole files where pieces are asked for: copy the file here first")
        if len(data) < length:
            return ContentError(f"the file ends after {start + len(data)} bytes of {start + length}")
        return data

    def open(self, file: int) -> BinaryIO:
        size = int(self._stamps[file, 0])
        if size < 0:
            raise OSError(5, "the server does not say how large it is: copy the file here first")
        return io.BufferedReader(_RemoteFile(self, file, size), _AHEAD)

    def expecting(self, sizes: NDArray[np.int64]) -> RemoteFiles:
        return self


class _RemoteFile(io.RawIOBase):
    """One object as a file; while a piece of it is being used, the next is fetched."""

    def __init__(self, files: RemoteFiles, file: int, size: int) -> None:
        self._files, self._file, self._size = files, file, size
        self._position = 0
        self._helper = ThreadPoolExecutor(1, "fidtool-fetch")
        self._coming: tuple[int, Future[bytes]] | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), self._size - self._position)
        if length <= 0:
            return 0
        data = self._piece(self._position, length)
        buffer[: len(data)] = data
        self._position += len(data)
        if length == _AHEAD and self._position < self._size:
            following = min(_AHEAD, self._size - self._position)
            self._coming = self._position, self._helper.submit(self._fetched, self._position, following)
        return len(data)

    def _piece(self, start: int, length: int) -> bytes:
        coming, self._coming = self._coming, None
        if coming is not None and coming[0] == start:
            return coming[1].result()[:length]
        return self._fetched(start, length)

    def _fetched(self, start: int, length: int) -> bytes:
        (data,) = self._files.fetch([(self._file, start, length)])
        if isinstance(data, Exception):
            raise data
        return data

    def close(self) -> None:
        self._helper.shutdown(wait=False, cancel_futures=True)
        super().close()


def described(url: str) -> Mapping[str, Any]:
    """What the store says of an object.

    Raises:
        InputError, StoreError: see `asked`.
    """
    store = file_system(url)
    found: Mapping[str, Any] = asked(lambda: store.info(url), url)
    return found


def stamp_of(info: Mapping[str, Any]) -> tuple[int, int, int, int, int]:
    """See `RemoteFiles`."""
    size = info.get("size")
    version = [
        str(info[name]) for name in ("ETag", "etag", "md5Hash", "LastModified", "mtime", "updated") if info.get(name)
    ]
    digest = int.from_bytes(hashlib.sha256("\0".join(version).encode()).digest()[:7], "little") if version else 0
    return (-1 if size is None else int(size)), digest, 0, 0, 0
