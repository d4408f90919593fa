"""Lists of paths: a text file, a line an image, or the same from standard input. Imports no torch."""

from __future__ import annotations

import os
import posixpath
import sys
import time
from collections import Counter
from typing import IO

import numpy as np

from fidtool.errors import InputError
from fidtool.redaction import redacted
from fidtool.sources.contents import Files, LocalFiles, WholeFiles, readable
from fidtool.sources.image_set import Found, ImageSet, Names, Prefixed
from fidtool.sources.remote import RemoteFiles

STDIN = "-"
_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".npz", ".npy", ".parquet")
_MARK = b"\xef\xbb\xbf"
"""What some editors put before UTF-8."""
_LONGEST = 1 << 16
"""Bytes of a line; no system has longer paths."""


def list_listed(path: str) -> ImageSet:
    """The images whose paths a text names, in sorted order; paths are relative to the text's own folder.

    Empty lines are passed over; whatever the paths end with, they are read as images.

    Args:
        path: of the text, in the file system's encoding; `STDIN` is standard input, relative to where the program runs.

    Raises:
        InputError: it cannot be read, names nothing, or a path twice.
    """
    began = time.time_ns()
    if path in (STDIN, "/dev/stdin"):
        if sys.stdin is None:  # a shell's <&-
            raise InputError("the list on standard input cannot be read: it is closed")
        lines, folder = _lines(sys.stdin.buffer, "standard input"), ""
    else:
        folder = os.path.join(os.path.dirname(path), "")
        folder = "" if (folder == "/" and not path.startswith("/")) or path.startswith("/dev/") else folder
        try:
            with open(path, "rb") as handle:
                lines = _lines(handle, path)
        except OSError as error:
            raise InputError(f"the list {path} cannot be read: {error.strerror or error}") from None
    what = "standard input" if path == STDIN else f"the list {path}"
    if not lines:
        raise InputError(f"{what} names no image: it is empty")
    _check(lines, what, folder)
    if folder and any(os.path.isabs(line) for line in lines):
        lines, folder = [os.path.join(folder, line) for line in lines], ""
    names = Names(sorted(lines))
    files = LocalFiles(Prefixed(folder, names))
    return ImageSet.of(Found(path, "list of files", names, folder, files, WholeFiles(files), None, began))


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
        lines = _lines(handle, url)
    if not lines:
        raise InputError(f"the list {url} names no image: it is empty")
    prefix = f"{url.rpartition('/')[0]}/"
    whole = [line if "://" in line else f"{prefix}{line.removeprefix('./')}" for line in lines]
    for line in lines:
        if "://" in line and _kind(line) != _kind(url):
            raise InputError(f"the list {url} names {line}, which is in another kind of store: that is not followed")
    _refuse_doubles([posixpath.normpath(each) for each in whole], lines, f"the list {url}")
    if any("://" in line for line in lines):
        lines, prefix = whole, ""
    names = Names(sorted(lines))
    stamps = np.zeros((len(names), 5), dtype=np.int64)
    objects = RemoteFiles(Prefixed(prefix, names), stamps)
    return ImageSet.of(Found(url, "list of files", names, prefix, objects, WholeFiles(objects), None, began))


def _kind(url: str) -> str:
    """Which protocol a URL has; https is http."""
    return url.partition("://")[0].lower().replace("https", "http")


def _lines(handle: IO[bytes], what: str) -> list[str]:
    found: list[str] = []
    while line := handle.readline(_LONGEST):
        if b"\0" in line or len(line) == _LONGEST:
            raise InputError(
                f"{what} is no list of paths: line {len(found) + 1} holds zeros (as of find -print0) or is too "
                "long; it should have one path a line"
            )
        if text := os.fsdecode(line.removeprefix(_MARK if not found else b"").rstrip(b"\r\n")):
            found.append(text)
    return found


def _refuse_doubles(meant: list[str], lines: list[str], what: str) -> None:
    """Raises an InputError where two ``lines`` have the same in ``meant``."""
    if len(set(meant)) < len(meant):
        twice, times = Counter(meant).most_common(1)[0]
        line = lines[meant.index(twice)]
        raise InputError(f"{what} names {line} {times} times: an image counts once, so each line must be another")


def _check(lines: list[str], what: str, folder: str) -> None:
    if address := next((line for line in lines if "://" in line), None):
        raise InputError(
            f"{what} names {redacted(address)}, an address: a list on this machine names files on this machine; put it "
            "beside the images in their store, or give their folder or archive there as the set"
        )
    _refuse_doubles([os.path.abspath(os.path.join(folder, line)) for line in lines], lines, what)
    first = lines[0]
    meant = os.path.abspath(os.path.join(folder, first))
    if not os.path.lexists(meant):
        here = (
            "; it is here, but paths are relative to the list's own folder" if folder and os.path.lexists(first) else ""
        )
        raise InputError(f"{what} names {first}, which is not there ({meant}){here}")
    if os.path.isdir(meant) or meant.lower().endswith(_ARCHIVES):
        raise InputError(
            f"{what} names {first}, which is no image: a list is one of images; archives go together as a pattern, "
            "'shards-*.tar'"
        )
