"""Folders of image files. Imports no torch."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial

from fidtool.errors import InputError
from fidtool.sources.census import HEAD, Census
from fidtool.sources.contents import ContentError, LocalFiles, WholeFiles
from fidtool.sources.image_set import Found, ImageSet, Names, Prefixed


def list_folder(path: str, recursive: bool = True) -> ImageSet:
    """Lists the images below ``path``, sorted by relative name.

    Hidden names and ``__MACOSX`` are passed over. Symbolic links are followed; a directory that several links reach
    is listed once. A broken link with an image's name is listed, so that it is reported and not silently left out.

    Raises:
        InputError: no such folder, a folder that cannot be read, or one without images.
    """
    listed = time.time_ns()
    found: list[str] = []
    census = Census()
    try:
        folders = _Folders(path)
    except OSError as error:
        raise InputError(f"cannot list the folder {path}: {error.strerror or error}") from None
    while folders.waiting:
        prefix = folders.waiting.pop()
        for entry in _entries(os.path.join(path, prefix)):
            if census.hides(entry.name):
                continue
            name = f"{prefix}/{entry.name}" if prefix else entry.name
            if _is(entry.is_dir):
                census.folder()
                if recursive:
                    folders.add(name, entry.is_symlink())
            elif census.is_image(entry.name, entry.path, partial(_head, entry.path)):
                if _is(entry.is_file) or _is_broken_link(entry):
                    found.append(name)
                else:
                    census.other("no regular file")
        folders.next_depth()
    if not found:
        raise InputError(census.nothing_found(path, "folder", recursive))
    found.sort()
    names, prefix = Names(found), os.path.join(path, "")
    files = LocalFiles(Prefixed(prefix, names))
    reader, rest = WholeFiles(files), (census.found(folders=not recursive), census.beside(path))
    return ImageSet.of(Found(path, "folder", names, prefix, files, reader, None, listed, *rest))


class _Folders:
    """Directories still to visit, each once: real ones before those that only a symbolic link reaches."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._seen = {self._identity("")}
        self._links: list[str] = []
        self.waiting = [""]

    def _identity(self, name: str) -> tuple[int, int]:
        status = os.stat(os.path.join(self._root, name))
        return status.st_dev, status.st_ino

    def add(self, name: str, is_link: bool) -> None:
        if is_link:
            self._links.append(name)
        elif (identity := self._identity(name)) not in self._seen:
            self._seen.add(identity)
            self.waiting.append(name)

    def next_depth(self) -> None:
        """Once the real directories are done, takes up the links met so far, in sorted order."""
        if self.waiting:
            return
        links, self._links = sorted(self._links), []
        for name in links:
            self.add(name, is_link=False)


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    """One at a time: of a million, each takes more room than its name."""
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except OSError as error:
        raise InputError(f"cannot list the folder {folder}: {error.strerror or error}") from None


def _head(path: str) -> bytes:
    """A file's first bytes; none where it cannot be read. Nobody waits for a pipe."""
    try:
        with LocalFiles([path]).open(0) as handle:
            return handle.read(HEAD)
    except (OSError, ContentError):
        return b""


def _is(question: Callable[[], bool]) -> bool:
    """Asks a directory entry ``is_dir`` or ``is_file``; a link that points to itself is neither."""
    try:
        return question()
    except OSError:
        return False


def _is_broken_link(entry: os.DirEntry[str]) -> bool:
    return entry.is_symlink() and not os.path.exists(entry.path)
