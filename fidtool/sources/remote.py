"""Files in remote stores, through fsspec: ``s3://``, ``https://``, ``gs://`` and so on. Imports no torch."""

from __future__ import annotations

import hashlib
import io
import itertools
import posixpath
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fidtool.errors import InputError
from fidtool.sources.census import Census
from fidtool.sources.contents import (
    MOST_BYTES,
    ContentError,
    Extent,
    FileReader,
    Files,
    RefusedError,
    Stamps,
    StoreError,
    readable,
    message_of,
)
from fidtool.sources.folder import URL_WILDCARD, expand_braces, read_lines, refuse_repeated_lines
from fidtool.sources.image_set import ImageSet, ImageSource, Names, Prefixed
from fidtool.sources.store_requests import (
    LISTING_TIMEOUT,
    MAX_TRIES,
    back_off,
    file_system,
    in_background,
    raise_if_permanent,
    underlying_error,
    with_retries,
)

_REQUEST_TIMEOUT = 120.0
"""Deadline of one request in seconds, with `AT_ONCE` requests at a time."""
AT_ONCE = 32
_READ_AHEAD = 1 << 23
"""Bytes to request beyond those that are read from a file."""
_BLOCK_BYTES = 1 << 22
"""Most bytes of a request for several extents."""
_MAX_GAP = 1 << 18
"""Most bytes between two extents of one request: a second request would take longer than fetching them."""
_CONCURRENT_BLOCKS = 4
"""Number of requests for extents to make at a time."""
_MOST_CHECKED = 1024
"""Most files to check for changes at the end of a run."""
_VERSIONS = ("ETag", "etag", "md5Hash", "LastModified", "mtime", "updated")
"""Names under which stores describe an object's version."""


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
        sampled = np.unique(np.linspace(0, len(self.paths) - 1, _MOST_CHECKED).astype(np.int64)).tolist()
        with ThreadPoolExecutor(AT_ONCE, "fidtool-request") as pool:
            now = list(pool.map(self._stamp_now, sampled))
        return [file for file, stamp in zip(sampled, now, strict=True) if stamp != tuple(stamps[file].tolist())]

    def _stamp_now(self, file: int) -> tuple[int, ...]:
        try:
            return stamp_of(object_info(self.paths[file]))
        except InputError:  # it has gone
            return ()

    def fetch(self, extents: Sequence[Extent]) -> list[bytes | Exception]:
        # A request for nothing would bring everything.
        found: list[bytes | Exception] = [self._too_large(extent) or b"" for extent in extents]
        left = [place for place, (_, _, length) in enumerate(extents) if length and not found[place]]
        for attempt in range(1, MAX_TRIES + 1):
            if not left:
                break
            answers = self._request([extents[place] for place in left])
            again = []
            for place, answer in zip(left, answers, strict=True):
                found[place] = self._checked(answer, extents[place])
                if isinstance(found[place], StoreError) and not isinstance(found[place], RefusedError):
                    again.append(place)
            left = again
            if left and attempt < MAX_TRIES:
                back_off(attempt)
        return found

    def _too_large(self, extent: Extent) -> ContentError | None:
        file, _, length = extent
        length = int(self._stamps[file, 0]) if length < 0 else length
        if length <= MOST_BYTES:
            return None
        return _too_large(length)

    def stream(self, extents: Sequence[Extent]) -> Iterator[bytes | Exception]:
        """Extents near each other come with one request, and several requests are made at a time."""
        blocks = _merged(extents)
        pending: deque[tuple[Extent, list[Extent], Future[list[bytes | Exception]]]] = deque()
        while True:
            for block, parts in itertools.islice(blocks, _CONCURRENT_BLOCKS - len(pending)):
                pending.append((block, parts, in_background(partial(self.fetch, [block]))))
            if not pending:
                return
            (_, first, _), parts, future = pending.popleft()
            (data,) = future.result()
            for _, start, length in parts:
                yield data if isinstance(data, Exception) else data[start - first : start - first + length]

    def _request(self, extents: Sequence[Extent]) -> list[Any]:
        """The store's answers, exceptions among them."""
        urls = [self.paths[file] for file, _, _ in extents]
        ends = [self._end(extent) for extent in extents]
        starts = [None if end is None else start for (_, start, _), end in zip(extents, ends, strict=True)]
        store = file_system(urls[0])
        # File systems without an async implementation take no timeout.
        timeout = {"timeout": _REQUEST_TIMEOUT} if store.async_impl else {}
        try:
            answers = store.cat_ranges(urls, starts, ends, on_error="return", **timeout)
        except Exception as error:
            return [error] * len(extents)
        return list(answers)

    def _end(self, extent: Extent) -> int | None:
        """The byte behind a piece; None behind a whole object, but of one of unknown size no more than is allowed."""
        file, start, length = extent
        if length >= 0:
            return start + length
        return None if self._stamps[file, 0] > 0 else MOST_BYTES + 1

    def _checked(self, answer: Any, extent: Extent) -> bytes | Exception:
        file, start, length = extent
        url = self.paths[file]
        if isinstance(answer, InputError):
            return answer
        if isinstance(answer, Exception):
            try:
                raise_if_permanent(answer)
            except PermissionError as error:  # access to the other objects is denied as well
                return RefusedError(f"{url} may not be read: {error.strerror or message_of(error)}")
            except OSError as error:
                return error
            except Exception as error:  # an address that is none
                return ContentError(f"it cannot be asked for: {message_of(error)}")
            return StoreError(f"{url} could not be read in {MAX_TRIES} tries: {message_of(underlying_error(answer))}")
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
        from fsspec.spec import AbstractBufferedFile

        def read_range(start: int, end: int) -> bytes:
            (data,) = self.fetch([(file, start, end - start)])
            if isinstance(data, Exception):
                raise data
            return data

        class CachedFile(AbstractBufferedFile):  # type: ignore[misc]  # fsspec has no types
            _fetch_range = staticmethod(read_range)  # its own knows neither deadlines nor second tries

        # Its readline has no limit; a buffered reader's has.
        return io.BufferedReader(
            CachedFile(None, self.paths[file], block_size=_READ_AHEAD, cache_type="readahead", size=size)
        )

    def expecting(self, sizes: NDArray[np.int64]) -> RemoteFiles:
        return self


