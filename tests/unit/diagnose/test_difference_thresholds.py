"""Thresholds for differences between FAKE and REAL: pairs of sets just below and just above
each.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import mannwhitneyu, norm

from fidtool.diagnose.differences import pair_findings
from fidtool.diagnose.findings import Finding
from fidtool.errors import render
from fidtool.reading.records import ImageRecords
from support.records import (
    DETAIL,
    LIGHT,
    USUAL,
    by_turns,
    flagged,
    histogram,
    pictures,
    share,
    some,
    thumbnail,
)

Pair = tuple[ImageRecords, ImageRecords]


def sides(real: int, fake: int) -> Pair:
    """Sets of varying sizes with these median sides."""
    one, other = (
        pictures(width=some((60, side), (40, side + 9)), height=side) for side in (real, fake)
    )
    return one, other


def shapes(width: int) -> Pair:
    """Photos of this median width and 500 pixels height, and squares."""
    return pictures(width=some((60, width), (40, 999)), height=500), pictures(width=500, height=500)


def lighter(shift: float, swing: float = 40, count: int = 100) -> Pair:
    """Sets whose mean brightness differs by ``shift``, and varies by ``swing``."""
    light = (by_turns(count, swing, LIGHT + more) for more in (0, shift))
    real, fake = (pictures(count, thumb=thumbnail(brightness)) for brightness in light)
    return real, fake


def coloured(real: tuple[object, object], fake: tuple[object, object]) -> Pair:
    """Sets with these values of blue and red, for whole images or each of four parts."""
    one, other = (
        pictures(thumb=thumbnail(by_turns(100), 20, *colours)) for colours in (real, fake)
    )
    return one, other


def gray(count: int) -> Pair:
    return pictures(), pictures(gray=some((count, 1), (100 - count, 0)))


def rough(real: int, fake: int, side: int = 100) -> Pair:
    return pictures(roughness=real), pictures(roughness=fake, width=side, height=side)


def at_the_ends(real: float, fake: float) -> Pair:
    return pictures(zeros=share(real)), pictures(zeros=share(fake / 2), full=share(fake / 2))


def contrasts(fake: float) -> Pair:
    return pictures(bins=histogram(60)), pictures(bins=histogram(fake))


def varied(fake: float, within: float = 20) -> Pair:
    """Sets whose images differ by 40 levels in REAL, which has a contrast of 20, and by ``fake`` in
    FAKE.
    """
    return pictures(), pictures(thumb=thumbnail(by_turns(100, fake), within))


def lossy(count: int) -> Pair:
    return pictures(), pictures(flags=flagged((count, "lossy"), (100 - count, "")))


def qualities(fake: int, count: int = 100) -> Pair:
    return pictures(quality=80), pictures(quality=some((count, fake), (100 - count, 0)))


def stretched(fake: int, real: int, at_ends: int = 0, low: int = 1, flags: object = 0) -> Pair:
    """Sets with these numbers of images that hold both ends, or nearly."""
    ends = [
        {
            "lowest": some((count, low), (100 - count, low + 1)),
            "high": 9,
            "highest": 255 - low,
            "flags": flags,
        }
        for count in (real, fake)
    ]
    return pictures(**ends[0]), pictures(zeros=at_ends, full=at_ends, **ends[1])


def less_detail(decibels: float, steps: int = 4, count: int = 100, side: int = 100) -> Pair:
    """Sets of which FAKE, or some of its images, lacks detail: in half of the bands, or the more
    the finer.
    """
    loss = np.repeat([0.0, decibels], 4) if steps == 4 else np.arange(8) * decibels / 5.5
    weaker = 20 * np.array(DETAIL) * 10 ** (-loss / 10)
    usual = 20 * np.array(DETAIL)
    return pictures(bands=usual), pictures(
        bands=some((count, weaker), (100 - count, usual)), width=side, height=side
    )


def repeated(percent: int, count: int = 100, few_colours: int = 0) -> Pair:
    """Sets of which some of FAKE's images repeat pixels, and some have values in two bins only."""
    bins = some((few_colours, [*[30_000] * 2, *[0] * 14]), (100 - few_colours, USUAL))
    return pictures(), pictures(repeats=some((count, percent), (100 - count, 0)), bins=bins)


