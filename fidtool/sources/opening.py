"""Opens a source of images by its path or URL."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from os.path import splitext
from pathlib import Path

from fidtool.errors import InputError, RunError
from fidtool.names import existing_like
from fidtool.redaction import redacted
from fidtool.sources.archives import first_member
from fidtool.sources.contents import Files, LocalFiles, RefusedError, StoreError, ValueRange, broken_link, head_of
from fidtool.sources.folder import STDIN, TABLES, TEXT, expand, is_pattern, list_folder, list_paths
from fidtool.sources.image_set import ImageSet, NamedFiles, split_common_folder
from fidtool.sources.kinds import (
    FILE_KINDS,
    IMAGE_SUFFIXES,
    JSON,
    PLAIN,
    FileKind,
    container_of,
    format_of,
    refuse_foreign,
)
from fidtool.sources.remote import is_remote, list_remote_folder, list_remote_paths, remote_files

LISTS = (TEXT, *TABLES)
KNOWN = (*(suffix for kind in FILE_KINDS for suffix in kind.suffixes), *LISTS)
"""Suffixes of files that contain images."""
STATISTICS_SUFFIXES = (".npz", ".pkl", ".pickle")
"""Suffixes that files of statistics usually have. Which are statistics does not depend on their names."""


def open_images(
    path: str,
    recursive: bool = True,
    value_range: ValueRange | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> ImageSet:
    """Lists the images of a source without reading them.

    Args:
        path: a folder, an archive, an array, a list, a table, a pattern that matches several files, a URL, or ``-``
            for a list on standard input.
        value_range: how an array of floats becomes bytes.
        say: prints progress.
    """
    began = time.time_ns()
    name, key = split_key(path)
    suffix = suffix_of(name)
    try:
        if path in (STDIN, "/dev/stdin") or Path(path).is_fifo():  # a shell's <(find …)
            found = list_paths(path, path)
        elif os.path.isdir(path):
            found = list_folder(path, recursive)
        elif not is_remote(name):
            files = LocalFiles(local_paths(path))
            _refuse_misnamed(files, suffix)
            found = _listed(path, suffix, files, key, value_range)
        elif suffix:
            found = _listed(path, suffix, remote_files(name, say), key, value_range)
        else:
            _refuse_image(path, name)
            found = list_remote_folder(name, recursive)
    except RefusedError as error:
        raise InputError(str(error)) from None
    except StoreError as error:
        raise RunError(str(error)) from None
    return replace(found, listed=began)


def local_paths(path: str) -> list[str]:
    """Returns the files that match a pattern, or the one file or folder that ``path`` names."""
    name, _ = split_key(path)
    if is_pattern(name):
        return expand(name)
    if not os.path.lexists(name):
        raise InputError(f"no such file or folder: {path}", *(f"did you mean {each}?" for each in existing_like(name)))
    if why := broken_link(name):
        raise InputError(f"{name} is {why}")
    return [name]


def _refuse_misnamed(files: Files, suffix: str) -> None:
    """Refuses a file whose first bytes contradict its suffix. Otherwise it would be reported as damaged."""
    head, is_list = head_of(files), suffix in LISTS
    if head or not is_list:
        refuse_foreign(files.paths[0], head, [*[JSON] * (suffix == ".jsonl"), *[PLAIN] * is_list])
    actual = container_of(head) or ("an image" if format_of(head) and not is_list else "")
    if suffix and actual and not any(actual == kind.content and suffix in kind.suffixes for kind in FILE_KINDS):
        raise InputError(f"{files.paths[0]} is named {suffix} but is {actual}:", "rename it")


def _listed(path: str, suffix: str, files: Files, key: str, value_range: ValueRange | None) -> ImageSet:
    single = files.paths[0] if len(files.paths) == 1 else ""
    if suffix in LISTS and single:
        if files.remote:
            return list_remote_paths(path, files, suffix, key)
        return list_paths(path, single, suffix, key)
    if not suffix and first_member(head_of(files)).endswith(b".npy"):
        suffix = ".npz"
    kind = _kind_of(suffix)
    if kind is None:
        _refuse_image(path, files.paths[0])
        problem = f"{path} is neither a folder nor a file of a supported kind ({' '.join(KNOWN)})"
        raise InputError(problem, *["decompress it, with gunzip"] * head_of(files).startswith(b"\x1f\x8b"))
    shown = redacted(single)  # redacted before names are appended, or they would be removed as parts of a query
    prefix = (shown if kind.numbered else f"{shown}/") if single else split_common_folder(files.paths)[0]
    module, _, lister = kind.lister.partition(":")
    list_files: Callable[[NamedFiles], ImageSet] = getattr(import_module(f"fidtool.sources.{module}"), lister)
    return list_files(NamedFiles(path, files, prefix, key, value_range))


def _kind_of(suffix: str) -> FileKind | None:
    return next((kind for kind in FILE_KINDS if suffix in kind.suffixes), None)


def _refuse_image(path: str, file: str) -> None:
    if splitext(file)[1].lower() in IMAGE_SUFFIXES:
        raise InputError(
            f"{path} {'is an image' if path == file else 'matches single images'}, not a set of images:",
            "pass its folder",
            "pass a list of paths, as a .txt or .csv file or on standard input (-)",
            "in Python, pass fidtool.Images([path, …])",
        )


def suffix_of(path: str) -> str:
    """Returns the suffix in `KNOWN` with which a path ends; empty if there is none.

    Case is ignored, and so is the query of an HTTP URL.
    """
    name = path.partition("?")[0] if path.startswith("http") and is_remote(path) else path
    return max((suffix for suffix in KNOWN if name.lower().endswith(suffix)), key=len, default="")


def split_key(path: str) -> tuple[str, str]:
    """Splits ``samples.npz:images`` into the file and the array in it; for other paths, the second part is empty.

    The second part may also name one of several statistics in a pickle, as in ``references.pkl:imagenet.npz``.
    """
    name, colon, key = path.rpartition(":")
    has_query = "?" in name and is_remote(name)  # a query may contain colons
    if colon and key and not has_query and _is_keyed(name) and not os.path.lexists(path):
        return name, key
    return path, ""


def _is_keyed(name: str) -> bool:
    """Whether a file may have named parts: by its suffix or, if that says nothing, because it exists."""
    if suffix := suffix_of(name):
        kind = _kind_of(suffix)
        return suffix in TABLES or (kind is not None and kind.keyed)
    return name.lower().endswith(STATISTICS_SUFFIXES) or (not is_remote(name) and os.path.isfile(name))
