"""Findings about differences between FAKE's and REAL's images that the generator is not responsible for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from fidtool.diagnose.findings import Finding, contrast, usual_size
from fidtool.errors import Severity
from fidtool.images.framing import crops_to_one_size
from fidtool.images.records import BANDS, BRIGHTNESS, FLAGS, NOISE, ImageRecords, RecordArray

_BRIGHTER = 0.75
"""A difference between the mean brightnesses is reported beyond this many standard deviations of the brightness of
REAL's images, which is more than chance explains."""
_LEAST_SHIFT = 8.0
"""It must also be larger than this many grey levels, so that it is visible."""
NOT_COMPARED = "not compared"
"""Code of a finding that says which comparisons were not possible, and is no fault of the images."""
_ENOUGH, _CERTAIN = 50, 4.0
"""Sets of at least 50 images are compared by their medians alone. In smaller ones, the images of one set must also rank
so much higher than those of the other: in standard deviations of a rank sum."""
_THROUGHOUT = 0.3
"""A finding about FAKE alone that concerns more than this share of its images explains the differences from REAL that
follow from it; these are not reported again."""
_COARSER, _AS_FINE = 2.0, 0.8
"""Ratios of median sides: sizes differ if one side is more than twice the other; roughness is compared if FAKE's side
is more than 0.8 times REAL's, because smaller images of the same things are rougher."""
_ROUGHER, _LEAST_ROUGHER = 2.0, 8.0
"""FAKE is rough if its median roughness is more than twice REAL's plus 8 percentage points."""
_CLIPPED, _MORE_CLIPPED = 0.2, 5.0
"""FAKE is clipped if its median share of values at 0 and 255 is more than 20 % and more than 5 times REAL's."""
_FLATTER = 0.6
"""Contrasts differ if the ratio of the medians is below this or above its inverse."""
_LOSSY_GAP = 0.1
"""Two sets are not comparable if their shares of lossy files differ by more than this."""
_SWAPPED = 0.4
"""Channels are swapped if swapping blue and red reduces the difference between the mean colours to less than this share
of it."""
_LEAST_COLOUR = 6.0
"""Colour, in grey levels, that a set must have for a swap of channels or a loss of colour to be visible."""
_FAINTER = 0.25
"""FAKE is colourless if its median colourfulness is below this share of REAL's."""
_GRAYER = 0.1
"""Shares of grayscale images are reported if they differ by more than this."""
_ALIKE = 0.45
"""FAKE's images are alike if their variety is below this share of REAL's. Photos of flowers and of CIFAR-10 have at
least 0.9 of each other's variety, the same photos with black borders 0.55, and a single image with a little noise 0.1
to 0.3."""
_INPUT_SIDE = 299
"""Side of the network's input, in pixels: smaller images are enlarged."""
_QUALITY = 10
"""Median JPEG qualities are reported if they differ by more than this."""
_STRETCHED = {False: (1, 0.97), True: (8, 0.9)}
"""FAKE is stretched if a larger share than this of its images hold both 0 and 255, within so many levels: for lossless
formats, and for JPEG, which moves the ends."""
_UNSTRETCHED, _FEW_AT_END, _FEW_UNSTRETCHED = 0.5, 0.0007, 0.75
"""REAL is not if less than half of its images do; or less than 75 % if FAKE has few values at one end (this share, or
two of those sampled; median), as stretching leaves them. Of photos of 32 pixels 10 % hold both ends, of 256 pixels 60 %
or 90 %, depending on the filter that shrank them, and then they have more values there."""
_SIMILAR_SIDE = 1.25
"""Detail and range are compared if the median sides differ by at most this factor."""
_TEXTURED = 10.0
"""Images with less in the lowest band of detail, in levels squared, are flat: they have no detail to lose."""
_LOST, _CLIFF, _GONE = 4.5, 3.5, 8.0
"""Decibels that a set lacks in the upper half of its bands, on average; by which the loss grows within two bands; and
from which on a band counts as gone. Enlarging by 1.5 costs at least 5.3 on average and 4.3 within two bands, shrinking
by another filter up to 4.0 and 3.0, and other photos of the same kind 2.5 and 2.4."""
_REPEATS, _SOME_REPEATS, _FEW_REPEATS = 18, 0.2, 0.05
"""Images of repeated pixels have at least 18 % uneven columns or rows: 24 % if enlarged by 8, whereas cartoons have
about 10 % and photos none. They are reported if they are more than 20 % of a set and less than 5 % of the other."""

