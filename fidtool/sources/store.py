"""What a remote store holds: lists of objects. Imports no torch."""

from __future__ import annotations

import posixpath
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from fidtool.errors import InputError
from fidtool.sources.asking import LISTING, asked, file_system
from fidtool.sources.census import Census
from fidtool.sources.contents import Files, Stamps, WholeFiles, readable
from fidtool.sources.folder import URL_WILDCARD, expand_braces, read_lines, refuse_repeated_lines
from fidtool.sources.image_set import Found, ImageSet, Names, Prefixed
from fidtool.sources.remote import AT_ONCE, RemoteFiles, described, stamp_of


def list_remote_folder(url: str, recursive: bool) -> ImageSet:
    """The images below a URL, sorted by relative name; hidden names are passed over as in a folder.

    Raises:
        InputError: nothing there, or no images.
        StoreError: the store does not answer.
    """
    began = time.time_ns()
    prefix = url if url.endswith("/") else f"{url}/"
    objects = _below(url, recursive)
    census = Census(looks=False)
    images = {name: info for name, info in objects.items() if census.takes(name, name, bytes)}
    if not images:
        raise InputError(census.nothing_found(url, "place"))
    names = Names(sorted(images))
    stamps = np.array([stamp_of(images[name]) for name in names], dtype=np.int64)
    files = RemoteFolder(url, recursive, prefix, names, stamps)
    found = Found(url, "remote folder", names, prefix, files, WholeFiles(files), None, began, census.found())
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
        now = _below(self._url, self._recursive)
        return [
            file
            for file, name in enumerate(self._names)
            if name not in now or stamp_of(now[name]) != tuple(stamps[file].tolist())
        ]


def _below(url: str, recursive: bool) -> dict[str, Mapping[str, Any]]:
    """The objects below a URL by their names relative to it."""
    store = file_system(url)
    # fsspec keeps listings, which may be older than the objects.
    store.invalidate_cache()
    root = store._strip_protocol(url).rstrip("/")
    found = asked(lambda: store.find(url, maxdepth=None if recursive else 1, detail=True), url, LISTING)
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
    with ThreadPoolExecutor(AT_ONCE, "fidtool-ask") as pool:
        return np.array([stamp_of(each) for each in pool.map(described, urls)], dtype=np.int64)


def _is_there(url: str) -> bool:
    """Whether what looks like a pattern is an object's name: brackets may be part of it."""
    if "[" not in url:
        return False
    try:
        return bool(described(url))
    except InputError:
        return False


def _matching(url: str) -> list[str]:
    store = file_system(url)
    store.invalidate_cache()
    found = asked(lambda: store.glob(url), url, LISTING)
    return sorted(store.unstrip_protocol(path) for path in found)


def list_remote(url: str, files: Files) -> ImageSet:
    """The images that a list in a store names, by addresses relative to its own, or whole ones.

    The store is not asked for each: nobody knows whether they are there, nor whether they change.

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
    return ImageSet.of(Found(url, "list of files", names, prefix, objects, WholeFiles(objects), None, began))


def _kind(url: str) -> str:
    """Which protocol a URL has; https is http."""
    return url.partition("://")[0].lower().replace("https", "http")
