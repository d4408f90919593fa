"""Pairs of images: which image of one set belongs to which of another."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fidtool.errors import InputError, option
from fidtool.names import counted, in_natural_order
from fidtool.sources.image_set import ImageSet, Numbered, check_numbers

SUFFIX = "suffix:"
"""Beginning of a value of ``pairs`` that names the end of the names of FAKE, or of REAL."""
HOWS = ("name", "position", "number", "sorted")
"""The other values of ``pairs``."""


def paired(
    fake: ImageSet, real: ImageSet, how: str | None, say: Callable[[str], None] = lambda line: None
) -> ImageSet:
    """Return FAKE's images in the order of their partners in REAL.

    Args:
        fake, real: all images of FAKE, and those of REAL that are used, in canonical order.
        how: ``name`` for equal relative paths without suffix; ``position`` for the same place in
            the stored order, in a list of paths that of the lines; ``number`` for the last number
            in the name; ``sorted`` for the same place in natural order of the names;
            ``suffix:_recon`` if the names of a set end in ``_recon`` besides. None is the position
            if both sets are arrays or lists, and the name otherwise.
        say: prints examples of pairs that numbers or the order decided.

    Raises:
        InputError: if an image has no partner, or several; or if a set can only be read
            sequentially.
    """
    if how not in (None, *HOWS) and not (how or "").startswith(SUFFIX):
        raise InputError(
            f"{option('pairs', how)} must be {', '.join(HOWS)} or suffix:TEXT, such as "
            "suffix:_recon",
            setting="pairs",
        )
    for each in (fake, real):
        if each.reader.in_order:
            raise InputError(
                f"pairs are read in any order, but {each.path} ({each.kind}) can only be read "
                "sequentially:",
                "unpack it",
            )
    named = [
        each
        for each in (fake, real)
        if each.lines is None and not isinstance(each.stored, Numbered)
    ]
    if how is None:
        how = "name" if named else "position"
    if how == "position":
        _refuse_unordered(named)
    generated, usual = _keys(fake, how), _keys(real, how)
    counts = len(fake.stored), len(real.stored)
    if how in ("position", "sorted") and counts[0] != counts[1]:
        raise InputError(
            f"pairs by position need as many images: {fake.path} has {counts[0]}, and {real.path} "
            f"{counts[1]}:",
            "pass as many of both",
            setting="pairs",
        )
    partners = _partners(fake, real, generated, usual, how)
    if how in ("number", "sorted"):
        examples = [
            f"{fake.prefix}{fake.stored[partners[number]]} and {real.prefix}{real.stored[number]}"
            for number in sorted({0, len(partners) // 2, len(partners) - 1})
        ]
        say(f"pairs ({option('pairs', how)}) are, for example, {'; '.join(examples)}")
    return replace(fake, order=partners[real.order.astype(np.int64)])


def _refuse_unordered(named: Sequence[ImageSet]) -> None:
    """Refuse pairs by position if both sets have names, or the names of one are not in the order of
    their numbers.
    """
    in_order = f"pass {option('pairs', 'sorted')} for the natural order of the names"
    for each in named:
        if len(named) == 2:
            raise InputError(
                f"{option('pairs', 'position')} is for arrays and lists, and {each.path} is "
                "neither:",
                in_order,
                setting="pairs",
            )
        check_numbers(option("pairs", "position"), each.path, each.stored, "pairs", in_order)


def _keys(images: ImageSet, how: str) -> Mapping[Any, int]:
    """The number of each stored image by the key that it has in common with its partner."""
    if how == "position":
        return dict(
            enumerate(
                range(len(images.stored))
                if images.lines is None
                else np.argsort(images.lines).tolist()
            )
        )
    if how == "sorted":
        keys = [in_natural_order(_stem(name)) for name in images.stored]
        return dict(enumerate(sorted(range(len(keys)), key=keys.__getitem__)))
    if how == "number":
        return last_numbers(images)
    return _numbers(images, [_stem(name, _suffix_of(how)) for name in images.stored])


def _suffix_of(how: str) -> str:
    return how.removeprefix(SUFFIX) if how.startswith(SUFFIX) else ""


def last_numbers(images: ImageSet) -> dict[str, int]:
    """The number of each stored image by the last number in its name, without leading zeros."""
    found = [re.findall(r"\d+", _stem(name)) for name in images.stored]
    remedy = f"pass {option('pairs', 'sorted')}"
    if not all(found):
        raise InputError(
            f"{images.stored[found.index([])]} of {images.path} has no number in its name:",
            remedy,
            setting="pairs",
        )
    return _numbers(images, [numbers[-1].lstrip("0") for numbers in found], remedy)


def _partners(
    fake: ImageSet, real: ImageSet, generated: Mapping[Any, int], usual: Mapping[Any, int], how: str
) -> NDArray[np.int64]:
    """The number in FAKE of the partner of each stored image of REAL, for those of both sets by
    what pairs them.
    """
    alone = []
    for each, own, others in ((fake, generated, usual), (real, usual, generated)):
        if names := [each.stored[number] for key, number in own.items() if key not in others]:
            examples = ", ".join(names[:3]) + ", …" * bool(names[3:])
            alone.append(f"{counted(len(names), 'image')} of {each.path} ({examples})")
    if alone:
        ending = f" and then {_suffix_of(how)!r}" if _suffix_of(how) else ""
        what = "number" if how == "number" else f"relative path without suffix{ending}"
        problem = f"no partner of the same {what} for {' and '.join(alone)}:"
        fitting = _that_fits(fake, real) if generated.keys().isdisjoint(usual) else None
        remedies = [f"pass {option('pairs', fitting)}", "rename them"]
        if fitting is None:
            remedies = ["rename them", f"see {option('pairs', ...)}"]
        raise InputError(problem, *remedies, setting="pairs")
    found = np.empty(len(usual), dtype=np.int64)
    found[[*usual.values()]] = [generated[key] for key in usual]
    return found


def _that_fits(fake: ImageSet, real: ImageSet) -> str | None:
    """The value of ``pairs`` with which each image has a partner, if one is known; the surest of
    several.
    """
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
            raise InputError(
                f"{two} of {images.path} would have the same partner:",
                "rename one",
                *remedies,
                setting="pairs",
            )
    return found
