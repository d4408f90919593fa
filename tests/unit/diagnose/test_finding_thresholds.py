"""Thresholds for findings about a set: images just below and just above each."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fidtool.diagnose.diagnosis import SetInspection, select_unusual
from fidtool.diagnose.duplicates import Duplicates
from fidtool.diagnose.findings import Finding, set_findings
from fidtool.diagnose.measures import Measures
from fidtool.reading.records import ImageRecords
from support.records import flagged, histogram, pictures, records, share, some, thumbnail


def unscaled(high: int = 1, count: int = 100) -> ImageRecords:
    return pictures(low=0, high=some((count, high), (100 - count, 250)))


def one_colour(count: int) -> ImageRecords:
    return pictures(
        low=some((count, 90), (100 - count, 5)), high=some((count, 90), (100 - count, 250))
    )


def noise(
    count: int = 100,
    of: int = 100,
    contrast: float = 60.0,
    light: int = 128,
    roughness: int = 99,
    at_the_ends: float | None = None,
) -> ImageRecords:
    bins = histogram(contrast)
    if at_the_ends is not None:
        bins[:] = 0
        bins[[0, 7, 15]] = share(at_the_ends), share(1 - at_the_ends), 0
    rough = some((count, roughness), (of - count, 10))
    return pictures(of, roughness=rough, bins=bins, thumb=thumbnail(light))


def of_ends(
    zeros: float,
    full: float,
    black: float = 0.0,
    contrast: float = 60.0,
    count: int = 100,
    channels: float | None = None,
) -> ImageRecords:
    """Images with these shares of values at 0, at 255 and in black pixels. ``channels``: zeros
    outside black pixels.
    """
    if channels is not None:
        black = zeros - channels
    parts = {"zeros": zeros, "full": full, "black": black / 3}
    own = {name: some((count, share(part)), (100 - count, 0)) for name, part in parts.items()}
    return pictures(low=0, high=255, bins=histogram(contrast), **own)


def pale(low: int = 125, count: int = 100) -> ImageRecords:
    return pictures(low=some((count, low), (100 - count, 5)))


def dark(high: int = 40, count: int = 100) -> ImageRecords:
    return pictures(low=0, high=some((count, high), (100 - count, 250)))


def few_dark(count: int) -> ImageRecords:
    return pictures(12, low=0, high=some((count, 40), (12 - count, 250)))


def gray(count: int, of: int = 100) -> ImageRecords:
    return pictures(of, gray=some((count, 1), (of - count, 0)))


def odd_sizes(count: int) -> ImageRecords:
    return pictures(width=some((count, 90), (100 - count, 100)))


def lossy(count: int) -> ImageRecords:
    return pictures(flags=flagged((count, "lossy"), (100 - count, "")))


Make = Callable[[], ImageRecords]
THRESHOLDS: dict[str, tuple[str, Make, Make]] = {
    "unscaled: the largest value": ("unscaled", lambda: unscaled(3), lambda: unscaled(2)),
    "unscaled: most images": ("unscaled", lambda: unscaled(count=50), lambda: unscaled(count=51)),
    "unscaled: a few are black": (
        "unscaled",
        lambda: pictures(low=0, high=some((2, 1), (98, 0))),
        lambda: pictures(low=0, high=some((3, 1), (97, 0))),
    ),
    "black: most images": ("black", lambda: unscaled(0, 50), lambda: unscaled(0, 51)),
    "noise: roughness": ("noise", lambda: noise(roughness=79), lambda: noise(roughness=80)),
    "noise: contrast of something dark": (
        "noise",
        lambda: noise(contrast=24.9, light=63),
        lambda: noise(contrast=25.1, light=63),
    ),
    "noise: contrast of something bright": (
        "noise",
        lambda: noise(contrast=11.9, light=64),
        lambda: noise(contrast=12.1, light=64),
    ),
    "noise: what is bright": (
        "noise",
        lambda: noise(contrast=20, light=63),
        lambda: noise(contrast=20, light=64),
    ),
    "noise: of two values": (
        "noise",
        lambda: noise(at_the_ends=0.902),
        lambda: noise(at_the_ends=0.898),
    ),
    "noise: more than two": ("noise", lambda: noise(2), lambda: noise(3)),
    "noise: half of a few": ("noise", lambda: noise(1, 2), lambda: noise(2, 2)),
    "noise: of many more than one percent": ("noise", lambda: noise(4, 400), lambda: noise(5, 400)),
    "negative: zeros": ("negative", lambda: of_ends(0.299, 0), lambda: of_ends(0.301, 0)),
    "negative: mostly black": ("negative", lambda: of_ends(0.851, 0), lambda: of_ends(0.849, 0)),
    "negative: white": ("negative", lambda: of_ends(0.5, 0.0502), lambda: of_ends(0.5, 0.0498)),
    "negative: one channel": (
        "negative",
        lambda: of_ends(0.5, 0, channels=0.029),
        lambda: of_ends(0.5, 0, channels=0.031),
    ),
    "negative: contrast": (
        "negative",
        lambda: of_ends(0.5, 0, contrast=29.9),
        lambda: of_ends(0.5, 0, contrast=30.1),
    ),
    "negative: share": (
        "negative",
        lambda: of_ends(0.5, 0, count=35),
        lambda: of_ends(0.5, 0, count=36),
    ),
    "pale: the smallest value": ("pale", lambda: pale(119), lambda: pale(120)),
    "pale: share": ("pale", lambda: pale(count=90), lambda: pale(count=91)),
    "clipped: white": ("clipped", lambda: of_ends(0.25, 0.0198), lambda: of_ends(0.25, 0.0202)),
    "clipped: both ends": ("clipped", lambda: of_ends(0.1, 0.099), lambda: of_ends(0.1, 0.101)),
    "clipped: nothing else": (
        "clipped",
        lambda: of_ends(0.451, 0.45),
        lambda: of_ends(0.449, 0.45),
    ),
    "clipped: share": (
        "clipped",
        lambda: of_ends(0.2, 0.2, count=30),
        lambda: of_ends(0.2, 0.2, count=31),
    ),
    "dark: the largest value": ("dark", lambda: dark(65), lambda: dark(64)),
    "dark: not unscaled": ("dark", lambda: dark(2, 40), lambda: dark(3, 40)),
    "dark: share": ("dark", lambda: dark(count=5), lambda: dark(count=6)),
    "odd size: share": ("odd size", lambda: odd_sizes(21), lambda: odd_sizes(20)),
    "gray: more than a few": ("gray", lambda: gray(5), lambda: gray(6)),
    "gray: more than by chance": ("gray", lambda: gray(2, 12), lambda: gray(3, 12)),
    "dark: more than by chance": ("dark", lambda: few_dark(2), lambda: few_dark(3)),
    "gray: at most half": ("gray", lambda: gray(51), lambda: gray(50)),
    "strong compression: quality": (
        "strong compression",
        lambda: pictures(quality=65),
        lambda: pictures(quality=64),
    ),
    "mixed formats: more than a few": ("mixed formats", lambda: lossy(5), lambda: lossy(6)),
    "mixed formats: not nearly all": ("mixed formats", lambda: lossy(95), lambda: lossy(94)),
}
"""The code of the finding, images without it, and images with it."""


def codes(found: ImageRecords) -> list[str]:
    return [finding.code for finding in set_findings(found)]


def test_the_default_images_have_no_findings() -> None:
    assert codes(pictures()) == []


@pytest.mark.parametrize("name", THRESHOLDS)
def test_findings(name: str) -> None:
    code, short, beyond_it = THRESHOLDS[name]
    assert code not in codes(short())
    assert code in codes(beyond_it())


def test_a_single_colour_is_severe_unless_it_is_rare() -> None:
    for count, severity in ((1, "low"), (2, "high")):
        (finding,) = set_findings(one_colour(count))
        assert (finding.code, finding.severity, finding.count) == ("constant", severity, count)


def test_a_set_has_a_usual_size_if_nearly_all_images_have_it() -> None:
    assert Measures(odd_sizes(10).records).usual_size == (100, 100)
    assert Measures(odd_sizes(11).records).usual_size is None
    assert Measures(records()).usual_size == (100, 100)


def test_unusual_findings() -> None:
    """A finding is usual up to twice the other set's share; some findings never are."""

    def inspected(images: int, **counts: int) -> SetInspection:
        found = [Finding(code, "low", count, "", "") for code, count in counts.items()]
        return SetInspection(
            "set", pictures(images), Duplicates(images, images, 0, 0, {}, None, ()), found
        )

    other = inspected(100, gray=5, pale=100)
    for count, unusual in ((20, ["pale"]), (21, ["gray", "pale"])):
        assert [
            each.code for each in select_unusual(inspected(200, gray=count, pale=1), other)
        ] == unusual