BELOW_SIX, ABOVE_SIX = (4, 6, 6, 6), (8, 6, 6, 6)
THRESHOLDS: dict[str, tuple[str, Callable[[], Pair], Callable[[], Pair]]] = {
    "size: twice as large": ("other size", lambda: sides(100, 200), lambda: sides(100, 202)),
    "size: twice as small": ("other size", lambda: sides(200, 100), lambda: sides(202, 100)),
    "size: not beyond the network's": (
        "other size",
        lambda: sides(299, 900),
        lambda: sides(298, 900),
    ),
    "shape": ("other shape", lambda: shapes(599), lambda: shapes(601)),
    "brightness: of varied pictures": ("brightness", lambda: lighter(30), lambda: lighter(31)),
    "brightness: darker": ("brightness", lambda: lighter(-30), lambda: lighter(-31)),
    "brightness: of pictures that vary little": (
        "brightness",
        lambda: lighter(8, 4),
        lambda: lighter(9, 4),
    ),
    "brightness: of enough pictures": (
        "brightness",
        lambda: lighter(40, count=40),
        lambda: lighter(40, count=41),
    ),
    "channels: of colour": (
        "swapped channels",
        lambda: coloured((6, 0), (0, 6)),
        lambda: coloured((ABOVE_SIX, 0), (0, ABOVE_SIX)),
    ),
    "channels: turned around": (
        "swapped channels",
        lambda: coloured((100, 0), (0, 42)),
        lambda: coloured((100, 0), (0, 44)),
    ),
    "grayscale": ("grayscale", lambda: gray(10), lambda: gray(11)),
    "colourless: REAL's colour": (
        "colourless",
        lambda: coloured((BELOW_SIX, 0), (0, 0)),
        lambda: coloured((6, 0), (0, 0)),
    ),
    "colourless: FAKE's": (
        "colourless",
        lambda: coloured((0, 40), (0, 10)),
        lambda: coloured((0, 40), (0, (8, 10, 10, 10))),
    ),
    "rough: of smooth pictures": ("rough", lambda: rough(0, 8), lambda: rough(0, 9)),
    "rough: of rough ones": ("rough", lambda: rough(30, 68), lambda: rough(30, 69)),
    "rough: and no noise": ("rough", lambda: rough(10, 80), lambda: rough(10, 79)),
    "rough: as fine": ("rough", lambda: rough(10, 40, 80), lambda: rough(10, 40, 81)),
    "clipped: values": (
        "clipped",
        lambda: at_the_ends(0.0, 0.199),
        lambda: at_the_ends(0.0, 0.201),
    ),
    "clipped: more than REAL's": (
        "clipped",
        lambda: at_the_ends(0.1, 0.499),
        lambda: at_the_ends(0.1, 0.501),
    ),
    "contrast: less": ("contrast", lambda: contrasts(36.2), lambda: contrasts(35.8)),
    "contrast: more": ("contrast", lambda: contrasts(99.8), lambda: contrasts(100.2)),
    "alike": ("alike", lambda: varied(19), lambda: varied(17)),
    "alike: for their contrast": ("alike", lambda: varied(10, 10), lambda: varied(8, 10)),
    "lossy formats": ("lossy", lambda: lossy(10), lambda: lossy(11)),
    "quality: better": ("other quality", lambda: qualities(90), lambda: qualities(91)),
    "quality: worse": ("other quality", lambda: qualities(70), lambda: qualities(69)),
    "quality: of half the images": (
        "other quality",
        lambda: qualities(50, 49),
        lambda: qualities(50, 50),
    ),
    "stretched: all of FAKE's": ("stretched", lambda: stretched(97, 10), lambda: stretched(98, 10)),
    "stretched: few of REAL's": (
        "stretched",
        lambda: stretched(100, 75),
        lambda: stretched(100, 74),
    ),
    "stretched: many values at the ends": (
        "stretched",
        lambda: stretched(100, 50, share(0.0008)),
        lambda: stretched(100, 49, share(0.0008)),
    ),
    "stretched: JPEGs": (
        "stretched",
        lambda: stretched(90, 10, 0, 8, flagged((100, "lossy"))),
        lambda: stretched(91, 10, 0, 8, flagged((100, "lossy"))),
    ),
    "detail: lost": ("less detail", lambda: less_detail(4.4), lambda: less_detail(4.6)),
    "detail: at once": ("less detail", lambda: less_detail(8, 2), lambda: less_detail(8)),
    "detail: in a quarter": (
        "less detail",
        lambda: less_detail(9, count=24),
        lambda: less_detail(9, count=26),
    ),
    "detail: of REAL": (
        "less detail",
        lambda: less_detail(4.4)[::-1],
        lambda: less_detail(4.6)[::-1],
    ),
    "detail: at one size": (
        "less detail",
        lambda: less_detail(9, side=126),
        lambda: less_detail(9, side=124),
    ),
    "repeats: in an image": ("repeated pixels", lambda: repeated(17), lambda: repeated(18)),
    "repeats: of many colours": (
        "repeated pixels",
        lambda: repeated(18, 30, 10),
        lambda: repeated(18, 31, 10),
    ),
    "repeats: in sets of many colours": (
        "repeated pixels",
        lambda: repeated(18, few_colours=51),
        lambda: repeated(18),
    ),
    "repeats: in a set": ("repeated pixels", lambda: repeated(18, 20), lambda: repeated(18, 21)),
}
"""The code of the finding, a pair without it, and a pair with it."""


