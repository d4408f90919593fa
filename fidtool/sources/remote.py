"""Files in remote stores, through fsspec: ``s3://``, ``https://``, ``gs://`` and so on. Imports no torch."""

from __future__ import annotations

import hashlib
import io
import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fidtool.errors import InputError
from fidtool.sources.asking import TRIES, asked, file_system, in_background, really, refuse_if_final, wait, words
from fidtool.sources.contents import MOST_BYTES, ContentError, Extent, Files, RefusedError, Stamps, StoreError

_PATIENCE = 120.0
"""Seconds that a store may take to answer one request, of which it has `AT_ONCE` at a time."""
AT_ONCE = 32
_AHEAD = 1 << 22
"""Bytes that are asked for at a time where a file is read from start to end; the next piece is under way meanwhile."""
_GAP = 1 << 18
"""Bytes between two pieces that are fetched with them: a request of their own would take longer."""
_UNDER_WAY = 4
"""Requests for pieces that are made at a time."""
_ASKED_AGAIN = 1024
"""Of so many files at most it is looked up at the end whether they have changed."""
_VERSIONS = ("ETag", "etag", "md5Hash", "LastModified", "mtime", "updated")
"""What stores call that which changes with an object's contents."""


class RemoteFiles(Files):
    """Objects in a store.

    Args:
        paths: their URLs, all of one store.
        stamps: see `Files.stamps`: their sizes, and a hash of what the store says of their versions, which is 0 where
            it says nothing.
    """

    at_once = AT_ONCE
    remote = True
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
        if not self.versioned:
            return []
        asked_again = np.unique(np.linspace(0, len(self.paths) - 1, _ASKED_AGAIN).astype(np.int64)).tolist()
        with ThreadPoolExecutor(AT_ONCE, "fidtool-ask") as pool:
            now = list(pool.map(self._stamp_now, asked_again))
        return [file for file, stamp in zip(asked_again, now, strict=True) if stamp != tuple(stamps[file].tolist())]

    def _stamp_now(self, file: int) -> tuple[int, ...]:
        try:
            return stamp_of(described(self.paths[file]))
        except InputError:  # it has gone
            return ()

    def fetch(self, extents: Sequence[Extent]) -> list[bytes | Exception]:
        # A request for nothing would bring everything.
        found: list[bytes | Exception] = [self._too_large(extent) or b"" for extent in extents]
        left = [place for place, (_, _, length) in enumerate(extents) if length and not found[place]]
        for attempt in range(1, TRIES + 1):
            if not left:
                break
            answers = self._ask([extents[place] for place in left])
            again = []
            for place, answer in zip(left, answers, strict=True):
                found[place] = self._judged(answer, extents[place])
                if isinstance(found[place], StoreError) and not isinstance(found[place], RefusedError):
                    again.append(place)
            left = again
            if left and attempt < TRIES:
                wait(attempt)
        return found

    def _too_large(self, extent: Extent) -> ContentError | None:
        file, _, length = extent
        length = int(self._stamps[file, 0]) if length < 0 else length
        if length <= MOST_BYTES:
            return None
        return _too_large(length)

    def flow(self, extents: Sequence[Extent]) -> Iterator[bytes | Exception]:
        """Pieces that lie near each other come with one request, and several requests are under way."""
        groups = iter(_together(extents))
        coming: deque[tuple[list[Extent], Future[list[bytes | Exception]]]] = deque()
        while True:
            for group in itertools.islice(groups, _UNDER_WAY - len(coming)):
                coming.append((group, in_background(partial(self.fetch, [_hull(group)]))))
            if not coming:
                return
            group, future = coming.popleft()
            (data,) = future.result()
            start = group[0][1]
            for _, first, length in group:
                yield data if isinstance(data, Exception) else data[first - start : first - start + length]

    def _ask(self, extents: Sequence[Extent]) -> list[Any]:
        """The store's answers, exceptions among them."""
        urls = [self.paths[file] for file, _, _ in extents]
        ends = [self._end(extent) for extent in extents]
        starts = [None if end is None else start for (_, start, _), end in zip(extents, ends, strict=True)]
        store = file_system(urls[0])
        # With this, fsspec waits no longer; stores that it asks one by one do not know it.
        patience = {"timeout": _PATIENCE} if store.async_impl else {}
        try:
            answers = store.cat_ranges(urls, starts, ends, on_error="return", **patience)
        except Exception as error:
            return [error] * len(extents)
        return list(answers)

    def _end(self, extent: Extent) -> int | None:
        """The byte behind a piece; None behind a whole object, but of one of unknown size no more than is allowed."""
        file, start, length = extent
        if length >= 0:
            return start + length
        return None if self._stamps[file, 0] > 0 else MOST_BYTES + 1

    def _judged(self, answer: Any, extent: Extent) -> bytes | Exception:
        file, start, length = extent
        url = self.paths[file]
        if isinstance(answer, InputError):
            return answer
        if isinstance(answer, Exception):
            try:
                refuse_if_final(answer)
            except PermissionError as error:  # whoever may read no more may read none of the others, either
                return RefusedError(f"{url} may not be read: {error.strerror or words(error)}")
            except OSError as error:
                return error
            except Exception as error:  # an address that is none
                return ContentError(f"it cannot be asked for: {words(error)}")
            return StoreError(f"{url} could not be read in {TRIES} tries: {words(really(answer))}")
        data = bytes(answer)
        if 0 <= length < len(data):
            return RefusedError(f"{url}: its server sends whole files where pieces are asked for: copy it here first")
        if len(data) > MOST_BYTES:
            return _too_large(len(data))
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


def _too_large(length: int) -> ContentError:
    return ContentError(f"it has {length} bytes, and no image file has more than {MOST_BYTES}")


def _hull(group: list[Extent]) -> Extent:
    file, start, _ = group[0]
    return file, start, max(first + length for _, first, length in group) - start


def _together(extents: Sequence[Extent]) -> Iterator[list[Extent]]:
    """Groups of neighbours that one request can fetch."""
    group: list[Extent] = []
    for extent in extents:
        if group:
            file, start, length = _hull(group)
            near = extent[0] == file and start <= extent[1] <= start + length + _GAP
            if not near or extent[1] + extent[2] - start > _AHEAD:
                yield group
                group = []
        group.append(extent)
    if group:
        yield group


class _RemoteFile(io.RawIOBase):
    """One object as a file; while a piece of it is being used, the next is fetched."""

    def __init__(self, files: RemoteFiles, file: int, size: int) -> None:
        self._files, self._file, self._size = files, file, size
        self._position = 0
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
            self._coming = self._position, in_background(partial(self._fetched, self._position, following))
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


def described(url: str) -> Mapping[str, Any]:
    """What the store says of an object.

    Raises:
        InputError, StoreError: see `asked`.
    """
    store = file_system(url)
    # fsspec keeps what it has listed, which may be older than the object.
    store.invalidate_cache()
    found: Mapping[str, Any] = asked(lambda: store.info(url), url)
    return found


def stamp_of(info: Mapping[str, Any]) -> tuple[int, int, int, int, int]:
    """See `RemoteFiles`."""
    size = info.get("size")
    version = [str(info[name]) for name in _VERSIONS if info.get(name)]
    digest = int.from_bytes(hashlib.sha256("\0".join(version).encode()).digest()[:7], "little") if version else 0
    return (-1 if size is None else int(size)), digest, 0, 0, 0
