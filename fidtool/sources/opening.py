"""Opens a source of images by its path or URL."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np

from fidtool.errors import InputError, redacted
from fidtool.names import counted, existing_like
from fidtool.sources.contents import (
    Files,
    ValueRange,
    broken_link,
    head_of,
)
from fidtool.sources.image_set import ImageSet, NamedFiles, Names, split_common_folder
from fidtool.sources.kinds import (
    FILE_KINDS,
    HIDDEN,
    IS_HIDDEN,
    JSON,
    KNOWN,
    LISTS,
    PLAIN,
    SUBFOLDER,
    TABLES,
    PassedOver,
    container_of,
    expand,
    first_member,
    format_of,
    is_image_name,
    is_pattern,
    refuse_dataset,
    refuse_foreign,
    suffix_of,
)
from fidtool.sources.lists import STDIN, list_paths

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
    if path in (STDIN, "/dev/stdin") or Path(path).is_fifo():  # a shell's <(find …)
        found = list_paths(path)
    elif os.path.isdir(path):
        found = list_folder(path, recursive)
    elif "://" not in path:
        found = _listed(path, Files(local_paths(path)), value_range)
    else:
        from fidtool.sources.remote import list_remote_folder, remote_files  # lazily: a local set needs none of it

        name, _ = split_key(path)
        if suffix_of(name):
            found = _listed(path, remote_files(name, say), value_range)
        else:
            _refuse_image(path, name)
            found = list_remote_folder(name, recursive)
    return replace(found, listed=began)


def local_paths(path: str) -> list[str]:
    """Returns the files that match a pattern, or the one file or folder that ``path`` names."""
    name, _ = split_key(path)
    if is_pattern(name):
        return expand(name)
    if os.path.exists(name):
        return [name]
    if why := broken_link(name):
        raise InputError(f"{name} is {why}")
    raise InputError(f"no such file or folder: {path}", *(f"did you mean {each}?" for each in existing_like(name)))


def _listed(path: str, files: Files, value_range: ValueRange | None) -> ImageSet:
    name, key = split_key(path)
    suffix = suffix_of(name)
    first, single = files.paths[0], len(files.paths) == 1
    is_list = suffix in LISTS
    head = b"\0" if files.remote and not is_list else head_of(files)  # of an archive, that would be a download
    if head or not is_list:
        refuse_foreign(first, head, [*[JSON] * (suffix == ".jsonl"), *[PLAIN] * is_list])
    actual = container_of(head) or ("an image" if format_of(head) and not is_list else "")
    module, content = FILE_KINDS.get(suffix, ("", ""))
    if suffix and actual and actual != content:
        raise InputError(f"{first} is named {suffix} but is {actual}:", "rename it")
    if is_list and single:
        return list_paths(path, files, suffix, key)
    if not suffix and first_member(head).endswith(b".npy"):
        module, _ = FILE_KINDS[".npz"]
    if not module:
        _refuse_image(path, first)
        problem = f"{path} is neither a folder nor a file of a supported kind ({' '.join(KNOWN)})"
        raise InputError(problem, *["decompress it, with gunzip"] * head.startswith(b"\x1f\x8b"))
    # Redacted before names are appended, or they would be removed as parts of a query.
    prefix = redacted(first) if single else split_common_folder(files.paths)[0]
    found: ImageSet = import_module(f"fidtool.sources.{module}").list_images(
        NamedFiles(path, files, prefix, key, value_range)
    )
    return found


def _refuse_image(path: str, file: str) -> None:
    if is_image_name(file):
        raise InputError(
            f"{path} {'is an image' if path == file else 'matches single images'}, not a set of images:",
            "pass its folder",
            "pass a list of paths, as a .txt or .csv file or on standard input (-)",
            "in Python, pass fidtool.Images([path, …])",
        )


def split_key(path: str) -> tuple[str, str]:
    """Splits ``samples.npz:images`` into the file and the array in it; for other paths, the second part is empty.

    The second part may also name one of several statistics in a pickle, as in ``references.pkl:imagenet.npz``.
    """
    name, colon, key = path.rpartition(":")
    has_query = "?" in name and "://" in name  # a query may contain colons
    if not colon or not key or has_query or os.path.lexists(path):
        return path, ""
    if suffix := suffix_of(name):
        is_keyed = suffix in TABLES or (suffix in FILE_KINDS and suffix != ".npy")
    else:  # then the name says nothing
        is_keyed = name.lower().endswith(STATISTICS_SUFFIXES) or ("://" not in name and os.path.isfile(name))
    return (name, key) if is_keyed else (path, "")


def list_folder(path: str, recursive: bool = True) -> ImageSet:
    """Lists the images below ``path``, sorted by relative name.

    Hidden names and ``__MACOSX`` are ignored. Symbolic links are followed; a folder that several links point to is
    listed once. A broken link with an image suffix is listed, so that it causes an error instead of being ignored.
    """
    passed_over = PassedOver()
    try:
        found = sorted(_images_below(path, recursive, passed_over))
    except OSError as error:
        raise InputError(f"cannot list the folder {error.filename or path}: {error.strerror or error}") from None
    if not found:
        below = (os.path.join(place, name) for place, _, names in os.walk(path) for name in sorted(names))
        refuse_dataset(path, ((file, head_of(Files([file]))) for file in below))
        raise passed_over.nothing_found(path, "folder", recursive)
    if recursive:
        del passed_over.kinds[SUBFOLDER]
    warning = ""
    if archive := passed_over.archive:
        number = counted(passed_over.kinds[archive], f"{archive} file")
        warning = f"{path} contains {number}: archives in a folder are not read"
    names, prefix = Names(found), os.path.join(path, "")
    files, order = Files(names.after(prefix)), np.arange(len(names), dtype=np.uint32)
    return ImageSet(path, "folder", names, prefix, files, files, order, None, passed_over, warning)


def _images_below(path: str, recursive: bool, passed_over: PassedOver) -> Iterator[str]:
    """Yields the relative names of the images in a folder, in any order. A folder is listed once, not by a link."""
    folders, links = [""], list[str]()
    seen: set[tuple[int, int]] = set()
    while folders or links:
        if not folders:  # links come last, so that a folder has its own name rather than that of a link
            folders, links = sorted(links), []
        below: list[str] = []
        for folder in folders:
            status = os.stat(os.path.join(path, folder))
            if (status.st_dev, status.st_ino) in seen:  # links may form loops
                continue
            seen.add((status.st_dev, status.st_ino))
            for name, kind in _entries(path, folder, passed_over):
                if kind == "image":
                    yield name
                elif recursive:
                    (links if kind == "link" else below).append(name)
        folders = below


def _entries(path: str, prefix: str, passed_over: PassedOver) -> Iterator[tuple[str, str]]:
    """Yields the names of images, subfolders and links to folders in a folder, and which of these they are."""
    with os.scandir(os.path.join(path, prefix)) as entries:
        for entry in entries:
            name, is_link = f"{prefix}/{entry.name}" if prefix else entry.name, entry.is_symlink()
            # Unlike the methods of entries, os.path accepts links that point to themselves.
            is_folder = os.path.isdir(entry.path) if is_link else entry.is_dir()
            if is_folder and IS_HIDDEN(entry.name):
                passed_over.kinds[HIDDEN] += 1
            elif is_folder:
                passed_over.kinds[SUBFOLDER] += 1
                yield name, "link" if is_link else "folder"
            elif passed_over.takes(entry.name):
                if (os.path.isfile(entry.path) or not os.path.exists(entry.path)) if is_link else entry.is_file():
                    yield name, "image"
                else:
                    passed_over.kinds["not a regular file"] += 1
