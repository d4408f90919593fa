"""Opens a source of images by its path or URL: folders, lists of paths, and files by their
suffixes.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import heapq
import io
import itertools
import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TextIO

import numpy as np

from fidtool.errors import InputError, ResultWarning, Say, format_reason, redact
from fidtool.names import find_similar_path, fold, format_count
from fidtool.sources.contents import Files, ValueRange, broken_link, explain_errors, read_head
from fidtool.sources.image_set import ImageSet, Names, SourceFiles, split_common_folder
from fidtool.sources.kinds import (
    DAMAGED,
    EMPTY,
    FILE_KINDS,
    HIDDEN,
    IS_HIDDEN,
    JSON,
    KNOWN,
    LISTS,
    PLAIN,
    SUBFOLDER,
    TABLES,
    TEXT,
    UNREPORTED_SUFFIXES,
    IgnoredFiles,
    detect_container,
    detect_format,
    expand,
    file_suffix,
    first_member,
    is_image_name,
    is_pattern,
    refuse_foreign,
)
from fidtool.system.local_files import read_file

STDIN = "-"
STATISTICS_SUFFIXES = (".npz", ".pkl", ".pickle")
"""Suffixes that files of statistics usually have. Which are statistics does not depend on their
names.
"""


def open_images(
    path: str,
    recursive: bool = True,
    value_range: ValueRange | None = None,
    say: Say = lambda line: None,
) -> ImageSet:
    """List the images of a source without reading them.

    It is a folder, an archive, an array, a list, a table, a pattern that matches several files, a
    URL, or ``-`` for a list on standard input. ``value_range`` is how an array of floats becomes
    bytes, ``say`` prints progress.
    """
    began = time.time_ns()
    name, _ = split_key(path)
    suffix = file_suffix(name)
    is_pipe = suffix in ("", *LISTS) and Path(path).is_fifo()  # a shell's <(find …)
    if path in _STDINS or is_pipe:
        images = list_paths(path)
    elif os.path.isdir(path) and not list_shards(path):
        images = list_folder(path, recursive)
    elif "://" not in path:
        images = _list_files(path, Files(local_paths(path)), value_range)
    else:
        # Lazily: a local set needs none of it.
        from fidtool.sources.remote import list_remote_folder, remote_files

        if suffix:
            images = _list_files(path, remote_files(name, say), value_range)
        else:
            _refuse_image(path, name)
            images = list_remote_folder(name, recursive)
    return replace(images, listed=began)


def local_paths(path: str) -> list[str]:
    """Return the files that match a pattern or are shards of a saved dataset, or the one file or
    folder that ``path`` names.
    """
    name, _ = split_key(path)
    if is_pattern(name):
        return expand(name)
    if os.path.exists(name):
        return list_shards(name) or [name]
    broken = broken_link(name)
    if broken:
        raise InputError(f"{name} is {broken}")
    raise InputError(
        f"no such file or folder: {path}",
        *(f"did you mean {guess}?" for guess in find_similar_path(name)),
    )


def list_shards(folder: str) -> list[str]:
    """Return the files in a folder that ``save_to_disk`` of a `datasets.Dataset` wrote, in the
    order of its rows.

    Empty for anything else. An InputError for a folder of a ``DatasetDict``, which is several sets.
    """
    splits = _read_json_key(folder, "dataset_dict.json", "splits")
    if splits:
        raise InputError(
            f"{folder} is a DatasetDict of {format_count(len(splits), 'set')}:",
            *(f"pass {os.path.join(folder, split)}" for split in splits),
        )
    return [
        os.path.join(folder, os.path.basename(shard["filename"]))
        for shard in _read_json_key(folder, "state.json", "_data_files")
        if isinstance(shard, dict) and "filename" in shard
    ]


def _read_json_key(folder: str, name: str, key: str) -> list[Any]:
    """Return what a JSON file lists under a key; nothing if there is no such file, or it is
    another program's.
    """
    try:
        return list(json.loads(read_file(os.path.join(folder, name)))[key])
    except (OSError, ValueError, TypeError, KeyError):
        return []


def _list_files(path: str, files: Files, value_range: ValueRange | None) -> ImageSet:
    name, key = split_key(path)
    first = files.paths[0]
    is_single = len(files.paths) == 1
    suffix = file_suffix(first if os.path.isdir(name) else name)
    is_list = suffix in LISTS
    head = b"\0"  # that of a remote archive would be a download
    if is_list or not files.remote:
        head = read_head(files)
    content = detect_container(head)
    if not content and not is_list and detect_format(head):
        content = "an image"
    module, usual_content = FILE_KINDS.get(suffix, ("", ""))
    if suffix and content and content != usual_content:
        raise InputError(f"{first} is named {suffix} but is {content}:", "rename it")
    if is_list and is_single:
        accepted = [EMPTY, PLAIN]
        if suffix == _JSON_LINES:
            accepted.append(JSON)
        refuse_foreign(first, head, accepted)
        return list_paths(path, files, suffix, key)
    if not suffix and first_member(head).endswith(b".npy"):
        module, _ = FILE_KINDS[".npz"]
    if not module:
        refuse_foreign(first, head)
        _refuse_image(path, first)
        remedies = ["decompress it, with gunzip"] if head.startswith(b"\x1f\x8b") else []
        raise InputError(
            f"{path} is neither a folder nor a file of a supported kind ({' '.join(KNOWN)})",
            *remedies,
        )
    prefix = redact(first)  # before names are appended, which would be removed with a query
    if not is_single:
        prefix, _ = split_common_folder(files.paths)
    named = SourceFiles(path, files, prefix, key, value_range)
    images: ImageSet = import_module(f"fidtool.sources.{module}").list_images(named)
    return images


def _refuse_image(path: str, file: str) -> None:
    if is_image_name(file):
        what = "is an image" if path == file else "matches single images"
        raise InputError(
            f"{path} {what}, not a set of images:",
            "pass its folder",
            "a list of paths: a .txt or .csv file, standard input (-), or in Python "
            "fidtool.Images([path, …])",
        )


def split_key(path: str) -> tuple[str, str]:
    """Split ``samples.npz:images`` into the file, or folder of shards, and the array or column
    in it.

    For other paths, the second part is empty. It may also name one of several statistics in a
    pickle, as in ``references.pkl:imagenet.npz``.
    """
    name, _, key = path.rpartition(":")
    has_query = "?" in name and "://" in name  # a query may contain colons
    if not name or not key or has_query or os.path.lexists(path):
        return path, ""
    suffix = file_suffix(name)
    has_keys = suffix not in ("", ".npy", TEXT) or name.lower().endswith(STATISTICS_SUFFIXES)
    if not suffix and "://" not in name:  # then the name says nothing
        has_keys |= os.path.isfile(name) or bool(list_shards(name))
    return (name, key) if has_keys else (path, "")


def list_folder(path: str, recursive: bool = True) -> ImageSet:
    """List the images below ``path``, sorted by relative name.

    Hidden names and ``__MACOSX`` are ignored. Symbolic links are followed; a folder that several
    links point to is listed once. A broken link with an image suffix is listed, so that it causes
    an error instead of being ignored.
    """
    passed_over = IgnoredFiles()
    try:
        stored = sorted(_walk_images(path, recursive, passed_over))
    except OSError as error:
        raise InputError(
            f"cannot list the folder {error.filename or path}: {format_reason(error)}"
        ) from None
    if not stored:
        below = filter(Path.is_file, Path(path).rglob("*"))
        for file in itertools.islice(below, 100):  # the images may be in a form that is not read
            head = read_head(Files([str(file)]))
            refuse_foreign(f"no images in {path}: {file}", head, [*DAMAGED, PLAIN])
        raise passed_over.no_images_error(path, "folder", recursive)
    if recursive:
        del passed_over.kinds[SUBFOLDER]
    warning = None
    archives = [kind for kind in FILE_KINDS if kind not in UNREPORTED_SUFFIXES]
    archive = max(archives, key=passed_over.kinds.__getitem__)
    if passed_over.kinds[archive]:
        has = format_count(passed_over.kinds[archive], f"{archive} file")
        warning = ResultWarning("", f"{path} contains {has}: archives in a folder are not read")
    prefix = os.path.join(path, "")
    names = Names(stored)
    files = Files(names.with_prefix(prefix))
    order = np.arange(len(names), dtype=np.uint32)
    return ImageSet(path, "folder", names, prefix, files, order, passed_over, warning)


def _walk_images(path: str, recursive: bool, passed_over: IgnoredFiles) -> Iterator[str]:
    """Yield the relative names of the images in a folder, in any order. A folder is listed once,
    not by a link.
    """
    # Links come last, so that a folder has its own name rather than that of a link.
    waiting = [(False, "")]
    seen: set[tuple[int, int]] = set()
    while waiting:
        _, folder = heapq.heappop(waiting)
        status = os.stat(os.path.join(path, folder))
        if (status.st_dev, status.st_ino) in seen:  # links may form loops
            continue
        seen.add((status.st_dev, status.st_ino))
        with os.scandir(os.path.join(path, folder)) as entries:
            for entry in entries:
                name = os.path.join(folder, entry.name)
                is_link = entry.is_symlink()
                # Unlike the methods of entries, os.path accepts links that point to themselves.
                is_folder = os.path.isdir(entry.path) if is_link else entry.is_dir()
                if is_folder and IS_HIDDEN(entry.name):
                    passed_over.kinds[HIDDEN] += 1
                elif is_folder:
                    passed_over.kinds[SUBFOLDER] += 1
                    if recursive:
                        heapq.heappush(waiting, (is_link, name))
                elif passed_over.accept(entry.name):
                    if is_link or entry.is_file():
                        yield name
                    else:
                        passed_over.kinds["not a regular file"] += 1


# --- lists ----------------------------------------------------------------------------------------


_STDINS = (STDIN, "/dev/stdin")
_JSON_LINES = ".jsonl"
# Usual names of a column of paths, as `fold` returns them.
_COLUMNS = frozenset(
    {"path", "file", "filename", "filepath", "image", "imagepath", "imagefile", "img", "imgpath"}
)
_OBJECTS = 'write one object per line, such as {"path": "a.png"}'
_DOWNLOAD_AGAIN = "download it again if a server sent an error in its place"
# Maximum number of bytes in a line of a list. No system has longer paths.
_MAX_LINE_BYTES = 1 << 16


# The numbers of the lines of a table, and their values by column.
Rows = Iterator[tuple[int, dict[str, Any]]]


class ListEntry(NamedTuple):
    """A path in a list, and the number of its line."""

    path: str
    line: int


def list_paths(
    path: str, files: Files | None = None, suffix: str = TEXT, column: str = ""
) -> ImageSet:
    """List the images named in a list, sorted by path. All are read as images, regardless of their
    suffixes.

    Empty lines are ignored. A store is not asked for each image, so missing and changed ones are
    not noticed.

    Paths are relative to the folder or URL of the list, ``files``, which is None for standard input
    (`STDIN`), where they are relative to the working directory, and for a pipe. A `TEXT` has one
    path per line or separates them by null bytes, as ``find -print0``. ``column`` is empty if only
    one is named like one of paths or has names of images.
    """
    name = path if files is None else files.paths[0]
    what = "standard input" if path in _STDINS else f"the list {name}"
    with explain_errors(what), _open_list(path, files) as handle:
        if suffix in TABLES:
            entries = list(_read_table_list(handle, what, suffix, column))
        else:
            entries = list(_read_text_list(handle, what))
    if not entries:
        raise InputError(f"{what} is empty:", "list one image per line")
    prefix = ""
    if not name.startswith("/dev/"):
        prefix = os.path.join(os.path.dirname(name), "")
    whole = [ListEntry(_join_path(what, prefix, entry.path), entry.line) for entry in entries]
    _refuse_repeated(what, whole, entries)
    pairs = zip(whole, entries, strict=True)
    if any(address.path == entry.path for address, entry in pairs):  # some are absolute
        entries = whole
        prefix = ""
    entries.sort()
    names = Names(entry.path for entry in entries)
    lines = np.array([entry.line for entry in entries])
    kind_of_files = Files if files is None else type(files)
    reader = kind_of_files(names.with_prefix(prefix))
    order = np.arange(len(names), dtype=np.uint32)
    return ImageSet(path, "list of files", names, prefix, reader, order, lines=lines)


def _open_list(path: str, files: Files | None) -> contextlib.AbstractContextManager[BinaryIO]:
    if files is not None:
        return files.open(0)
    if path not in _STDINS:
        return io.BytesIO(read_file(path))
    if sys.stdin is None:  # closed by the shell (<&-)
        raise InputError("the list cannot be read: standard input is closed")
    return contextlib.nullcontext(sys.stdin.buffer)  # it may be endless, and is read line by line


def _join_path(what: str, prefix: str, path: str) -> str:
    """Return the path or URL of an image that a list names, of which ``prefix`` is the folder."""
    if "://" not in prefix:
        return os.path.join(prefix, path)
    if "://" not in path:
        return f"{prefix}{path.removeprefix('./')}"
    stores = [url.partition("://")[0].lower().replace("https", "http") for url in (prefix, path)]
    if stores[0] != stores[1]:
        raise InputError(f"{what} names {path}, which is in a different kind of store")
    return path


def _refuse_repeated(what: str, whole: list[ListEntry], entries: list[ListEntry]) -> None:
    paths = [os.path.abspath(entry.path) for entry in whole]
    path, times = Counter(paths).most_common(1)[0]
    if times > 1:
        first = entries[paths.index(path)]
        raise InputError(
            f"{what} names {first.path} {times} times, first in line {first.line}:",
            "list each image once",
        )


def missing_error(path: str, missing: Sequence[str], *remedies: str) -> InputError:
    """Return the error for a list of which these lines name files that do not exist, see
    `ImageSet.missing_lines`.
    """
    file = missing[0].partition(": ")[2]
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    written = os.path.relpath(file, os.path.dirname(path))
    labelled = re.search(r"(\.\w+)[\s,;|]+[^./]+$|^\d+[\s,;|]+\S+(\.\w+)$", written)
    broken, _, repair = broken_link(file).partition(": ")
    seems = ""
    advice = ["fix the list"]
    if labelled and is_image_name(f"a{labelled[1] or labelled[2]}"):
        seems = ", and the line seems to have a label beside the path"
        advice = ["remove the labels", "write a .csv file whose first line is path,label"]
    elif os.path.exists(written):
        seems = f", but {written} exists, and paths are relative to the folder of the list"
        advice = ["move the list to the working directory"]
    elif broken:
        seems = f", which is {broken}"
        advice = [repair or "fix the list"]
    return InputError(
        f"{path} lists files that do not exist ({missing[0]}{more}){seems}:", *advice, *remedies
    )


def _read_text_list(handle: BinaryIO, what: str) -> Iterator[ListEntry]:
    head = handle.read(_MAX_LINE_BYTES).removeprefix(codecs.BOM_UTF8)
    refuse_foreign(what, head, [EMPTY, PLAIN])
    separator = b"\0" if b"\0" in head else b"\n"
    for number, line in enumerate(_split_lines(handle, head, separator), 1):
        is_hole = not line and separator == b"\0"
        if len(line) >= _MAX_LINE_BYTES or b"\0" in line or is_hole:
            raise InputError(
                f"{what} is not a list of paths: line {number} is too long or contains null bytes:",
                "write one path per line",
                "separate all paths by null bytes",
            )
        if separator == b"\n":
            line = line.rstrip(b"\r")
        if line:
            yield ListEntry(os.fsdecode(line), number)


def _split_lines(handle: BinaryIO, head: bytes, separator: bytes) -> Iterator[bytes]:
    """Yield the lines in a file that begins with ``head``, up to the first one that is too
    long.
    """
    rest = head
    while len(rest) < 2 * _MAX_LINE_BYTES:
        *lines, rest = rest.split(separator)
        yield from lines
        block = handle.read(_MAX_LINE_BYTES)
        if not block:
            break
        rest += block
    if rest:
        yield rest


def _read_table_list(handle: BinaryIO, what: str, suffix: str, column: str) -> Iterator[ListEntry]:
    for line, row in read_rows(handle, what, suffix):
        place = f"{what}, line {line}"
        columns = [column] if column else find_path_columns(row)
        if len(columns) != 1 or columns[0] not in row:
            raise _columns_error(place, what, suffix, row, column, columns)
        column = columns[0]
        path = get_path(row[column])
        if not _can_be_path(path):
            raise InputError(f"{place}, column {column}: {path!r:.60} is not a path")
        yield ListEntry(path, line)


def _can_be_path(value: Any) -> bool:
    try:
        return isinstance(value, str) and value != "" and b"\0" not in os.fsencode(value)
    except ValueError:  # lone surrogates that stand for no byte
        return False


def _columns_error(
    place: str, what: str, suffix: str, row: Mapping[str, Any], column: str, columns: Sequence[str]
) -> InputError:
    """Return the error for a row without the ``column``, or in which not one column has paths, but
    several or none.
    """
    has = ", ".join(map(repr, row)) or "none"
    is_json = suffix == _JSON_LINES
    if not is_json and any(map(is_image_name, row)):
        return InputError(
            f"{what} has no header: its first line is {has}, not names of columns:",
            "add a first line such as path,label",
        )
    lacks = f"no column {column!r}" if column else f"{len(columns) or 'no'} columns of paths"
    remedies = [f"name one, as in {what.removeprefix('the list ')}:COLUMN"]
    if is_json and not columns:
        remedies.append(_DOWNLOAD_AGAIN)
    return InputError(f"{place} has {lacks}; it has {has}:", *remedies)


def read_rows(handle: BinaryIO, what: str, suffix: str) -> Rows:
    """Yield the numbers of the lines of a table, and their values by column, None where a row ends
    early.

    Raises:
        InputError: if a row is none, or has more values than there are columns, or two columns have
            one name.
    """
    text = io.TextIOWrapper(handle, "utf-8-sig", "surrogateescape", newline="")
    return (
        _read_json_lines(text, what)
        if suffix == _JSON_LINES
        else _read_csv_rows(text, what, suffix)
    )


def _read_json_lines(text: TextIO, what: str) -> Rows:
    for number, line in enumerate(text, 1):
        if not line.strip():
            continue
        place = f"{what}, line {number}"
        try:
            row = json.loads(line, object_pairs_hook=partial(_unique_columns, place))
        except (json.JSONDecodeError, RecursionError) as error:
            raise InputError(
                f"{place}: {getattr(error, 'msg', error)}", _OBJECTS, _DOWNLOAD_AGAIN
            ) from None
        if not isinstance(row, dict):
            raise InputError(f"{place} is not a JSON object:", _OBJECTS, _DOWNLOAD_AGAIN)
        yield number, row


def _read_csv_rows(text: TextIO, what: str, suffix: str) -> Rows:
    header = text.readline()
    if "\0" in header:
        raise InputError(f"{what} is not UTF-8 text:", "save it as UTF-8")
    separators = "\t" if suffix == ".tsv" else ",;\t"
    separator = next((sign for sign in separators if sign in header), separators[0])
    text.seek(0)
    table = csv.DictReader(text, delimiter=separator, strict=True)
    try:
        columns = _unique_columns(
            f"{what}, line 1", [(name, None) for name in table.fieldnames or ()]
        )
        for row in table:
            if None in row:
                raise InputError(
                    f"{what}, line {table.line_num} has more values than the header has columns "
                    f"({len(columns)}):",
                    f"put values with {separator!r} in quotes",
                    "name all columns",
                )
            yield table.line_num, row
    except csv.Error as error:
        raise InputError(f"{what}, line {table.reader.line_num}: {error}") from None


def _unique_columns(place: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the values of a row by column. An InputError if two columns have one name, other than
    none.
    """
    times = Counter(name for name, _ in pairs)
    for name in times:
        if name and times[name] > 1:
            raise InputError(f"{place} has {times[name]} columns {name!r}:", "rename or remove one")
    return dict(pairs)


def get_path(value: Any) -> Any:
    """Return the path in a column's value, which can be an image as Hugging Face writes it,
    without its bytes.
    """
    if isinstance(value, dict) and not value.get("bytes"):
        return value.get("path")
    return value


def find_path_columns(row: Mapping[str, Any]) -> list[str]:
    """Return the names of the columns that may be those of paths in a table with this first
    row.
    """
    # A header that is an image's name is no name of a column.
    likely = [
        name
        for name, value in row.items()
        if is_image_name(f"{get_path(value)}") and not is_image_name(name)
    ]
    known = [name for name in row if fold(name) in _COLUMNS]
    return [name for name in known if name in likely] or known or likely
