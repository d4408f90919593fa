"""Folders of image files, lists of their paths, and patterns that mean several files. Imports no torch."""

from __future__ import annotations

import glob
import itertools
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import IO

from fidtool.errors import InputError
from fidtool.redaction import redacted
from fidtool.sources.census import ARCHIVE_SUFFIXES, FILE_KINDS, HEAD, Census
from fidtool.sources.contents import ContentError, FileReader, LocalFiles
from fidtool.sources.image_set import ImageSet, ImageSource, Names, Prefixed


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
    reader, rest = FileReader(files), (census.found(folders=not recursive), census.beside(path))
    return ImageSet.of(ImageSource(path, "folder", names, prefix, files, reader, None, listed, *rest))


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


STDIN = "-"
_MARK = b"\xef\xbb\xbf"
"""What some editors put before UTF-8."""
_LONGEST = 1 << 16
"""Bytes of a line; no system has longer paths."""


def list_paths(path: str) -> ImageSet:
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
        lines, folder = read_lines(sys.stdin.buffer, "standard input"), ""
    else:
        folder = os.path.join(os.path.dirname(path), "")
        folder = "" if (folder == "/" and not path.startswith("/")) or path.startswith("/dev/") else folder
        try:
            with open(path, "rb") as handle:
                lines = read_lines(handle, path)
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
    return ImageSet.of(ImageSource(path, "list of files", names, folder, files, FileReader(files), None, began))


def read_lines(handle: IO[bytes], what: str) -> list[str]:
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


def refuse_repeated_lines(meant: list[str], lines: list[str], what: str) -> None:
    """Raises an InputError where two ``lines`` have the same in ``meant``."""
    if len(set(meant)) < len(meant):
        twice, times = Counter(meant).most_common(1)[0]
        line = lines[meant.index(twice)]
        raise InputError(f"{what} names {line} {times} times: an image counts once, so each line must be another")


def _check(lines: list[str], what: str, folder: str) -> None:
    if address := next((line for line in lines if "://" in line), None):
        raise InputError(
            f"{what} names {redacted(address)}, an address: a list on this machine names files on this machine",
            "put it beside the images in their store",
            "give their folder or archive there as the set",
        )
    refuse_repeated_lines([os.path.abspath(os.path.join(folder, line)) for line in lines], lines, what)
    first = lines[0]
    meant = os.path.abspath(os.path.join(folder, first))
    if not os.path.lexists(meant):
        here = (
            "; it is here, but paths are relative to the list's own folder" if folder and os.path.lexists(first) else ""
        )
        raise InputError(f"{what} names {first}, which is not there ({meant}){here}")
    if os.path.isdir(meant) or meant.lower().endswith(ARCHIVE_SUFFIXES):
        raise InputError(
            f"{what} names {first}, which is no image: a list is one of images; archives go together as a pattern, "
            "'shards-*.tar'"
        )


_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
URL_WILDCARD = re.compile(r"[*\[]")
"""``?`` is part of many addresses."""
_PADDED = re.compile(r"0\d+(?=\D*$)")
_SHARD_SUFFIXES = tuple(suffix for kind in FILE_KINDS if kind.sharded for suffix in kind.suffixes)
_MOST = 1_000_000


def is_pattern(path: str) -> bool:
    """Whether a name means several files: it has braces, or wildcards, and is not itself a file's."""
    if "://" in path:
        return bool(_BRACES.search(path) or URL_WILDCARD.search(path))
    return bool(_BRACES.search(path) or glob.has_magic(path)) and not os.path.lexists(path)


def split_by_the_shell(paths: Sequence[str]) -> str:
    """What to say where several sets look like parts of one; empty where they do not.

    Parts have numbers with zeros in front, one after the other, and nothing else tells them apart.
    """
    for first, second in itertools.pairwise(paths):
        numbers = [_PADDED.search(path) for path in (first, second)]
        if None in numbers or not first.lower().endswith(_SHARD_SUFFIXES):
            continue
        one, other = (found for found in numbers if found is not None)
        same = first[: one.start()] == second[: other.start()] and first[one.end() :] == second[other.end() :]
        if same and int(other.group()) == int(one.group()) + 1:
            pattern = f"{first[: one.start()]}*{first[one.end() :]}"
            return f"{first} and {second} are taken as sets of their own: for one set, quote the pattern: '{pattern}'"
    return ""


def expand(path: str) -> list[str]:
    """The files that a name means, in its order; those of a wildcard sorted.

    Raises:
        InputError: none is there, or one of those that braces name is not.
    """
    found: list[str] = []
    for name in expand_braces(path):
        matches = sorted(glob.glob(name)) if glob.has_magic(name) else [name] if os.path.lexists(name) else []
        if not matches:
            raise InputError(f"no such file: {name}" + ("" if name == path else f", which {path} names"))
        found += matches
    if len(set(found)) < len(found):
        raise InputError(f"{path} names a file twice")
    if folders := [each for each in found if os.path.isdir(each)]:
        raise InputError(f"{path} names a folder ({folders[0]}): patterns are for files", "give one folder without any")
    return found


def expand_braces(path: str) -> list[str]:
    """``a{0..2}`` as ``a0``, ``a1``, ``a2``, with zeros in front as they were typed; ``a{b,c}`` as ``ab``, ``ac``.

    Raises:
        InputError: a range that runs backwards, or names too many.
    """
    braces = _BRACES.search(path)
    if braces is None:
        return [path]
    before, inside, after = path[: braces.start()], braces.group(1), path[braces.end() :]
    if span := _RANGE.fullmatch(inside):
        first, last = (int(end) for end in span.groups())
        if not 0 <= last - first < _MOST:
            raise InputError(f"{{{inside}}} in {path} names no file, or too many")
        choices = [str(number).zfill(len(span.group(1))) for number in range(first, last + 1)]
    else:
        choices = inside.split(",")
    rest = expand_braces(after)
    if len(choices) * len(rest) > _MOST:
        raise InputError(f"{path} names more than {_MOST} files")
    return [f"{before}{choice}{end}" for choice in choices for end in rest]
