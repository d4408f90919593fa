"""Pairs of images: which image of one set belongs to which of another."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fidtool.errors import InputError, option
from fidtool.names import counted, in_natural_order
from fidtool.sources.image_set import ImageSet, Numbered, check_numbers

SUFFIX = "suffix:"
"""Beginning of a value of ``pairs`` that names the end of the names of FAKE, or of REAL."""
HOWS = ("name", "position", "number", "sorted")
"""The other values of ``pairs``."""


def paired(fake: ImageSet, real: ImageSet, how: str | None, say: Callable[[str], None] = lambda line: None) -> ImageSet:
    """Return FAKE's images in the order of their partners in REAL.

    Args:
        fake, real: all images of FAKE, and those of REAL that are used, in canonical order.
        how: ``name`` for equal relative paths without suffix; ``position`` for the same place in the stored order, in a
            list of paths that of the lines; ``number`` for the last number in the name; ``sorted`` for the same place
            in natural order of the names; ``suffix:_recon`` if the names of a set end in ``_recon`` besides. None is
            the position if both sets are arrays or lists, and the name otherwise.
        say: prints examples of pairs that numbers or the order decided.

    Raises:
        InputError: if an image has no partner, or several; or if a set can only be read sequentially.
    """
    if how not in (None, *HOWS) and not (how or "").startswith(SUFFIX):
        problem = f"{option('pairs', how)} must be {', '.join(HOWS)} or suffix:TEXT, such as suffix:_recon"
        raise InputError(problem, setting="pairs")
    for each in (fake, real):
        if each.reader.in_order:
            problem = f"pairs are read in any order, but {each.path} ({each.kind}) can only be read sequentially:"
            raise InputError(problem, "unpack it")
    named = [each for each in (fake, real) if each.lines is None and not isinstance(each.stored, Numbered)]
    if how == "sorted":
        partners = _by_place(fake, real, [_in_natural_order(each.stored) for each in (fake, real)])
    elif how == "position" or (how is None and not named):
        partners = _by_position(fake, real, named)
    elif how == "number":
        partners = _by_key(fake, real, last_numbers(fake), last_numbers(real), "number")
    else:
        suffix = (how or "").removeprefix(SUFFIX) if how != "name" else ""
        partners = _by_name(fake, real, suffix)
    if how in ("number", "sorted"):
        examples = [
            f"{fake.prefix}{fake.stored[partners[number]]} and {real.prefix}{real.stored[number]}"
            for number in sorted({0, len(partners) // 2, len(partners) - 1})
        ]
        say(f"pairs ({option('pairs', how)}) are, for example, {'; '.join(examples)}")
    return replace(fake, order=partners[real.order.astype(np.int64)])


def _by_position(fake: ImageSet, real: ImageSet, named: Sequence[ImageSet]) -> NDArray[np.int64]:
    in_order = f"pass {option('pairs', 'sorted')} for the natural order of the names"
    for each in named:
        if len(named) == 2:
            problem = f"{option('pairs', 'position')} is for arrays and lists, and {each.path} is neither:"
            raise InputError(problem, in_order, setting="pairs")
        check_numbers(option("pairs", "position"), each.path, each.stored, "pairs", in_order)
    places = [np.arange(len(each.stored)) if each.lines is None else np.argsort(each.lines) for each in (fake, real)]
    return _by_place(fake, real, places)


def _by_place(fake: ImageSet, real: ImageSet, places: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """The number in FAKE of the partner of each stored image of REAL, for those of both sets in the order of pairs."""
    counts = len(fake.stored), len(real.stored)
    if counts[0] != counts[1]:
        problem = f"pairs by position need as many images: {fake.path} has {counts[0]}, and {real.path} {counts[1]}:"
        raise InputError(problem, "pass as many of both", setting="pairs")
    found = np.empty(counts[0], dtype=np.int64)
    found[places[1]] = places[0]
    return found


def _in_natural_order(names: Sequence[str]) -> NDArray[np.int64]:
    keys = [in_natural_order(_stem(name)) for name in names]
    return np.array(sorted(range(len(keys)), key=keys.__getitem__), dtype=np.int64)


def _by_name(fake: ImageSet, real: ImageSet, suffix: str) -> NDArray[np.int64]:
    generated, usual = (_numbers(each, [_stem(name, suffix) for name in each.stored]) for each in (fake, real))
    ending = f" and then {suffix!r}" if suffix else ""
    return _by_key(fake, real, generated, usual, f"relative path without suffix{ending}")


def last_numbers(images: ImageSet) -> dict[str, int]:
    """The number of each stored image by the last number in its name, without leading zeros."""
    found = [re.findall(r"\d+", _stem(name)) for name in images.stored]
    remedy = f"pass {option('pairs', 'sorted')}"
    if not all(found):
        problem = f"{images.stored[found.index([])]} of {images.path} has no number in its name:"
        raise InputError(problem, remedy, setting="pairs")
    return _numbers(images, [numbers[-1].lstrip("0") for numbers in found], remedy)


def _by_key(
    fake: ImageSet, real: ImageSet, generated: Mapping[str, int], usual: Mapping[str, int], what: str
) -> NDArray[np.int64]:
    """The number in FAKE of the partner of each stored image of REAL, for those of both sets by what pairs them."""
    alone = [
        f"{counted(len(names), 'image')} of {each.path} ({', '.join(names[:3])}{', …' if names[3:] else ''})"
        for each, own, others in ((fake, generated, usual), (real, usual, generated))
        if (names := [each.stored[number] for name, number in own.items() if name not in others])
    ]
    if alone:
        problem = f"no partner of the same {what} for {' and '.join(alone)}:"
        fitting = _that_fits(fake, real) if generated.keys().isdisjoint(usual) else None
        remedies = [f"pass {option('pairs', fitting)}", "rename them"]
        if fitting is None:
            remedies = ["rename them", f"see {option('pairs', ...)}"]
        raise InputError(problem, *remedies, setting="pairs")
    found = np.empty(len(usual), dtype=np.int64)
    for name, number in usual.items():
        found[number] = generated[name]
    return found


def _that_fits(fake: ImageSet, real: ImageSet) -> str | None:
    """The value of ``pairs`` with which each image has a partner, if one is known; the surest of several."""
    stems = [[_stem(name) for name in each.stored] for each in (fake, real)]
    for longer, shorter in (stems, stems[::-1]):
        known, first = {*shorter}, longer[0]
        for length in range(1, len(first)):
            ending = first[-length:]
            if first[:-length] in known and {stem.removesuffix(ending) for stem in longer} == known:
                return f"{SUFFIX}{ending}"
    try:
        if last_numbers(fake).keys() == last_numbers(real).keys():
            return "number"
    except InputError:  # names without a number, or with the same
        pass
    return "sorted" if len(fake.stored) == len(real.stored) else None


def _stem(name: str, suffix: str = "") -> str:
    """A name without the suffix of its file, and without ``suffix`` before that.

    Of frames, the number is a part of the name: x.gif[1] belongs to x.webp[1].
    """
    return re.sub(rf"({re.escape(suffix)})?(\.[^./]*?)?(\[\d+\])?$", r"\3", name, count=1)


def _numbers(images: ImageSet, keys: Sequence[str], *remedies: str) -> dict[str, int]:
    """The number of each stored image by the key that pairs it."""
    found: dict[str, int] = {}
    for number, key in enumerate(keys):
        if found.setdefault(key, number) != number:
            two = f"{images.stored[found[key]]} and {images.stored[number]}"
            problem = f"{two} of {images.path} would have the same partner:"
            raise InputError(problem, "rename one", *remedies, setting="pairs")
    return found
