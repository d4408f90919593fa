"""Files in remote stores, accessed with fsspec: ``s3://``, ``https://``, ``gs://`` and so on."""

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

from fidtool.distributed.signals import in_background
from fidtool.download import MAX_TRIES, attempts
from fidtool.errors import InputError
from fidtool.sources.census import Census
from fidtool.sources.contents import (
    MOST_BYTES,
    ContentError,
    Extent,
    Files,
    RefusedError,
    Stamps,
    StoreError,
    head_of,
    message_of,
    opened,
    too_large,
)
from fidtool.sources.folder import URL_WILDCARD, expand_braces, read_entries, refuse_repeated_lines
from fidtool.sources.image_set import ImageSet, ImageSource, Names, Prefixed
from fidtool.sources.readers import FileReader
from fidtool.sources.signatures import JSON, PLAIN, refuse_foreign
from fidtool.sources.store_requests import (
    LISTING_TIMEOUT,
    file_system,
    raise_if_permanent,
    underlying_error,
    with_retries,
)

_REQUEST_TIMEOUT = 120.0
"""Deadline of a request in seconds, while `AT_ONCE` requests run concurrently."""
AT_ONCE = 32
"""Number of requests for whole objects to run concurrently."""
_READ_AHEAD = 1 << 23
"""Bytes to request beyond those that are read from a file."""
_BLOCK_BYTES = 1 << 22
"""Maximum number of bytes in a request for several extents."""
_MAX_GAP = 1 << 18
"""Maximum number of bytes between two extents that share a request. Fetching them is faster than a second request."""
_CONCURRENT_BLOCKS = 4
"""Number of requests for blocks of extents to run concurrently."""
_MOST_CHECKED = 1024
"""Maximum number of files to check for changes at the end of a run."""
_VERSIONS = ("ETag", "etag", "md5Hash", "LastModified", "mtime", "updated")
"""Keys with which stores describe an object's version."""


