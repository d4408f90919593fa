"""What a remote store holds: lists of objects. Imports no torch."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from fidtool.errors import InputError
from fidtool.sources.asking import asked, file_system
from fidtool.sources.census import Census
from fidtool.sources.image_set import Found, ImageSet
from fidtool.sources.names import Names, Prefixed
from fidtool.sources.patterns import URL_WILDCARD, expand_braces
from fidtool.sources.remote import AT_ONCE, RemoteFiles, described, stamp_of
from fidtool.sources.whole import WholeFiles


def list_remote_folder(url: str, recursive: bool) -> ImageSet:
    """The images below a URL, sorted by relative name; hidden names are passed over as in a folder.

    Raises:
        InputError: nothing there, or no images.
        StoreError: the store does not answer.
    """
    began = time.time_ns()
    prefix = url if url.endswith("/") else f"{url}/"
    objects = _below(url, recursive)
    census = Census()
    images = {name: info for name, info in objects.items() if census.takes(name)}
    if not images:
        raise InputError(census.nothing_found(url, "place"))
    names = Names(sorted(images))
    stamps = np.array([stamp_of(images[name]) for name in names], dtype=np.int64)
    files = RemoteFiles(Prefixed(prefix, names), stamps)
    found = Found(url, "remote folder", names, prefix, files, WholeFiles(files), None, began, census.words())
    return ImageSet.of(found)


def _below(url: str, recursive: bool) -> dict[str, Mapping[str, Any]]:
    """The objects below a URL by their names relative to it."""
    store = file_system(url)
    # fsspec keeps listings, which may be older than the objects.
    store.invalidate_cache()
    root = store._strip_protocol(url).rstrip("/")
    found = asked(lambda: store.find(url, maxdepth=None if recursive else 1, detail=True), url)
    if not found:
        raise InputError(f"there is nothing below {url}; is the name right, and is it a place that can be listed?")
    return {path.removeprefix(root).lstrip("/"): info for path, info in found.items()}


def remote_files(url: str) -> RemoteFiles:
    """The object that a URL means, or several: ``shards-{000..127}.tar``, ``part-*.parquet``.

    Raises:
        InputError: one is not there, or may not be read.
        StoreError: the store does not answer.
    """
    urls: list[str] = []
    for each in expand_braces(url):
        matches = _matching(each) if URL_WILDCARD.search(each) else [each]
        if not matches:
            raise InputError(f"there is no {each}")
        urls += matches
    return RemoteFiles(urls, stamps_of(urls))


def stamps_of(urls: Sequence[str]) -> Any:
    """See `RemoteFiles`."""
    with ThreadPoolExecutor(AT_ONCE, "fidtool-ask") as pool:
        return np.array([stamp_of(each) for each in pool.map(described, urls)], dtype=np.int64)


def _matching(url: str) -> list[str]:
    store = file_system(url)
    store.invalidate_cache()
    found = asked(lambda: store.glob(url), url)
    return sorted(store.unstrip_protocol(path) for path in found)