_SEVERITIES: dict[str, Severity] = {
    NOT_COMPARED: "low",
    **dict.fromkeys(("colourless", "rough", "clipped", "alike"), "high"),
}
"""Severities by the code of a difference, if it is not medium."""

_FAULTS = {"negative", "pale", "unscaled", "black", "clipped", "noise"}
_OF_FAULTS = {"brightness", "clipped", "contrast", "grayscale", "rough", "colourless", "alike", "less detail"}
"""Findings about FAKE alone, and the differences that follow from them."""
_FOLLOWING = {
    "clipped": {"brightness", "alike"},
    # A few images do not represent the set's values and channels.
    "alike": {"contrast", "swapped channels", "colourless", "grayscale", "less detail", "stretched"},
    "rough": {"less detail"},
}
"""The differences that follow from a difference."""

_TEXTS = {
    NOT_COMPARED: "{}",
    "other size": "{}: {}, which changes the distance; {}",
    "other shape": "the median ratio of width to height is {:.2f} in REAL and {:.2f} in FAKE: the resize to the "
    "network's input, a square, stretches them differently; crop REAL as for training, or compare with {}",
    "brightness": "FAKE's images are {} than REAL's by {:.0f} of 255 levels on average: check how values are converted "
    "to bytes, and what was sampled",
    "swapped channels": "FAKE's mean colours match REAL's after red and blue are swapped: if both show the same kind "
    "of images, FAKE's channels were saved in BGR order, or its images are negatives; swap the channels or invert the "
    "values",
    "grayscale": "{:.0%} of REAL's images are grayscale, and {:.0%} of FAKE's",
    "colourless": "FAKE's images have almost no colour ({:.0f} levels against REAL's {:.0f}, medians): CHW and HWC "
    "layouts were confused, which gives a grid of small grey images, or one channel was saved as all three",
    "rough": "neighbouring pixels differ more in FAKE than in REAL ({:.0f}% against {:.0f}% of the difference between "
    "unrelated pixels): noise remains, values overflowed when they were converted to bytes, CHW and HWC layouts were "
    "confused, or REAL was enlarged or blurred",
    "clipped": "{:.0%} of FAKE's values are 0 or 255 against {:.0%} of REAL's (medians): values of a wider range, such "
    "as normalised ones, were clipped when they were converted to bytes, or the images have white borders",
    "contrast": "FAKE's images have {} contrast than REAL's (a standard deviation of {:.0f} levels against {:.0f}, "
    "medians): check how values are converted to bytes",
    "alike": "FAKE's images are all alike: they differ from each other by {:.0f} levels, and REAL's by {:.0f} (coarse "
    "thumbnails): the generator has collapsed to a few images, or all have the same prompt, class or background",
    "lossy": "{:.0%} of FAKE's images are in a lossy format (JPEG, lossy WebP) against {:.0%} of REAL's: compression "
    "artefacts change the distance; save both sets in the same format",
    "other quality": "REAL's JPEGs have quality {:.0f} and FAKE's {:.0f} (medians): the compression artefacts differ, "
    "which changes the distance; save both sets at the same quality",
    "stretched": "{:.0%} of FAKE's images use the whole range from 0 to 255, but only {:.0%} of REAL's: each was "
    "stretched to its own smallest and largest value, as by (x - min) / (max - min) or save_image(normalize=True), or "
    "values were clipped; convert all images with the same fixed range",
    "repeated pixels": "{:.0%} of {}'s images consist of repeated pixels, and {:.0%} of {}'s: they were enlarged from "
    "a smaller size; prepare both sets in the same way",
    "less detail": "{}{}'s images have hardly any detail above about {} of their resolution, and {}'s have: they were "
    "enlarged from a smaller size or blurred, or {}; prepare both sets in the same way",
}
"""What is said of a difference, by its code, with its values in place of the braces."""