class RemoteFiles(Files):
    """Objects in a remote store.

    Args:
        paths: URLs of the objects, all in one store.
        stamps: int64 array of shape (objects, 5): the size of each object (-1 if unknown), a hash of its version (0 if
            the store states none), and zeros; see `Files.stamps`.
    """

    at_once = AT_ONCE
    remote = True
    timed = False

    def __init__(self, paths: Sequence[str], stamps: Stamps) -> None:
        self.paths, self._stamps = paths, stamps

    @property
    def versioned(self) -> bool:
        """Whether the store states the versions of all objects."""
        return bool(self._stamps[:, 1].all())

    def stamps(self) -> Stamps:
        return self._stamps

    def changed(self, stamps: Stamps) -> list[int]:
        def is_unchanged(file: int) -> bool:
            try:
                return stamp_of(object_info(self.paths[file])) == tuple(stamps[file].tolist())
            except InputError:  # it was deleted
                return False

        count = len(self.paths) if self.versioned else 0
        sampled = np.unique(np.linspace(0, count - 1, min(count, _MOST_CHECKED)).astype(np.int64)).tolist()
        with ThreadPoolExecutor(AT_ONCE, "fidtool-request") as pool:
            return [file for file, same in zip(sampled, pool.map(is_unchanged, sampled), strict=True) if not same]

    def fetch(self, extents: Sequence[Extent]) -> list[bytes | Exception]:
        # Empty extents are not requested: the store would return the whole object.
        found: list[bytes | Exception] = [self._too_large(extent) or b"" for extent in extents]
        left = [position for position, (_, _, length) in enumerate(extents) if length and not found[position]]
        for _ in attempts():
            answers = self._request([extents[position] for position in left]) if left else []
            retried = []
            for position, answer in zip(left, answers, strict=True):
                found[position] = self._checked(answer, extents[position])
                if isinstance(found[position], StoreError) and not isinstance(found[position], RefusedError):
                    retried.append(position)
            if not (left := retried):
                break
        return found

    def _too_large(self, extent: Extent) -> ContentError | None:
        file, _, length = extent
        length = int(self._stamps[file, 0]) if length < 0 else length
        return too_large(length) if length > MOST_BYTES else None

    def stream(self, extents: Sequence[Extent]) -> Iterator[bytes | Exception]:
        """Yields the bytes of each extent. Neighbouring extents share a request, and several requests run at a time."""
        blocks = _merged(extents)
        pending: deque[tuple[list[Extent], Future[list[bytes | Exception]]]] = deque()
        while True:
            for parts in itertools.islice(blocks, _CONCURRENT_BLOCKS - len(pending)):
                (file, first, _), (_, last, length) = parts[0], parts[-1]
                pending.append((parts, in_background(partial(self.fetch, [(file, first, last + length - first)]))))
            if not pending:
                return
            parts, future = pending.popleft()
            first = parts[0][1]
            (data,) = future.result()
            for _, start, length in parts:
                yield data if isinstance(data, Exception) else data[start - first : start - first + length]

    def _request(self, extents: Sequence[Extent]) -> list[Any]:
        """Returns the store's response to each extent: bytes or an exception."""
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
        file, start, length = extent
        if length >= 0:
            return start + length
        # None fetches the whole object. If its size is unknown, fetch just enough to see that it is too large.
        return None if self._stamps[file, 0] > 0 else MOST_BYTES + 1

    def _checked(self, answer: Any, extent: Extent) -> bytes | Exception:
        file, start, length = extent
        url = self.paths[file]
        if isinstance(answer, InputError):
            return answer
        if isinstance(answer, Exception):
            try:
                raise_if_permanent(answer)
            except PermissionError as error:  # not a ContentError: access to the other objects is denied as well
                return RefusedError(f"{url} cannot be read: {error.strerror or message_of(error)}")
            except OSError as error:
                return error
            except Exception as error:  # for example, an invalid URL
                return ContentError(f"it cannot be requested: {message_of(error)}")
            reason = message_of(underlying_error(answer))
            return StoreError(f"{url} could not be read after {MAX_TRIES} attempts: {reason}")
        data = bytes(answer)
        if 0 <= length < len(data):
            return RefusedError(f"{url}: its server ignores byte ranges and sends whole files: download the file first")
        if len(data) > MOST_BYTES:
            return too_large(len(data))
        if len(data) < length:
            return ContentError(f"the file ends after {start + len(data)} of {start + length} bytes")
        return data

    def open(self, file: int) -> BinaryIO:
        size = int(self._stamps[file, 0])
        if size < 0:
            raise OSError(5, "the server does not state its size: download the file first")
        from fsspec.spec import AbstractBufferedFile

        def read_range(start: int, end: int) -> bytes:
            (data,) = self.fetch([(file, start, end - start)])
            if isinstance(data, Exception):
                raise data
            return data

        class CachedFile(AbstractBufferedFile):  # type: ignore[misc]  # fsspec has no types
            _fetch_range = staticmethod(read_range)  # adds a deadline and retries

        # A buffered reader, because the readline of fsspec's file has no limit.
        return io.BufferedReader(
            CachedFile(None, self.paths[file], block_size=_READ_AHEAD, cache_type="readahead", size=size)
        )


def _merged(extents: Sequence[Extent]) -> Iterator[list[Extent]]:
    """Yields the extents of each request. They ascend, and none contains another, unless they are equal."""
    together: list[Extent] = []
    for file, start, length in extents:
        if together:
            (_, first, _), (same, last, size) = together[0], together[-1]
            if file != same or start - (last + size) > _MAX_GAP or start + length - first > _BLOCK_BYTES:
                yield together
                together = []
        together.append((file, start, length))
    if together:
        yield together


def object_info(url: str) -> Mapping[str, Any]:
    """Returns the store's metadata of an object."""
    store = file_system(url)
    store.invalidate_cache()  # fsspec caches listings, which may be out of date
    found: Mapping[str, Any] = with_retries(lambda: store.info(url), url)
    return found


def stamp_of(info: Mapping[str, Any]) -> tuple[int, int, int, int, int]:
    """Returns the stamp of an object from its metadata; see `RemoteFiles`."""
    size = info.get("size")
    version = [str(info[name]) for name in _VERSIONS if info.get(name)]
    digest = int.from_bytes(hashlib.sha256("\0".join(version).encode()).digest()[:7], "little") if version else 0
    return (-1 if size is None else int(size)), digest, 0, 0, 0


