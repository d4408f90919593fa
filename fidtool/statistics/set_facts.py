"""What decides whether the values of a set are comparable with published ones, besides its number of images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fidtool.features.protocol import FEATURES
from fidtool.statistics.set_statistics import MeasuredSet

_MOST_SIZES = 5
"""Number of sizes of images that are listed."""


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
    """

    origin: str = ""
    reference: str = ""
    sha256: Mapping[str, str] = field(default_factory=dict)
    stated: bool = False
    precision: str | None = None
    with_features: int | None = None
    formats: Mapping[str, int] | None = None
    sizes: Mapping[str, int] | None = None


def facts_of(measured: MeasuredSet, reference: str, sha256: Mapping[str, str]) -> SetFacts:
    """Returns the facts about a set, on rank zero."""
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
    return replace(facts, formats=dict(formats.most_common()), sizes=shown)