_Difference = tuple[str, tuple[object, ...]]
"""Code, and the values in its text."""


def pair_findings(
    real: ImageRecords, fake: ImageRecords, own: Sequence[Finding], paired: bool = False
) -> list[Finding]:
    """Returns the differences between FAKE and REAL, except those that follow from FAKE's ``own`` findings.

    With ``paired``, FAKE's images are reconstructions of REAL's, which also reproduce the artefacts of lossy formats.
    """
    records = real.records, fake.records
    # Of a square with as many pixels as each image.
    sides = [float(np.median(np.sqrt(each["width"] * each["height"].astype(np.float64)))) for each in records]
    found = [*_sizes(*records, sides), *_colours(*records), *_qualities(*records, paired), *_values(*records, sides)]
    # Earlier versions did not record the range and the detail of an image.
    named = zip(("REAL", "FAKE"), records, strict=True)
    older = [name for name, each in named if (each["highest"] < each["high"]).any()]
    if not older and max(sides) <= _SIMILAR_SIDE * min(sides):
        found += [*_stretching(*records), *_detail(*records)]
    if min(len(real), len(fake)) < _ENOUGH:
        reason = f"too few images ({len(fake)} in FAKE, {len(real)} in REAL)"
        but = ", except where nearly all differ" * (_most_certain(len(real), len(fake)) > _CERTAIN)
        found.append((NOT_COMPARED, (f"{reason} to compare brightness, colours, values, variety and detail{but}",)))
    if older:
        message = f"the statistics of {' and '.join(older)} are of an earlier version, without the range and detail of "
        found.append((NOT_COMPARED, (f"{message}images: create them again to compare these as well",)))
    throughout = {finding.code for finding in own if finding.count > _THROUGHOUT * len(fake)}
    following = [_FOLLOWING.get(code, set()) for code, _ in found]
    explained = set().union(*following, _OF_FAULTS if throughout & _FAULTS else ())
    return [
        Finding(code, _SEVERITIES.get(code, "medium"), len(fake), "", _TEXTS[code].format(*values))
        for code, values in found
        if code not in explained
    ]


def _certain(real: NDArray[np.generic], fake: NDArray[np.generic]) -> bool:
    """Returns whether the images are so many that a difference in these values, one per image, is not by chance."""
    if min(len(real), len(fake)) >= _ENOUGH:
        return True
    usual, most = np.sort(real), _most_certain(len(real), len(fake))
    below, up_to = (np.searchsorted(usual, fake, side).mean() / len(real) for side in ("left", "right"))
    equal = np.unique(np.concatenate([real, fake]), return_counts=True)[1].astype(float)
    count = equal.sum()
    spread = 1 - (equal**3 - equal).sum() / (count**3 - count)  # of rank sums, in which equal values vary less
    return bool(most > _CERTAIN and abs(below + up_to - 1.0) * most > _CERTAIN * np.sqrt(spread))


def _most_certain(images: int, others: int) -> float:
    """Returns how many standard deviations the rank sums of two sets differ by if no values overlap."""
    return float(np.sqrt(3.0 * images * others / (images + others + 1.0)))


def _sizes(real: RecordArray, fake: RecordArray, sides: Sequence[float]) -> Iterator[_Difference]:
    one, other = usual_size(real), usual_size(fake)
    smaller, differing, remedy = min(sides), "", "prepare both sets at the same size"
    shapes = [np.log(records["width"] / records["height"]) for records in (real, fake)]
    wide, other_wide = (float(np.median(shape)) for shape in shapes)
    stretched = abs(wide - other_wide) > np.log(1.2)
    if one is not None and other is not None and one != other:
        smaller = min(*one, *other)
        differing = f"FAKE's images are {other[0]} x {other[1]} pixels and REAL's {one[0]} x {one[1]}"
    elif max(sides) > _COARSER * smaller and smaller < _INPUT_SIDE:
        differing = f"the median side of FAKE's images is {sides[1]:.0f} pixels and that of REAL's {sides[0]:.0f}"
    if differing:
        effect = "they are shrunk by different factors"
        if smaller < _INPUT_SIDE:
            effect = "the smaller ones are blurred when they are enlarged"
        if stretched and one is not None and other is not None:
            effect = "the resize to the network's input, a square, stretches them differently"
            remedy = f"crop them as for training, or compare with {crops_to_one_size(one, other)}"
        yield "other size", (differing, effect, remedy)
    # If the sizes of both vary, they are photos, and the protocol squeezes them to squares alike.
    if stretched and (one is None) != (other is None):
        yield "other shape", (np.exp(wide), np.exp(other_wide), crops_to_one_size(one, other))


