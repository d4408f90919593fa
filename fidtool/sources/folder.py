"""Folders of image files, lists of their paths, and patterns that match several files."""

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
from fidtool.sources.contents import ContentError, LocalFiles
from fidtool.sources.image_set import ImageSet, ImageSource, Names, Prefixed
from fidtool.sources.readers import FileReader


def list_folder(path: str, recursive: bool = True) -> ImageSet:
    """Lists the images below ``path``, sorted by relative name.

    Hidden names and ``__MACOSX`` are ignored. Symbolic links are followed; a folder that several links point to is
    listed once. A broken link with an image suffix is listed, so that it causes an error instead of being ignored.

    Args:
        path: the folder.
        recursive: include subfolders.

    Raises:
        InputError: if the folder does not exist, cannot be read, or contains no images.
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
                    census.other("not a regular file")
        folders.next_depth()
    if not found:
        raise InputError(census.nothing_found(path, "folder", recursive))
    found.sort()
    names, prefix = Names(found), os.path.join(path, "")
    files = LocalFiles(Prefixed(prefix, names))
    reader, rest = FileReader(files), (census.found(folders=not recursive), census.beside(path))
    return ImageSet.of(ImageSource(path, "folder", names, prefix, files, reader, None, listed, *rest))


class _Folders:
    """Folders to visit, each once. Real folders come before those that only a symbolic link points to."""

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
        """When no real folders are left, adds those that the links found so far point to, in sorted order."""
        if self.waiting:
            return
        links, self._links = sorted(self._links), []
        for name in links:
            self.add(name, is_link=False)


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    # A generator, because a million entries would take much more memory than their names.
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except OSError as error:
        raise InputError(f"cannot list the folder {folder}: {error.strerror or error}") from None


def _head(path: str) -> bytes:
    """Returns a file's first bytes; empty if it cannot be read. Does not block on a pipe."""
    try:
        with LocalFiles([path]).open(0) as handle:
            return handle.read(HEAD)
    except (OSError, ContentError):
        return b""


def _is(question: Callable[[], bool]) -> bool:
    try:
        return question()
    except OSError:  # for example, a link that points to itself
        return False


def _is_broken_link(entry: os.DirEntry[str]) -> bool:
    return entry.is_symlink() and not os.path.exists(entry.path)


STDIN = "-"
_MARK = b"\xef\xbb\xbf"
"""The byte order mark that some editors write at the start of UTF-8 files."""
_LONGEST = 1 << 16
"""Maximum number of bytes in a line; no system has longer paths."""


def list_paths(path: str) -> ImageSet:
    """Lists the images named in a text file, one path per line, sorted by path.

    Paths are relative to the folder of the list. Empty lines are ignored. All files are read as images, regardless of
    their suffixes.

    Args:
        path: path of the list, whose text is in the file system's encoding. `STDIN` is standard input, whose paths are
            relative to the working directory.

    Raises:
        InputError: if the list cannot be read, is empty, contains a path twice, or contains something other than
            images on this machine.
    """
    began = time.time_ns()
    if path in (STDIN, "/dev/stdin"):
        if sys.stdin is None:  # closed by the shell (<&-)
            raise InputError("the list on standard input cannot be read: standard input is closed")
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
        raise InputError(f"{what} is empty")
    _check(lines, what, folder)
    if folder and any(os.path.isabs(line) for line in lines):
        lines, folder = [os.path.join(folder, line) for line in lines], ""
    names = Names(sorted(lines))
    files = LocalFiles(Prefixed(folder, names))
    return ImageSet.of(ImageSource(path, "list of files", names, folder, files, FileReader(files), None, began))


def read_lines(handle: IO[bytes], what: str) -> list[str]:
    """Returns the lines of a list of paths that are not empty.

    Args:
        handle: the open list.
        what: its name, for messages.

    Raises:
        InputError: if a line is too long or contains null bytes.
    """
    found: list[str] = []
    while line := handle.readline(_LONGEST):
        if b"\0" in line or len(line) == _LONGEST:
            raise InputError(
                f"{what} is not a list of paths: line {len(found) + 1} contains null bytes (as from find -print0) or "
                "is too long",
                "write one path per line",
            )
        if text := os.fsdecode(line.removeprefix(_MARK if not found else b"").rstrip(b"\r\n")):
            found.append(text)
    return found


def refuse_repeated_lines(meant: list[str], lines: list[str], what: str) -> None:
    """Refuses a list that names a file more than once.

    Args:
        meant: absolute path of each line.
        lines: the lines.
        what: name of the list, for the message.

    Raises:
        InputError: if two entries of ``meant`` are equal.
    """
    if len(set(meant)) < len(meant):
        twice, times = Counter(meant).most_common(1)[0]
        line = lines[meant.index(twice)]
        raise InputError(f"{what} names {line} {times} times:", "list each image once")