def codes(pair: Pair) -> list[str]:
    return [finding.code for finding in pair_findings(*pair, [])]


def test_sets_of_the_same_kind_have_no_differences() -> None:
    assert codes((pictures(), pictures(50))) == []


@pytest.mark.parametrize("kept", [1, 2, 4, 5])
def test_the_message_states_the_part_that_has_detail(kept: int) -> None:
    bands = np.where(np.arange(8) < kept, np.array(DETAIL), 1)
    for pair, name, other in (
        ((pictures(), pictures(bands=bands)), "FAKE", "REAL"),
        ((pictures(bands=bands), pictures()), "REAL", "FAKE"),
    ):
        (finding,) = pair_findings(*pair, [])
        assert (
            f"{name}'s images, unlike {other}'s, have hardly any detail above about "
            f"{Fraction(kept, 8)} of" in finding.message
        )


def test_what_records_of_earlier_versions_lack_is_not_compared() -> None:
    unknown = ["lowest", "highest", "bands", "repeats"]
    for pair in (stretched(100, 0), less_detail(9), repeated(50)):
        assert len(codes(pair)) == 1
        pair[0].records[unknown] = np.zeros(1, pair[0].records[unknown].dtype)
        assert codes(pair) == ["not compared"]


def test_a_sample_of_the_images_has_detail() -> None:
    """Of the others, range and detail are not known. They are not compared with what is known."""
    for real, fake in (stretched(100, 0), less_detail(9), repeated(50)):
        (expected,) = codes((real, fake))
        for images in (real, fake):
            images.records["high"] = 250
            images.records["highest"] = np.maximum(images.records["highest"], 250)
            for field in ("lowest", "highest", "bands", "repeats"):
                images.records[field][1::2] = 0
        # Every other image would halve the shares, and mute a difference in detail.
        assert codes((real, fake)) == [expected]


@pytest.mark.parametrize("name", THRESHOLDS)
def test_differences(name: str) -> None:
    code, short, beyond = THRESHOLDS[name]
    assert code not in codes(short())
    assert code in codes(beyond())


@pytest.mark.parametrize("code", ["roughness", "clipping", "variety", "gray", "detail"])
def test_sets_with_few_images_are_not_compared(code: str) -> None:
    """7 images are enough if they all differ from 50 others."""

    def pair(count: int) -> Pair:
        thumb = thumbnail(np.full(count, LIGHT))
        other = {
            **{
                "roughness": {"roughness": 70},
                "clipping": {"zeros": share(0.9)},
                "variety": {"thumb": thumb},
            },
            **{
                "gray": {"gray": 1},
                "detail": {"bands": np.minimum(DETAIL, [9999, 9999, 1, 1, 1, 1, 1, 1])},
            },
        }[code]
        return pictures(50), pictures(count, **other)

    (finding,) = pair_findings(*pair(6), [])
    assert (finding.code, finding.severity) == ("not compared", "low")
    assert finding.message.startswith("too few images (6 in FAKE, 50 in REAL)")
    findings, (code, _) = pair_findings(*pair(7), []), codes(pair(7))
    assert code != "not compared"
    assert findings[1].message.endswith(", except where nearly all images differ")


def test_shares_of_few_images() -> None:
    """12 of 12 and 1 of 12 differ."""
    assert codes((pictures(12, gray=some((1, 1), (11, 0))), pictures(12, gray=1))) == [
        "grayscale",
        "not compared",
    ]
    assert codes((pictures(12, gray=some((5, 1), (7, 0))), pictures(12, gray=1))) == [
        "not compared"
    ]