def _colours(real: RecordArray, fake: RecordArray) -> Iterator[_Difference]:
    light = [each["thumb"][:, :BRIGHTNESS].mean(axis=1) for each in (real, fake)]
    shift = float(light[1].mean() - light[0].mean())
    if abs(shift) > max(_BRIGHTER * float(light[0].std()), _LEAST_SHIFT) and _certain(*light):
        yield "brightness", ("lighter" if shift > 0 else "darker", abs(shift))
    # B - Y and R - Y in the parts of each image: shape (images, 2, parts).
    parts = [2.0 * (each["thumb"][:, BRIGHTNESS:].reshape(len(each), 2, -1) - 128.0) for each in (real, fake)]
    chroma = [each.mean(axis=2) for each in parts]
    (blue, red), (fake_blue, fake_red) = (each.mean(axis=0) for each in chroma)
    straight = abs(blue - fake_blue) + abs(red - fake_red)
    swapped = abs(blue - fake_red) + abs(red - fake_blue)
    balances = [each @ [1.0, -1.0] for each in chroma]
    if straight > 2 * _LEAST_COLOUR and swapped < _SWAPPED * straight and _certain(*balances):
        yield "swapped channels", ()
    gray = [float((records["gray"] == 1).mean()) for records in (real, fake)]
    if abs(gray[0] - gray[1]) > _GRAYER and _certain(real["gray"], fake["gray"]):
        yield "grayscale", tuple(gray)
        return
    colours = [np.hypot(each[:, 0], each[:, 1]).mean(axis=1) for each in parts]
    colour, faint = (float(np.median(each)) for each in colours)
    if colour >= _LEAST_COLOUR and faint < _FAINTER * colour and _certain(*colours):
        yield "colourless", (faint, colour)


