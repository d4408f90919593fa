"""Folders of image files, lists of their paths, and patterns that match several files."""

from __future__ import annotations

import glob
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import IO

from fidtool.errors import InputError
from fidtool.sources.census import Census
from fidtool.sources.contents import LocalFiles
from fidtool.sources.image_set import ImageSet, ImageSource, Names, Prefixed
from fidtool.sources.readers import FileReader


def list_folder(path: str, recursive: bool = True) -> ImageSet:
    """Lists the images below ``path``, sorted by relative name.

    Hidden names and ``__MACOSX`` are ignored. Symbolic links are followed; a folder that several links point to is
    listed once. A broken link with an image suffix is listed, so that it causes an error instead of being ignored.
    """
    listed = time.time_ns()
    census = Census()
    found = sorted(_images_below(path, recursive, census))
    if not found:
        raise InputError(census.nothing_found(path, "folder", recursive))
    names, prefix = Names(found), os.path.join(path, "")
    files = LocalFiles(Prefixed(prefix, names))
    reader, rest = FileReader(files), (census.found(folders=not recursive), census.beside(path))
    return ImageSet.of(ImageSource(path, "folder", names, prefix, files, reader, None, listed, *rest))


def _images_below(path: str, recursive: bool, census: Census) -> Iterator[str]:
    """Yields the relative names of the images in a folder, in any order. A folder is listed once, not by a link."""
    seen: set[tuple[int, int]] = set()
    waiting, links = _unseen(path, [""], seen), []
    while waiting:
        prefix = waiting.pop()
        for entry in _entries(os.path.join(path, prefix)):
            name = f"{prefix}/{entry.name}" if prefix else entry.name
            if census.hides(entry.name):
                continue
            if not _is(entry.is_dir):
                if _is_image(entry, census):
                    yield name
                continue
            census.folder()
            if recursive and entry.is_symlink():
                links.append(name)
            elif recursive:
                waiting += _unseen(path, [name], seen)
        if not waiting:  # links come last, so that a folder has its own name rather than that of a link
            waiting, links = _unseen(path, sorted(links), seen), []


def _is_image(entry: os.DirEntry[str], census: Census) -> bool:
    if not census.is_image(entry.name):
        return False
    if _is(entry.is_file) or _is_broken_link(entry):
        return True
    census.other("not a regular file")
    return False


def _unseen(root: str, folders: list[str], seen: set[tuple[int, int]]) -> list[str]:
    """Returns the folders that are not in ``seen``, and adds their device and inode to it: links may form loops."""
    found = []
    for name in folders:
        folder = os.path.join(root, name)
        try:
            status = os.stat(folder)
        except OSError as error:
            raise InputError(f"cannot list the folder {folder}: {error.strerror or error}") from None
        if (status.st_dev, status.st_ino) not in seen:
            seen.add((status.st_dev, status.st_ino))
            found.append(name)
    return found


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    # A generator, because a million entries would take much more memory than their names.
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except OSError as error:
        raise InputError(f"cannot list the folder {folder}: {error.strerror or error}") from None


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
    refuse_repeated_lines([os.path.abspath(os.path.join(folder, line)) for line in lines], lines, what)
    if folder and any(os.path.isabs(line) for line in lines):
        lines, folder = [os.path.join(folder, line) for line in lines], ""
    names = Names(sorted(lines))
    files = LocalFiles(Prefixed(folder, names))
    return ImageSet.of(ImageSource(path, "list of files", names, folder, files, FileReader(files), None, began))


def read_lines(handle: IO[bytes], what: str) -> list[str]:
    """Returns the lines of a list of paths that are not empty."""
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
    """Raises an InputError if a list names a file twice; ``meant`` is the absolute path of each of its lines."""
    if len(set(meant)) < len(meant):
        twice, times = Counter(meant).most_common(1)[0]
        line = lines[meant.index(twice)]
        raise InputError(f"{what} names {line} {times} times:", "list each image once")


_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
URL_WILDCARD = re.compile(r"[*\[]")
"""``?`` is no wildcard in URLs, where it starts a query."""
_MOST = 1_000_000


def is_pattern(path: str) -> bool:
    """Whether a path contains braces or wildcards. A local path that exists is not a pattern."""
    if "://" in path:
        return bool(_BRACES.search(path) or URL_WILDCARD.search(path))
    return bool(_BRACES.search(path) or glob.has_magic(path)) and not os.path.lexists(path)


def expand(path: str) -> list[str]:
    """Returns the files that match a pattern, in the order of its braces; the matches of a wildcard are sorted."""
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
    """Expands braces as a shell does: ``a{00..02}`` to ``a00``, ``a01``, ``a02``, and ``a{b,c}`` to ``ab``, ``ac``."""
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