def _too_large(length: int) -> ContentError:
    return ContentError(f"it has {length} bytes, and no image file has more than {MOST_BYTES}")


def _merged(extents: Sequence[Extent]) -> Iterator[tuple[Extent, list[Extent]]]:
    """Extents to request, each with the extents in it. No extent may lie within another, unless they are equal."""
    from fsspec.utils import merge_offset_ranges

    files, starts, ends = [], [], []
    for file, start, length in extents:
        files.append(file)
        starts.append(start)
        ends.append(start + length)
    left = deque(extents)
    blocks = merge_offset_ranges(files, starts, ends, max_gap=_MAX_GAP, max_block=_BLOCK_BYTES, sort=False)
    for file, first, end in zip(*blocks, strict=True):
        parts = []
        while left and left[0][0] == file and left[0][1] + left[0][2] <= end:
            parts.append(left.popleft())
        yield (file, first, end - first), parts


def object_info(url: str) -> Mapping[str, Any]:
    """What the store says of an object.

    Raises:
        InputError, StoreError: see `fidtool.sources.store_requests.with_retries`.
    """
    store = file_system(url)
    # fsspec keeps what it has listed, which may be older than the object.
    store.invalidate_cache()
    found: Mapping[str, Any] = with_retries(lambda: store.info(url), url)
    return found


def stamp_of(info: Mapping[str, Any]) -> tuple[int, int, int, int, int]:
    """See `RemoteFiles`."""
    size = info.get("size")
    version = [str(info[name]) for name in _VERSIONS if info.get(name)]
    digest = int.from_bytes(hashlib.sha256("\0".join(version).encode()).digest()[:7], "little") if version else 0
    return (-1 if size is None else int(size)), digest, 0, 0, 0


def list_remote_folder(url: str, recursive: bool) -> ImageSet:
    """The images below a URL, sorted by relative name; hidden names are passed over as in a folder.

    Raises:
        InputError: nothing there, or no images.
        StoreError: the store does not answer.
    """
    began = time.time_ns()
    prefix = url if url.endswith("/") else f"{url}/"
    objects = _objects_below(url, recursive)
    census = Census(looks=False)
    images = {name: info for name, info in objects.items() if census.takes(name, name, bytes)}
    if not images:
        raise InputError(census.nothing_found(url, "location"))
    names = Names(sorted(images))
    stamps = np.array([stamp_of(images[name]) for name in names], dtype=np.int64)
    files = RemoteFolder(url, recursive, prefix, names, stamps)
    found = ImageSource(url, "remote folder", names, prefix, files, FileReader(files), None, began, census.found())
    return ImageSet.of(found)


