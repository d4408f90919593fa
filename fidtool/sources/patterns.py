"""Several files under one name: ``shards-{000..127}.tar``, ``part-*.parquet``. Imports no torch."""

from __future__ import annotations

import glob
import os
import re

from fidtool.errors import InputError

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
URL_WILDCARD = re.compile(r"[*\[]")
"""``?`` is part of many addresses."""
_MOST = 1_000_000


def is_pattern(path: str) -> bool:
    """Whether a name means several files: it has braces, or wildcards, and is not itself a file's."""
    if "://" in path:
        return bool(_BRACES.search(path) or URL_WILDCARD.search(path))
    return bool(_BRACES.search(path) or glob.has_magic(path)) and not os.path.lexists(path)


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
    return [f"{before}{choice}{end}" for choice in choices for end in rest]
