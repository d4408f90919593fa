"""Pairs of images: which image of one set belongs to which of another."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fidtool.errors import InputError, Say, option
from fidtool.names import format_count, natural_key
from fidtool.sources.image_set import ImageSet, Numbered, check_name_order

SUFFIX = "suffix:"
"""Beginning of a value of ``pairs`` that names the end of the names of FAKE, or of REAL."""
METHODS = ("name", "position", "number", "sorted")
"""The other values of ``pairs``."""
# The number of each stored image of a set, by the key that it has in common with its partner.
_Keys = Mapping[Any, int]


def pair_images(
    fake: ImageSet, real: ImageSet, how: str | None, say: Say = lambda line: None
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
    if how not in (None, *METHODS) and not str(how).startswith(SUFFIX):
        raise InputError(
            f"{option('pairs', how)} must be {', '.join(METHODS)} or suffix:TEXT, such as "
            "suffix:_recon"
        )
    for images in (fake, real):
        if images.reader.in_order:
            raise InputError(
                f"pairs are read in any order, but {images.path} ({images.kind}) can only be read "
                "sequentially:",
                "unpack it",
            )
    named = [
        images
        for images in (fake, real)
        if images.lines is None and not isinstance(images.stored, Numbered)
    ]
    if how is None:
        how = "name" if named else "position"
    if how == "position":
        _refuse_unordered(named)
    fake_keys = _pairing_keys(fake, how)
    real_keys = _pairing_keys(real, how)
    if how in ("position", "sorted") and len(fake.stored) != len(real.stored):
        raise InputError(
            f"pairs by position need equal numbers of images: {fake.path} has {len(fake.stored)}, "
            f"and {real.path} has {len(real.stored)}:",
            "pass equal numbers",
            setting="pairs",
        )
    partners = _match_partners(fake, real, fake_keys, real_keys, how)
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
    position = option("pairs", "position")
    if len(named) == 2:
        raise InputError(
            f"{position} is for arrays and lists, and {named[0].path} is neither:", in_order
        )
    for images in named:
        check_name_order(position, images.path, images.stored, in_order)


def _pairing_keys(images: ImageSet, how: str) -> _Keys:
    """The number of each stored image by the key that it has in common with its partner."""
    if how == "position":
        if images.lines is None:
            return {number: number for number in range(len(images.stored))}
        return dict(enumerate(np.argsort(images.lines).tolist()))
    if how == "sorted":
        keys = [natural_key(_stem(name)) for name in images.stored]
        return dict(enumerate(sorted(range(len(keys)), key=keys.__getitem__)))
    if how == "number":
        return _last_numbers(images)
    return _index_by_key(images, [_stem(name, _parse_suffix(how)) for name in images.stored])


def _parse_suffix(how: str) -> str:
    return how.removeprefix(SUFFIX) if how.startswith(SUFFIX) else ""


def _last_numbers(images: ImageSet) -> dict[str, int]:
    """The number of each stored image by the last number in its name, without leading zeros."""
    remedy = f"pass {option('pairs', 'sorted')}"
    keys = []
    for name in images.stored:
        digits = re.findall(r"\d+", _stem(name))
        if not digits:
            raise InputError(
                f"{name} of {images.path} has no number in its name:", remedy, setting="pairs"
            )
        keys.append(digits[-1].lstrip("0"))
    return _index_by_key(images, keys, remedy)


def _match_partners(
    fake: ImageSet,
    real: ImageSet,
    fake_keys: _Keys,
    real_keys: _Keys,
    how: str,
) -> NDArray[np.int64]:
    """The number in FAKE of the partner of each stored image of REAL."""
    alone = [
        *_describe_unpaired(fake, fake_keys, real_keys),
        *_describe_unpaired(real, real_keys, fake_keys),
    ]
    if alone:
        have = "has" if len(alone) == 1 and alone[0].startswith("1 ") else "have"
        what = "number" if how == "number" else "relative path without suffix"
        if _parse_suffix(how):
            what += f" and then {_parse_suffix(how)!r}"
        remedies = ["rename them", f"see {option('pairs', ...)}"]
        fitting = _suggest_pairing(fake, real) if fake_keys.keys().isdisjoint(real_keys) else None
        if fitting is not None:
            remedies = [f"pass {option('pairs', fitting)}", "rename them"]
        raise InputError(
            f"{' and '.join(alone)} {have} no partner with the same {what}:",
            *remedies,
            setting="pairs",
        )
    partners = np.empty(len(real_keys), dtype=np.int64)
    for key, number in real_keys.items():
        partners[number] = fake_keys[key]
    return partners


def _describe_unpaired(images: ImageSet, keys: _Keys, others: _Keys) -> Iterator[str]:
    """Yield a description of the images whose keys the other set lacks, if there are any."""
    names = [images.stored[number] for key, number in keys.items() if key not in others]
    if names:
        examples = ", ".join(names[:3])
        if len(names) > 3:
            examples += ", …"
        yield f"{format_count(len(names), 'image')} of {images.path} ({examples})"


def _suggest_pairing(fake: ImageSet, real: ImageSet) -> str | None:
    """The value of ``pairs`` with which each image has a partner, if one is known; the surest of
    several.
    """
    fake_stems = list(map(_stem, fake.stored))
    real_stems = list(map(_stem, real.stored))
    for longer, shorter in ((fake_stems, real_stems), (real_stems, fake_stems)):
        known = set(shorter)
        first = longer[0]
        for length in range(1, len(first)):
            ending = first[-length:]
            if first[:-length] in known and {stem.removesuffix(ending) for stem in longer} == known:
                return f"{SUFFIX}{ending}"
    try:
        if _last_numbers(fake).keys() == _last_numbers(real).keys():
            return "number"
    except InputError:  # names without a number, or with the same
        pass
    return "sorted" if len(fake_stems) == len(real_stems) else None


def _stem(name: str, suffix: str = "") -> str:
    """A name without the suffix of its file, and without ``suffix`` before that.

    Of frames, the number is a part of the name: x.gif[1] belongs to x.webp[1].
    """
    return re.sub(rf"({re.escape(suffix)})?(\.[^./]*?)?(\[\d+\])?$", r"\3", name, count=1)


def _index_by_key(images: ImageSet, keys: Sequence[str], *remedies: str) -> dict[str, int]:
    """The number of each stored image by the key that pairs it."""
    numbers: dict[str, int] = {}
    for number, key in enumerate(keys):
        if key in numbers:
            raise InputError(
                f"{images.stored[numbers[key]]} and {images.stored[number]} of {images.path} would "
                "have the same partner:",
                "rename one",
                *remedies,
                setting="pairs",
            )
        numbers[key] = number
    return numbers