def _check(lines: list[str], what: str, folder: str) -> None:
    if address := next((line for line in lines if "://" in line), None):
        raise InputError(
            f"{what} contains the URL {redacted(address)}, but a local list can only name local files:",
            "store the list next to the images in the remote store",
            "pass the URL of their folder or archive as the set",
        )
    refuse_repeated_lines([os.path.abspath(os.path.join(folder, line)) for line in lines], lines, what)
    first = lines[0]
    meant = os.path.abspath(os.path.join(folder, first))
    if not os.path.lexists(meant):
        hint = ""
        if folder and os.path.lexists(first):
            hint = "; it exists in the working directory, but paths are relative to the folder of the list"
        raise InputError(f"{what} names {first}, which does not exist ({meant}){hint}")
    if os.path.isdir(meant) or meant.lower().endswith(ARCHIVE_SUFFIXES):
        raise InputError(
            f"{what} names {first}, which is not an image:",
            "list image files only",
            "pass several archives as a pattern such as 'shards-*.tar'",
        )


_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
URL_WILDCARD = re.compile(r"[*\[]")
"""``?`` is no wildcard in URLs, where it starts a query."""
_PADDED = re.compile(r"0\d+(?=\D*$)")
_SHARD_SUFFIXES = tuple(suffix for kind in FILE_KINDS if kind.sharded for suffix in kind.suffixes)
_MOST = 1_000_000


def is_pattern(path: str) -> bool:
    """Whether a path contains braces or wildcards. A local path that exists is not a pattern."""
    if "://" in path:
        return bool(_BRACES.search(path) or URL_WILDCARD.search(path))
    return bool(_BRACES.search(path) or glob.has_magic(path)) and not os.path.lexists(path)


def split_by_the_shell(paths: Sequence[str]) -> str:
    """Returns a warning if two of the sets look like shards of one, whose pattern the shell has expanded; else empty.

    Two paths look like shards if they differ only in a zero-padded number, and the numbers are consecutive.
    """
    for first, second in itertools.pairwise(paths):
        numbers = [_PADDED.search(path) for path in (first, second)]
        if None in numbers or not first.lower().endswith(_SHARD_SUFFIXES):
            continue
        one, other = (found for found in numbers if found is not None)
        same = first[: one.start()] == second[: other.start()] and first[one.end() :] == second[other.end() :]
        if same and int(other.group()) == int(one.group()) + 1:
            pattern = f"{first[: one.start()]}*{first[one.end() :]}"
            return f"{first} and {second} are treated as separate sets; for one set, quote the pattern: '{pattern}'"
    return ""


def expand(path: str) -> list[str]:
    """Returns the files that match a pattern, in the order of its braces; the matches of a wildcard are sorted.

    Raises:
        InputError: if there is no match, a file named by braces does not exist, a file is matched twice, or a folder
            is matched.
    """
    found: list[str] = []
    for name in expand_braces(path):
        matches = sorted(glob.glob(name)) if glob.has_magic(name) else [name] if os.path.lexists(name) else []
        if not matches:
            raise InputError(f"no such file: {name}" + ("" if name == path else f" (from {path})"))
        found += matches
    if len(set(found)) < len(found):
        raise InputError(f"{path} matches a file twice")
    if folders := [each for each in found if os.path.isdir(each)]:
        raise InputError(
            f"{path} matches a folder, {folders[0]}, but patterns are for files:",
            "pass one folder",
            "omit the quotes, so that the shell passes each folder as a set",
        )
    return found


def expand_braces(path: str) -> list[str]:
    """Expands braces as a shell does: ``a{00..02}`` to ``a00``, ``a01``, ``a02``, and ``a{b,c}`` to ``ab``, ``ac``.

    Raises:
        InputError: if a range is empty or there are too many names.
    """
    braces = _BRACES.search(path)
    if braces is None:
        return [path]
    before, inside, after = path[: braces.start()], braces.group(1), path[braces.end() :]
    if span := _RANGE.fullmatch(inside):
        first, last = (int(end) for end in span.groups())
        if not 0 <= last - first < _MOST:
            raise InputError(f"{{{inside}}} in {path} is an empty range or has more than {_MOST} numbers")
        choices = [str(number).zfill(len(span.group(1))) for number in range(first, last + 1)]
    else:
        choices = inside.split(",")
    rest = expand_braces(after)
    if len(choices) * len(rest) > _MOST:
        raise InputError(f"{path} matches more than {_MOST} files")
    return [f"{before}{choice}{end}" for choice in choices for end in rest]
