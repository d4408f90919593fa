"""Folders as ordered lists of images. Imports no torch."""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fidtool.errors import InputError
from fidtool.images.plan import canonical_order

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".gif"})
"""File names that count as images, compared without case."""
_IGNORED_FOLDERS = frozenset({"__MACOSX"})


Stamp = tuple[int, int, int, int, int]
"""A file's size in bytes, mtime and ctime in nanoseconds, device and inode; all -1 for one that has gone."""


@dataclass(frozen=True)
class BadFile:
    """An image file that cannot be used.

    Attributes:
        file: its path, as the user typed the folder's.
        reason: what is wrong with it.
    """

    file: str
    reason: str


@dataclass(frozen=True)
class ImageFolder:
    """The images of one folder, in sorted order until `draw` picks and permutes them.

    Attributes:
        path: the folder as the user typed it.
        names: paths of the images relative to the folder, with forward slashes.
        stamps: see `Stamp`, for each image. Only where the folder was listed: the other ranks get an empty tuple.
        found: number of images in the folder, before `draw`.
        listed: when the listing began, in nanoseconds since 1970.
    """

    path: str
    names: tuple[str, ...]
    stamps: tuple[Stamp, ...] = field(repr=False)
    found: int
    listed: int

    def __len__(self) -> int:
        return len(self.names)

    def file(self, index: int) -> str:
        """Path of image ``index``."""
        return os.path.join(self.path, self.names[index])

    def read(self, index: int) -> bytes:
        """Encoded bytes of image ``index``.

        Raises:
            OSError: the file cannot be read.
        """
        with open(self.file(index), "rb") as handle:
            return handle.read()

    def draw(self, num: int | None, seed: int) -> ImageFolder:
        """The images in canonical order, all of them or the first ``num``.

        Raises:
            InputError: the folder has fewer than ``num`` images.
        """
        if num is not None and num > len(self):
            raise InputError(f"--num asks for {num} images but {self.path} has {len(self)}")
        order = canonical_order(len(self), seed)[:num]
        return replace(
            self,
            names=tuple(self.names[i] for i in order),
            stamps=tuple(self.stamps[i] for i in order),
        )

    def only(self, names: Collection[str]) -> ImageFolder:
        """The images of these names, in the order of this list."""
        kept = [index for index, name in enumerate(self.names) if name in names]
        return replace(
            self,
            names=tuple(self.names[index] for index in kept),
            stamps=tuple(self.stamps[index] for index in kept),
        )

    def identity(self) -> str:
        """SHA-256 of the folder's real path and of the images' names in this order."""
        sha = hashlib.sha256(os.fsencode(os.path.realpath(self.path)) + b"\0")
        for name in self.names:
            sha.update(os.fsencode(name) + b"\0")
        return sha.hexdigest()

    def marks(self, batches: Sequence[range]) -> NDArray[np.uint64]:
        """A number for each batch that changes when one of its files does: of sizes, mtimes and ctimes.

        What a remount or another machine may change (inode, device) is left out.
        """
        marks = np.zeros(len(batches), dtype=np.uint64)
        for number, batch in enumerate(batches):
            stamps = np.array([self.stamps[index][:3] for index in batch], dtype=np.int64)
            marks[number] = int.from_bytes(hashlib.sha256(stamps.tobytes()).digest()[:8], "little")
        return marks

    def changed(self) -> list[str]:
        """Names of the files that are no longer as they were when the folder was listed."""
        return [name for i, name in enumerate(self.names) if _stamp(self.file(i)) != self.stamps[i]]

    def without_stamps(self) -> ImageFolder:
        """What another rank needs of this list."""
        return replace(self, stamps=())


def list_folder(path: str, recursive: bool = True) -> ImageFolder:
    """Lists the images below ``path``, sorted by relative name.

    Hidden names and ``__MACOSX`` are passed over. Symbolic links are followed; a directory that several links reach
    is listed once. A broken link with an image's name is listed, so that it is reported and not silently left out.

    Raises:
        InputError: no such folder, a folder that cannot be read, or one without images.
    """
    listed = time.time_ns()
    names: list[str] = []
    others: Counter[str] = Counter()
    try:
        folders = _Folders(path)
    except OSError as error:
        raise InputError(f"cannot list the folder {path}: {error.strerror or error}") from None
    while folders.waiting:
        prefix = folders.waiting.pop()
        for entry in _entries(os.path.join(path, prefix)):
            name = f"{prefix}/{entry.name}" if prefix else entry.name
            if entry.name.startswith(".") or entry.name in _IGNORED_FOLDERS:
                others["hidden"] += 1
            elif _is(entry.is_dir):
                others["folder"] += 1
                if recursive:
                    folders.add(name, entry.is_symlink())
            elif Path(entry.name).suffix.lower() in IMAGE_SUFFIXES and (_is(entry.is_file) or _is_broken_link(entry)):
                names.append(name)
            else:
                others[Path(entry.name).suffix.lower() or "no suffix"] += 1
        folders.next_depth()
    if not names:
        raise InputError(_nothing_found(path, others, recursive))
    names.sort()
    return ImageFolder(
        path, tuple(names), tuple(_stamp(os.path.join(path, name)) for name in names), len(names), listed
    )


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


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise InputError(f"cannot list the folder {folder}: {error.strerror or error}") from None


def _is(question: Callable[[], bool]) -> bool:
    """Asks a directory entry ``is_dir`` or ``is_file``; a link that points to itself is neither."""
    try:
        return question()
    except OSError:
        return False


def _is_broken_link(entry: os.DirEntry[str]) -> bool:
    return entry.is_symlink() and not os.path.exists(entry.path)


def _stamp(file: str) -> Stamp:
    try:
        status = os.stat(file)
    except OSError:
        return -1, -1, -1, -1, -1
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_dev, status.st_ino


def _nothing_found(path: str, others: Counter[str], recursive: bool) -> str:
    if not others:
        return f"no images in {path}: the folder is empty"
    folders = others.pop("folder", 0)
    hidden = others.pop("hidden", 0)
    kinds = [f"{count} {'file' if count == 1 else 'files'} ({suffix})" for suffix, count in others.most_common(4)]
    if folders:
        kinds.append(f"{folders} subfolder{'s' if folders > 1 else ''}")
    if hidden:
        kinds.append(f"{hidden} hidden")
    hint = "; drop --no-recursive to look into the subfolders" if folders and not recursive else ""
    known = " ".join(sorted(suffix[1:] for suffix in IMAGE_SUFFIXES))
    return f"no images in {path}: it holds {', '.join(kinds)}; images are files named {known}{hint}"