def list_remote_folder(url: str, recursive: bool) -> ImageSet:
    """Lists the images below a URL, sorted by relative name. Hidden names are ignored, as in a folder."""
    began = time.time_ns()
    prefix = url if url.endswith("/") else f"{url}/"
    objects = _objects_below(url, recursive)
    census = Census()
    images = {name: info for name, info in objects.items() if census.takes(name)}
    if not images:
        raise InputError(census.nothing_found(url, "location"))
    names = Names(sorted(images))
    stamps = np.array([stamp_of(images[name]) for name in names], dtype=np.int64)
    files = RemoteFiles(Prefixed(prefix, names), stamps)
    found = ImageSource(url, "remote folder", names, prefix, files, FileReader(files), None, began, census.found())
    return ImageSet.of(found)


def _objects_below(url: str, recursive: bool) -> dict[str, Mapping[str, Any]]:
    """Returns the metadata of the objects below a URL by relative name."""
    store = file_system(url)
    store.invalidate_cache()  # fsspec caches listings, which may be out of date
    root = store._strip_protocol(url).rstrip("/")
    found = with_retries(lambda: store.find(url, maxdepth=None if recursive else 1, detail=True), url, LISTING_TIMEOUT)
    if not found:
        raise InputError(f"there is nothing below {url}:", "check that the URL is correct and can be listed")
    # Remove one slash only: names in a store may begin with another one.
    return {path.removeprefix(root).removeprefix("/"): info for path, info in found.items()}


def remote_files(url: str) -> RemoteFiles:
    """Returns the object that a URL names, or those that match a pattern such as ``shards-{000..127}.tar``."""
    urls: list[str] = []
    for each in expand_braces(url):
        matches = [each]
        if URL_WILDCARD.search(each) and not _exists(each):
            store = file_system(each)
            store.invalidate_cache()
            found = with_retries(partial(store.glob, each), each, LISTING_TIMEOUT)
            matches = sorted(map(store.unstrip_protocol, found))
        if not matches:
            raise InputError(
                f"no object matches {each}, or its location cannot be listed; braces ({{000..127}}) need no listing"
            )
        urls += matches
    if len(set(urls)) < len(urls):
        raise InputError(f"{url} matches an object twice")
    return RemoteFiles(urls, stamps_of(urls))


def stamps_of(urls: Sequence[str]) -> Any:
    """Queries the stamps of these objects; see `RemoteFiles`."""
    with ThreadPoolExecutor(AT_ONCE, "fidtool-request") as pool:
        return np.array([stamp_of(each) for each in pool.map(object_info, urls)], dtype=np.int64)


def _exists(url: str) -> bool:
    """Whether a pattern with brackets is also the name of an object."""
    if "[" not in url:
        return False
    try:
        return bool(object_info(url))
    except InputError:
        return False


def list_remote_paths(path: str, files: Files, suffix: str, column: str) -> ImageSet:
    """Lists the images named in a list, the only one of ``files``, by URLs or relative to the list's own URL.

    The store is not queried for each image, so missing and changed images are not detected here.
    """
    began, url = time.time_ns(), files.paths[0]
    refuse_foreign(f"the list {url}", head_of(files) or b"\0", [PLAIN, *[JSON] * (suffix == ".jsonl")])
    with opened(files, 0) as handle:
        entries = read_entries(handle, f"the list {url}", suffix, column)
    prefix = f"{url.rpartition('/')[0]}/"
    lines = [line for line, _ in entries]
    whole = [line if "://" in line else f"{prefix}{line.removeprefix('./')}" for line in lines]
    for line in lines:
        if "://" in line and _kind(line) != _kind(url):
            raise InputError(f"the list {url} names {line}, which is in a different kind of store")
    refuse_repeated_lines([posixpath.normpath(each) for each in whole], entries, f"the list {url}")
    if any("://" in line for line in lines):
        lines, prefix = whole, ""
    ordered = sorted((line, number) for line, (_, number) in zip(lines, entries, strict=True))
    names, numbers = Names(line for line, _ in ordered), [number for _, number in ordered]
    objects = RemoteFiles(Prefixed(prefix, names), np.zeros((len(names), 5), dtype=np.int64))
    reader = FileReader(objects)
    return ImageSet.of(ImageSource(path, "list of files", names, prefix, objects, reader, None, began, lines=numbers))


def _kind(url: str) -> str:
    """Returns the protocol of a URL, with http for https."""
    return url.partition("://")[0].lower().replace("https", "http")
