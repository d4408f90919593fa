"""Lists of paths of images, in text, tables or on standard input."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import os
import posixpath
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from typing import IO, Any, BinaryIO

import numpy as np

from fidtool.errors import InputError
from fidtool.names import folded
from fidtool.sources.contents import Files, explained
from fidtool.sources.image_set import ImageSet, Names
from fidtool.sources.kinds import PLAIN, TABLES, TEXT, is_image_name, refuse_foreign

STDIN = "-"
_JSON_LINES = ".jsonl"
_COLUMNS = ("path", "file", "filename", "filepath", "image", "imagepath", "imagefile", "img", "imgpath")
"""Usual names of a column of paths, as `folded`."""
_OBJECTS = (
    'write one object per line, such as {"path": "a.png"}',
    "download it again if a server sent an error in its place",
)
_MARK = b"\xef\xbb\xbf"
"""The byte order mark that some editors write at the start of UTF-8 files."""
_LONGEST, _LONGEST_ROW = 1 << 16, 1 << 24
"""Maximum number of bytes in a line. No system has longer paths, but tables have further columns."""
Entry = tuple[str, int]  # a path and its line


def list_paths(path: str, files: Files | None = None, suffix: str = TEXT, column: str = "") -> ImageSet:
    """Lists the images named in a list, sorted by path. All are read as images, regardless of their suffixes.

    Empty lines are ignored. A store is not asked for each image, so missing and changed ones are not noticed.

    Args:
        files: the list, to whose folder or URL paths are relative; None for standard input (`STDIN`), where they are
            relative to the working directory, or for a pipe.
        suffix: `TEXT`, one path per line or separated by null bytes, as by ``find -print0``; or one of `TABLES`.
        column: name of the column of paths; empty if only one column is named like one or has names of images.
    """
    is_stdin, name = path in (STDIN, "/dev/stdin"), path if files is None else files.paths[0]
    what = "standard input" if is_stdin else f"the list {name}"
    if is_stdin and sys.stdin is None:  # closed by the shell (<&-)
        raise InputError("the list cannot be read: standard input is closed")
    with explained(what), contextlib.ExitStack() as stack:
        if is_stdin:
            handle: BinaryIO = sys.stdin.buffer
        else:
            handle = stack.enter_context(open(path, "rb") if files is None else files.open(0))  # noqa: SIM115
        entries = list(_in_column(handle, what, suffix, column) if suffix in TABLES else _in_text(handle, what))
    if not entries:
        raise InputError(f"{what} is empty:", "list one image per line")
    prefix = "" if is_stdin or name.startswith("/dev/") else os.path.join(os.path.dirname(name), "")
    return _set_of(path, what, entries, prefix, Files if files is None else type(files))


def _set_of(path: str, what: str, entries: list[Entry], prefix: str, files_of: type[Files]) -> ImageSet:
    """Returns the images in a list, sorted by path. An InputError if it names a file twice."""
    if "://" in prefix:
        store = prefix.partition("://")[0].replace("https", "http")
        for each, _ in entries:
            if "://" in each and each.partition("://")[0].lower().replace("https", "http") != store:
                raise InputError(f"{what} names {each}, which is in a different kind of store")
        whole = [each if "://" in each else f"{prefix}{each.removeprefix('./')}" for each, _ in entries]
        meant = list(map(posixpath.normpath, whole))
    else:
        whole = [os.path.join(prefix, each) for each, _ in entries]
        meant = list(map(os.path.abspath, whole))
    if len(set(meant)) < len(meant):
        twice, times = Counter(meant).most_common(1)[0]
        named, line = entries[meant.index(twice)]
        raise InputError(f"{what} names {named} {times} times, first in line {line}:", "list each image once")
    if any(each == given for each, (given, _) in zip(whole, entries, strict=True)):  # some are absolute
        entries, prefix = [(each, line) for each, (_, line) in zip(whole, entries, strict=True)], ""
    entries = sorted(entries)
    names, lines = Names(each for each, _ in entries), np.array([line for _, line in entries])
    files, order = files_of(names.after(prefix)), np.arange(len(names), dtype=np.uint32)
    return ImageSet(path, "list of files", names, prefix, files, files, order, lines=lines)


def _in_text(handle: IO[bytes], what: str) -> Iterator[Entry]:
    rest, number = handle.read(_LONGEST).removeprefix(_MARK), 0
    refuse_foreign(what, rest or b"\0", [PLAIN])
    end = b"\0" if b"\0" in rest else b"\n"
    while rest:
        *whole, rest = rest.split(end)
        more = handle.read(_LONGEST)
        if len(rest) >= _LONGEST or (rest and not more):
            whole, rest = [*whole, rest], b""
        for line in whole:
            number += 1
            if len(line) >= _LONGEST or b"\0" in line or (end == b"\0" and not line):
                problem = f"{what} is not a list of paths: line {number} is too long or contains null bytes:"
                raise InputError(problem, "write one path per line", "separate all paths by null bytes")
            if text := os.fsdecode(line if end == b"\0" else line.rstrip(b"\r")):
                yield text, number
        rest += more


def _in_column(handle: IO[bytes], what: str, suffix: str, column: str) -> Iterator[Entry]:
    for line, row in _rows(handle, what, suffix):
        place = f"{what}, line {line}"
        if not isinstance(row, dict) or None in row:
            if suffix == _JSON_LINES:
                raise InputError(f"{place} is not a JSON object:", *_OBJECTS)
            raise InputError(f"{place} is not a row with one value per column")
        found = [column] if column else _columns_of_paths(row)
        if len(found) != 1 or found[0] not in row:
            if suffix != _JSON_LINES and any(map(is_image_name, row)):
                problem = f"{what} has no header: its first line is {', '.join(map(repr, row))}, not names of columns:"
                raise InputError(problem, "add a first line such as path,label")
            lacks = f"no column {column!r}" if column else f"{len(found) or 'no'} columns of paths"
            named = f"name one, as in {what.removeprefix('the list ')}:COLUMN"
            server = _OBJECTS[1:] if suffix == _JSON_LINES and not found else ()
            raise InputError(f"{place} has {lacks}; it has {', '.join(map(repr, row)) or 'none'}:", named, *server)
        column, path = found[0], _path_of(row[found[0]])
        with contextlib.suppress(TypeError, ValueError):  # not a string, or one that cannot be the name of a file
            if path and b"\0" not in os.fsencode(path):
                yield path, line
                continue
        raise InputError(f"{place}, column {column}: {path!r:.60} is not a path")


def _rows(handle: IO[bytes], what: str, suffix: str) -> Iterator[tuple[int, Any]]:
    """Yields the numbers and values of the lines of a table; if they are valid, the values are by column."""
    text = io.TextIOWrapper(handle, "utf-8-sig", "surrogateescape", newline="")
    lines, number = iter(partial(text.readline, _LONGEST_ROW), ""), 0
    header = "" if suffix == _JSON_LINES else next(lines, "")
    separator = "\t" if suffix == ".tsv" else next((each for each in ",;\t" if each in header), ",")
    table = csv.DictReader(itertools.chain([header], lines), delimiter=separator, strict=True)
    try:
        if suffix == _JSON_LINES:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield number, json.loads(line)
        yield from ((table.line_num, row) for row in table)
    except (csv.Error, json.JSONDecodeError, RecursionError) as error:
        problem = f"{what}, line {number or table.reader.line_num}: {getattr(error, 'msg', error)}"
        raise InputError(problem, *(_OBJECTS if number else ())) from None


def _path_of(value: Any) -> Any:
    """Returns the path in a column's value, which can be an image as Hugging Face writes it, without its bytes."""
    return value.get("path") if isinstance(value, dict) and not value.get("bytes") else value


def _columns_of_paths(row: Mapping[str, Any]) -> list[str]:
    """Returns the names of the columns that may be those of paths in a table with this first row."""
    images = [each for each in row if is_image_name(f"{_path_of(row[each])}")]
    likely = [each for each in images if not is_image_name(each)]  # a header is no image
    known = [each for each in row if folded(each) in _COLUMNS]
    return [each for each in known if each in likely] or known or likely