def _values(real: RecordArray, fake: RecordArray, sides: Sequence[float]) -> Iterator[_Difference]:
    rough, rougher = (float(np.median(records["roughness"])) for records in (real, fake))
    # Smaller images of the same things are rougher.
    comparable = sides[1] > _AS_FINE * sides[0] and _certain(real["roughness"], fake["roughness"])
    if comparable and rough < NOISE and rougher > _ROUGHER * rough + _LEAST_ROUGHER and rougher < NOISE:
        yield "rough", (rougher, rough)
    ends = [(one["zeros"] + one["full"].astype(float) - 3.0 * one["black"]) / one["values"] for one in (real, fake)]
    clipped = [float(np.median(each)) for each in ends]
    contrasts = [contrast(records) for records in (real, fake)]
    usual, other = (float(np.median(each)) for each in contrasts)
    # Black borders and backgrounds are not clipping, which sets single channels to 0.
    if clipped[1] > max(_CLIPPED, _MORE_CLIPPED * clipped[0]) and _certain(*ends):
        yield "clipped", (clipped[1], clipped[0])
    elif not _FLATTER * usual <= other <= usual / _FLATTER and _certain(*contrasts):
        yield "contrast", ("less" if other < usual else "more", other, usual)
    thumbs = [records["thumb"][:, :BRIGHTNESS] for records in (real, fake)]
    # In the half of the thumbnail that varies most between images; the other may be a background.
    variances = [np.sort(each.var(axis=0))[BRIGHTNESS // 2 :] for each in thumbs]
    varied, varied_fake = (float(np.sqrt(each.mean())) for each in variances)
    # Images of less contrast naturally differ less.
    inside, inside_fake = (max(float(np.median(each.std(axis=1))), 1.0) for each in thumbs)
    from_mean = [(each - each.mean(axis=0)).std(axis=1) for each in (real["thumb"], fake["thumb"])]
    if varied_fake / inside_fake < _ALIKE * varied / inside and _certain(*from_mean):
        yield "alike", (varied_fake, varied)


def _qualities(real: RecordArray, fake: RecordArray, paired: bool) -> Iterator[_Difference]:
    lossy = [float((records["flags"] >> FLAGS["lossy"] & 1).mean()) for records in (real, fake)]
    gap = lossy[1] - lossy[0]
    if (gap if paired else abs(gap)) > _LOSSY_GAP:
        yield "lossy", (lossy[1], lossy[0])
    if min(float((records["quality"] > 0).mean()) for records in (real, fake)) < 0.5:
        return
    one, other = (float(np.median(records["quality"][records["quality"] > 0])) for records in (real, fake))
    if abs(one - other) > _QUALITY:
        yield "other quality", (one, other)


def _stretching(real: RecordArray, fake: RecordArray) -> Iterator[_Difference]:
    lossy = bool((fake["flags"] >> FLAGS["lossy"] & 1).mean() > 0.5)
    slack, most = _STRETCHED[lossy]
    usual, full = ((one["lowest"] <= slack) & (one["highest"] >= 255 - slack) for one in (real, fake))
    few = np.minimum(fake["zeros"], fake["full"]) <= np.maximum(2, _FEW_AT_END * fake["values"])
    least = _FEW_UNSTRETCHED if few.mean() > 0.5 and not lossy else _UNSTRETCHED
    if full.mean() > most and usual.mean() < least and _certain(usual, full):
        yield "stretched", (full.mean(), usual.mean())


def _detail(real: RecordArray, fake: RecordArray) -> Iterator[_Difference]:
    """Yields what one of the sets lacks: detail above a part of its resolution, or pixels that differ."""
    colourful = []
    for each in (real, fake):
        # Values in most bins between its ends: other images, such as masks, repeat pixels by nature.
        between = (each["high"] >> 4) - (each["low"] >> 4) + 1
        colourful.append(np.count_nonzero(each["bins"], axis=1) > 0.8 * between)
    if min(float(each.mean()) for each in colourful) < 0.5:
        return
    repeated = [(each["repeats"] >= _REPEATS) & many for each, many in zip((real, fake), colourful, strict=True)]
    sides = (fake, "FAKE", repeated[1], "the generator leaves it out"), (real, "REAL", repeated[0], "FAKE's is noise")
    for (one, name, repeats, reason), (other, other_name, others, _) in (sides, sides[::-1]):
        share, other_share = float(repeats.mean()), float(others.mean())
        if share > _SOME_REPEATS and other_share < _FEW_REPEATS and _certain(repeats, others):
            yield "repeated pixels", (share, name, other_share, other_name)
            return
        for part, words in ((0.75, ""), (0.5, "at least half of "), (0.25, "at least a quarter of ")):
            if (kept := _kept_detail(one, other, part)) is not None:
                yield "less detail", (words, name, kept, other_name, reason)
                return


def _kept_detail(one: RecordArray, other: RecordArray, part: float) -> Fraction | None:
    """Returns up to which part of the resolution a set has the detail of the other; None if it lacks nothing.

    The sets are compared at a quantile of their images, in each band of frequencies: as it is and relative to the
    lowest band, so that neither contrast nor content count.
    """
    levels = [10.0 * np.log10(each["bands"].astype(np.float64) + 1.0) for each in (one, other)]
    levels = [each[each[:, 0] > 10.0 * np.log10(_TEXTURED)] for each in levels]
    if not all(map(len, levels)):
        return None
    relative = [each - each[:, :1] for each in levels]
    here, there = (np.quantile(each, part, axis=0) for each in levels)
    lost = there - here
    least = np.minimum(lost, np.subtract(*(np.quantile(each, part, axis=0) for each in relative[::-1])))
    upper = [each[:, BANDS // 2 :].mean(axis=1) for each in relative]
    if least[BANDS // 2 :].mean() <= _LOST or (least[2:] - least[:-2]).max() <= _CLIFF or not _certain(*upper):
        return None
    return Fraction(max(1, int((lost >= min(_GONE, 0.8 * lost.max())).argmax())), BANDS)
