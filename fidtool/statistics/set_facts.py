"""What decides whether the values of a set are comparable with published ones, besides its number of images."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fidtool.features.protocol import FEATURES
from fidtool.sources.census import ARCHIVE_SUFFIXES
from fidtool.statistics.set_statistics import MeasuredSet

_OF_SEEDS = re.compile("[0-9]{3,}000", re.ASCII)
"""Folders of a thousand samples each that EDM's and EDM2's --subdirs makes, named after the first seed; no classes."""
_MOST_SIZES = 5
"""Number of sizes of images that are listed."""


@dataclass(frozen=True)
class Classes:
    """Numbers of images per class, where folders name the classes.

    Attributes:
        number: number of classes.
        images: number of images.
        fewest, most: smallest and largest number of images in a class.
        squares: sum over the classes of the squared number of images.
    """

    number: int
    images: int
    fewest: int
    most: int
    squares: int


@dataclass(frozen=True)
class SetFacts:
    """What decides whether the values of a set are comparable with published ones, besides its number of images.

    Attributes:
        origin: the program that wrote its statistics file; empty if unknown, and for images.
        reference: name of the published reference, such as ``adm:imagenet256``; empty if it is none.
        sha256: SHA-256 of each array of the published reference, by its name.
        stated: whether its statistics state or imply their protocol; True for images.
        precision: precision in which its statistics were computed; None if a statistics file does not state it.
        with_features: number of images whose per-image features were used; None if there are none.
        formats: number of images by file format; None if the images were not inspected.
        sizes: number of images by width and height, such as ``256x256``: the most frequent sizes. None as above.
        classes: images per class; None if no folders name classes, or as above.
    """

    origin: str = ""
    reference: str = ""
    sha256: Mapping[str, str] = field(default_factory=dict)
    stated: bool = False
    precision: str | None = None
    with_features: int | None = None
    formats: Mapping[str, int] | None = None
    sizes: Mapping[str, int] | None = None
    classes: Classes | None = None


def facts_of(measured: MeasuredSet, reference: str, sha256: Mapping[str, str]) -> SetFacts:
    """Returns the facts about a set, on rank zero.

    Args:
        measured: the set.
        reference, sha256: see `SetFacts`.
    """
    statistics, features = measured.statistics, measured.features.get(FEATURES)
    assert statistics is not None
    facts = SetFacts(
        statistics.origin,
        reference,
        sha256,
        statistics.definition is not None,
        (statistics.arithmetic or {}).get("precision"),
        None if features is None else len(features),
    )
    pictures = statistics.pictures
    if pictures is None:
        return facts
    formats = Counter(value.decode() for value in pictures.records["format"].tolist())
    sizes = Counter(zip(pictures.records["width"].tolist(), pictures.records["height"].tolist(), strict=True))
    shown = {f"{width}x{height}": number for (width, height), number in sizes.most_common(_MOST_SIZES)}
    return replace(facts, formats=dict(formats.most_common()), sizes=shown, classes=classes_in(pictures.names))


def classes_in(names: Sequence[str]) -> Classes | None:
    """Returns the images per class, which the first folders name; None if images are in none, or these name seeds."""
    found = Counter(name.partition("/")[0] if "/" in name else "" for name in names)
    if any(not name or name.lower().endswith(ARCHIVE_SUFFIXES) for name in found):
        return None
    if all(_OF_SEEDS.fullmatch(name) for name in found):
        return None
    counts = found.values()
    return Classes(len(found), found.total(), min(counts), max(counts), sum(count**2 for count in counts))
