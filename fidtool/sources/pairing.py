"""Pairs of images: which image of one set belongs to which of another."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fidtool.errors import InputError, option
from fidtool.names import counted
from fidtool.sources.image_set import ImageSet, Numbered, check_numbers

SUFFIX = "suffix:"
"""Beginning of a value of ``pairs`` that names the end of FAKE's names."""


def paired(fake: ImageSet, real: ImageSet, how: str | None) -> ImageSet:
    """Return FAKE's images in the order of their partners in REAL.

    Args:
        fake, real: all images of FAKE, and those of REAL that are used, in canonical order.
        how: ``name`` for equal relative paths without suffix; ``position`` for the same place in the stored order, in a
            list of paths that of the lines; ``suffix:_recon`` if FAKE's names end in ``_recon`` besides. None is the
            position if both sets are arrays or lists, and the name otherwise.

    Raises:
        InputError: if an image has no partner, or several; or if a set can only be read sequentially.
    """
    if how not in (None, "name", "position") and not (how or "").startswith(SUFFIX):
        problem = f"{option('pairs', how)} must be name, position or suffix:TEXT, such as suffix:_recon"
        raise InputError(problem, setting="pairs")
    for each in (fake, real):
        if each.reader.in_order:
            problem = f"pairs are read in any order, but {each.path} ({each.kind}) can only be read sequentially:"
            raise InputError(problem, "unpack it")
    named = [each for each in (fake, real) if each.lines is None and not isinstance(each.stored, Numbered)]
    if how == "position" or (how is None and not named):
        for each in named:
            if len(named) == 2:
                problem = f"{option('pairs', 'position')} is for arrays and lists, and {each.path} is neither:"
                raise InputError(problem, f"omit {option('pairs')}", setting="pairs")
            check_numbers(option("pairs", "position"), each.path, each.stored, "pairs")
        partners = _by_position(fake, real)
    else:
        partners = _by_name(fake, real, (how or "").removeprefix(SUFFIX) if how != "name" else "")
    return replace(fake, order=partners[real.order.astype(np.int64)])


def _by_position(fake: ImageSet, real: ImageSet) -> NDArray[np.int64]:
    """The number in FAKE of the partner of each stored image of REAL."""
    counts = len(fake.stored), len(real.stored)
    if counts[0] != counts[1]:
        problem = f"pairs by position need as many images: {fake.path} has {counts[0]}, and {real.path} {counts[1]}:"
        raise InputError(problem, "pass as many of both", setting="pairs")
    places = [np.arange(counts[0]) if each.lines is None else np.argsort(each.lines) for each in (fake, real)]
    found = np.empty(counts[0], dtype=np.int64)
    found[places[1]] = places[0]
    return found


def _by_name(fake: ImageSet, real: ImageSet, suffix: str) -> NDArray[np.int64]:
    generated, usual = _numbers(fake, suffix), _numbers(real, "")
    alone = [
        f"{counted(len(names), 'image')} of {each.path} ({', '.join(names[:3])}{', …' if names[3:] else ''})"
        for each, own, others in ((fake, generated, usual), (real, usual, generated))
        if (names := [each.stored[number] for name, number in own.items() if name not in others])
    ]
    if alone:
        ending = f" and then {suffix!r} in {option('fake')}" if suffix else ""
        problem = f"no partner of the same relative path without suffix{ending} for {' and '.join(alone)}:"
        raise InputError(problem, "rename them", f"see {option('pairs', ...)}", setting="pairs")
    found = np.empty(len(usual), dtype=np.int64)
    for name, number in usual.items():
        found[number] = generated[name]
    return found


def _numbers(images: ImageSet, suffix: str) -> dict[str, int]:
    """The number of each stored image by the name that pairs it."""
    found: dict[str, int] = {}
    # Of frames, the number is a part of the name: x.gif[1] belongs to x.webp[1].
    names = (re.sub(rf"({re.escape(suffix)})?(\.[^./]*?)?(\[\d+\])?$", r"\3", each, count=1) for each in images.stored)
    for number, name in enumerate(names):
        if found.setdefault(name, number) != number:
            two = f"{images.stored[found[name]]} and {images.stored[number]}"
            raise InputError(f"{two} of {images.path} would have the same partner:", "rename one", setting="pairs")
    return found