class RemoteFolder(RemoteFiles):
    """What there is below a URL.

    Args:
        url, recursive: see `list_remote_folder`.
        prefix: what stands before the names.
        names: of the objects.
        stamps: see `RemoteFiles`.
    """

    def __init__(self, url: str, recursive: bool, prefix: str, names: Names, stamps: Stamps) -> None:
        super().__init__(Prefixed(prefix, names), stamps)
        self._url, self._recursive, self._names = url, recursive, names

    def changed(self, stamps: Stamps) -> list[int]:
        """To list them once more takes as long as the first time did, and tells of each."""
        if not self.versioned:
            return []
        now = _objects_below(self._url, self._recursive)
        return [
            file
            for file, name in enumerate(self._names)
            if name not in now or stamp_of(now[name]) != tuple(stamps[file].tolist())
        ]


def _objects_below(url: str, recursive: bool) -> dict[str, Mapping[str, Any]]:
    """The objects below a URL by their names relative to it."""
    store = file_system(url)
    # fsspec keeps listings, which may be older than the objects.
    store.invalidate_cache()
    root = store._strip_protocol(url).rstrip("/")
    found = with_retries(lambda: store.find(url, maxdepth=None if recursive else 1, detail=True), url, LISTING_TIMEOUT)
    if not found:
        raise InputError(f"there is nothing below {url}; is the name right, and is it a place that can be listed?")
    # One slash is between them: stores have names that begin with another.
    return {path.removeprefix(root).removeprefix("/"): info for path, info in found.items()}


def remote_files(url: str) -> RemoteFiles:
    """The object that a URL means, or several: ``shards-{000..127}.tar``, ``part-*.parquet``.

    Raises:
        InputError: one is not there, or may not be read.
        StoreError: the store does not answer.
    """
    urls: list[str] = []
    for each in expand_braces(url):
        matches = _matching(each) if URL_WILDCARD.search(each) and not _is_there(each) else [each]
        if not matches:
            raise InputError(f"there is no {each}, or its place has no list; braces ({{000..127}}) need none")
        urls += matches
    if len(set(urls)) < len(urls):
        raise InputError(f"{url} names an object twice")
    return RemoteFiles(urls, stamps_of(urls))


def stamps_of(urls: Sequence[str]) -> Any:
    """See `RemoteFiles`."""
    with ThreadPoolExecutor(AT_ONCE, "fidtool-request") as pool:
        return np.array([stamp_of(each) for each in pool.map(object_info, urls)], dtype=np.int64)


def _is_there(url: str) -> bool:
    """Whether what looks like a pattern is an object's name: brackets may be part of it."""
    if "[" not in url:
        return False
    try:
        return bool(object_info(url))
    except InputError:
        return False


def _matching(url: str) -> list[str]:
    store = file_system(url)
    store.invalidate_cache()
    found = with_retries(lambda: store.glob(url), url, LISTING_TIMEOUT)
    return sorted(store.unstrip_protocol(path) for path in found)


def list_remote_paths(url: str, files: Files) -> ImageSet:
    """The images that a list in a store names, by addresses relative to its own, or whole ones.

    The store is not queried for each: whether they exist or change is not known.

    Args:
        url: of the list.
        files: what opens it.

    Raises:
        InputError, StoreError: it cannot be read, names nothing, or an address twice.
    """
    began = time.time_ns()
    with readable(url), files.open(0) as handle:
        lines = read_lines(handle, url)
    if not lines:
        raise InputError(f"the list {url} names no image: it is empty")
    prefix = f"{url.rpartition('/')[0]}/"
    whole = [line if "://" in line else f"{prefix}{line.removeprefix('./')}" for line in lines]
    for line in lines:
        if "://" in line and _kind(line) != _kind(url):
            raise InputError(f"the list {url} names {line}, which is in another kind of store: that is not followed")
    refuse_repeated_lines([posixpath.normpath(each) for each in whole], lines, f"the list {url}")
    if any("://" in line for line in lines):
        lines, prefix = whole, ""
    names = Names(sorted(lines))
    stamps = np.zeros((len(names), 5), dtype=np.int64)
    objects = RemoteFiles(Prefixed(prefix, names), stamps)
    return ImageSet.of(ImageSource(url, "list of files", names, prefix, objects, FileReader(objects), None, began))


def _kind(url: str) -> str:
    """Which protocol a URL has; https is http."""
    return url.partition("://")[0].lower().replace("https", "http")
