"""Several files under one name: ``shards-{000..127}.tar``, ``part-*.parquet``. Imports no torch."""

from __future__ import annotations

import glob
import itertools
import os
import re
from collections.abc import Sequence

from fidtool.errors import InputError

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
URL_WILDCARD = re.compile(r"[*\[]")
"""``?`` is part of many addresses."""
_PADDED = re.compile(r"0\d+(?=\D*$)")
_PARTS = (".tar", ".tar.gz", ".tgz", ".parquet")
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
        if None in numbers or not first.lower().endswith(_PARTS):
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
        raise InputError(f"{path} names a folder ({folders[0]}): patterns are for files; give one folder without any")
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