def test_the_effect_of_the_smaller_side() -> None:
    for side, words in (
        (298, "blurred when they are enlarged"),
        (299, "shrunk by different factors"),
    ):
        (finding,) = pair_findings(
            pictures(width=side, height=side), pictures(width=500, height=500), []
        )
        assert (finding.code, words in finding.message) == ("other size", True)


@pytest.mark.parametrize(
    ("real", "fake", "crops"),
    [
        ((400, 200), (256, 256), "crop='adm:256'"),
        ((256, 256), (400, 200), "crop_fake='adm:256'"),
        ((400, 200), (300, 100), "crop='adm:100' and crop_fake='adm:100'"),
        ((400, None), (256, 256), "crop='adm:256'"),
        ((512, 512), (400, None), "crop_fake='adm:512'"),
        ((400, 200), (200, 100), ""),
        ((400, 400), (200, 200), ""),
        ((400, None), (500, None), ""),
    ],
)
def test_the_crop_for_sets_of_other_shapes(
    real: tuple[int, int | None], fake: tuple[int, int | None], crops: str
) -> None:
    """None is a height of 200 for most images, and varies."""
    sets = []
    for width, height in (real, fake):
        varied = height is None
        sets.append(pictures(width=width, height=some((60, 200), (40, 100)) if varied else height))
    findings = [
        finding
        for finding in pair_findings(sets[0], sets[1], [])
        if finding.code in ("other size", "other shape")
    ]
    stretched = [
        render(finding.message)
        for finding in findings
        if "stretches them differently" in finding.message
    ]
    assert len(stretched) == bool(crops)
    assert all(message.endswith(f"compare with {crops}") for message in stretched)


def test_the_format_of_originals_is_no_fault_of_reconstructions() -> None:
    """That of the reconstructions is."""
    png, jpeg = lossy(100)
    for real, fake, paired in (
        (png, jpeg, False),
        (jpeg, png, False),
        (png, jpeg, True),
        (jpeg, png, True),
    ):
        codes_found = {finding.code for finding in pair_findings(real, fake, [], paired)}
        assert ("lossy" in codes_found) == (not paired or fake is jpeg)


def test_a_fault_of_many_images_explains_differences() -> None:
    """If more than 30 % of FAKE's images are noise, a difference in brightness is not reported as
    well.
    """
    for count, reported in ((30, ["brightness"]), (31, [])):
        own = [Finding("noise", "high", count, "", "")]
        assert [finding.code for finding in pair_findings(*lighter(60), own)] == reported


def test_the_detail_of_black_images_is_not_compared() -> None:
    """Their records do not show whether it was measured."""
    real, fake = repeated(50, count=10)
    for field in ("low", "high", "lowest", "highest", "bands", "repeats"):
        fake.records[field][-80:] = 0
    assert codes((real, fake)) == ["repeated pixels"], "half of those that are not black"
    for field in ("lowest", "highest", "bands", "repeats"):
        real.records[field] = 0
    real.records["low"][-50:] = 0
    real.records["high"][:50] = 250
    real.records["high"][-50:] = 0
    assert codes((real, fake)) == ["not compared"], "the others are of an earlier version"


@pytest.mark.parametrize("step", [1, 3, 5])
def test_small_sets_are_compared_as_by_scipy(step: int) -> None:
    """From 50 images on, their medians decide. In smaller sets, ranks must differ by 4 standard
    deviations as well. There are more ties the larger the ``step`` between the values.
    """
    rng = np.random.default_rng(1)

    def roughness(mostly_rough: bool) -> NDArray[np.int64]:
        count = int(rng.integers(5, 60))
        is_odd = np.arange(count) < rng.integers(0, (count + 1) // 2)
        values = np.where(
            is_odd ^ mostly_rough, rng.integers(30, 76, count), rng.integers(0, 10, count)
        )
        return values // step * step

    verdicts = list[bool]()
    for _ in range(400):
        real, fake = roughness(False), roughness(True)
        chance = mannwhitneyu(real, fake, use_continuity=False, method="asymptotic").pvalue
        verdicts.append(bool(chance < 2 * norm.sf(4.0)))
        enough = min(len(real), len(fake)) >= 50
        pair = pictures(len(real), roughness=real), pictures(len(fake), roughness=fake)
        assert ("rough" in codes(pair)) == (enough or verdicts[-1])
    assert 20 < sum(verdicts) < 380
