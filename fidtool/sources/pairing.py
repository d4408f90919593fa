"""Pairs of images: which image of one set belongs to which of another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from os.path import splitext

import numpy as np
from numpy.typing import NDArray

from fidtool.errors import InputError, option
from fidtool.names import counted
from fidtool.sources.image_set import ImageSet, Numbered

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
    listed = all(each.lines is not None or isinstance(each.stored, Numbered) for each in (fake, real))
    if how == "position" or (how is None and listed):
        partners = _by_position(fake, real)
    else:
        partners = _by_name(fake, real, (how or "").removeprefix(SUFFIX) if how != "name" else "")
    return replace(fake, order=partners[real.order.astype(np.int64)])


def _by_position(fake: ImageSet, real: ImageSet) -> NDArray[np.int64]:
    """The number in FAKE of the partner of each stored image of REAL."""
    counts = len(fake.stored), len(real.stored)
    if counts[0] != counts[1]:
        problem = f"pairs by position need as many images: {fake.path} has {counts[0]}, and {real.path} {counts[1]}:"
        raise InputError(problem, f"pass {option('pairs', 'name')} to pair them by name", setting="pairs")
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
        problem = f"{' and '.join(alone)} have no partner of the same relative path without suffix{ending}:"
        other = f"pass {option('pairs', 'position')} to pair them in their order"
        raise InputError(problem, "rename them", other, setting="pairs")
    found = np.empty(len(usual), dtype=np.int64)
    for name, number in usual.items():
        found[number] = generated[name]
    return found


def _numbers(images: ImageSet, suffix: str) -> dict[str, int]:
    """The number of each stored image by the name that pairs it."""
    found: dict[str, int] = {}
    for number, name in enumerate(_without(images.stored, suffix)):
        if found.setdefault(name, number) != number:
            two = f"{images.stored[found[name]]} and {images.stored[number]}"
            raise InputError(f"{two} of {images.path} would have the same partner:", "rename one", setting="pairs")
    return found


def _without(names: Sequence[str], suffix: str) -> list[str]:
    return [splitext(name)[0].removesuffix(suffix) for name in names]
