"""Findings about differences between FAKE's and REAL's images that the generator is not responsible
for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fidtool.diagnose.findings import Finding
from fidtool.diagnose.measures import Floats, Measures
from fidtool.errors import Severity
from fidtool.reading.records import BANDS, NOISE, ImageRecords
from fidtool.sources.crops import crops_to_one_size

# A difference between the mean brightnesses is reported beyond this many standard deviations of the
# brightness of REAL's images, which is more than chance explains; and beyond this many grey levels,
# so that it is visible.
_MIN_BRIGHTNESS_SHIFT = 0.75
_MIN_SHIFT = 8.0
NOT_COMPARED = "not compared"
"""Code of a finding that says which comparisons were not possible, and is no fault of the
images.
"""
# Sets of at least 50 images are compared by their medians alone. In smaller ones, the images of one
# set must also rank so much higher than those of the other: in standard deviations of a rank sum
# (Mann & Whitney 1947).
_LARGE_SET = 50
_MIN_Z_SCORE = 4.0
# A finding about FAKE alone that concerns more than this share of its images explains the
# differences from REAL that follow from it; these are not reported again.
_MAJORITY_SHARE = 0.3
# Ratios of median sides: sizes differ if one side is more than twice the other; roughness is
# compared if FAKE's side is more than 0.8 times REAL's, because smaller images of the same things
# are rougher.
_MIN_SIZE_RATIO = 2.0
_AS_FINE = 0.8
# FAKE is rough if its median roughness is more than twice REAL's plus 8 percentage points.
_ROUGHER = 2.0
_MIN_ROUGHNESS_CHANGE = 8.0
# FAKE is clipped if its median share of values at 0 and 255 is more than 20 % and more than 5 times
# REAL's.
_CLIPPED = 0.2
_MORE_CLIPPED = 5.0
# Contrasts differ if the ratio of the medians is below this or above its inverse.
_FLATTER = 0.6
# Two sets are not comparable if their shares of lossy files differ by more than this.
_LOSSY_GAP = 0.1
# Channels are swapped if swapping blue and red reduces the difference between the mean colours to
# less than this share of it.
_SWAPPED = 0.4
# Colour, in grey levels, that a set must have for a swap of channels or a loss of colour to be
# visible.
_MIN_COLOUR = 6.0
# FAKE is colourless if its median colourfulness is below this share of REAL's.
_FAINTER = 0.25
# Shares of grayscale images are reported if they differ by more than this.
_GRAYER = 0.1
# FAKE's images are alike if their variety is below this share of REAL's. Photos of flowers and of
# CIFAR-10 have at least 0.9 of each other's variety, the same photos with black borders 0.55, and a
# single image with a little noise 0.1 to 0.3.
_MIN_VARIETY_RATIO = 0.45
# Side of the network's input, in pixels: smaller images are enlarged.
_INPUT_SIDE = 299
# Median JPEG qualities are reported if they differ by more than this.
_QUALITY = 10
# FAKE is stretched if a larger share than this of its images hold both 0 and 255, within so many
# levels: for lossless formats, and for JPEG, which moves the ends.
_STRETCHED = 0.97
_ENDS = 1
_STRETCHED_LOSSY = 0.9
_ENDS_LOSSY = 8
# REAL is not if less than half of its images do; or less than 75 % if FAKE has few values at one
# end (this share, or two of those sampled; median), as stretching leaves them. Of photos of 32
# pixels 10 % hold both ends, of 256 pixels 60 % or 90 %, depending on the filter that shrank them,
# and then they have more values there.
_UNSTRETCHED = 0.5
_FEW_AT_END = 0.0007
_FEW_UNSTRETCHED = 0.75
# Detail and range are compared if the median sides differ by at most this factor.
_SIMILAR_SIDE = 1.25
# Decibels that a set lacks in the upper half of its bands, on average; by which the loss grows
# within two bands; and from which on a band counts as gone. Enlarging by 1.5 costs at least 5.3 on
# average and 4.3 within two bands, shrinking by another filter up to 4.0 and 3.0, and other photos
# of the same kind 2.5 and 2.4.
_MIN_LOSS_DB = 4.5
_CLIFF = 3.5
_GONE_LOSS_DB = 8.0
# Images of repeated pixels are reported if they are more than 20 % of a set and less than 5 % of
# the other.
_SOME_REPEATS = 0.2
_FEW_REPEATS = 0.05
# Quantiles of the images at which detail is compared, and the part of the images that then lack it.
_PARTS = ((0.75, ""), (0.5, "at least half of "), (0.25, "at least a quarter of "))

# Severities by the code of a difference, if it is not medium.
_SEVERITIES: dict[str, Severity] = {
    NOT_COMPARED: "low",
    **dict.fromkeys(("colourless", "rough", "clipped", "alike"), "high"),
}

# Findings about FAKE alone, and the differences that follow from them.
_FAULTS = {"negative", "pale", "unscaled", "black", "clipped", "noise"}
_FAULT_DIFFERENCES = {
    "brightness",
    "clipped",
    "contrast",
    "grayscale",
    "rough",
    "colourless",
    "alike",
    "less detail",
}
# The differences that follow from a difference.
_IMPLIED_DIFFERENCES = {
    "clipped": {"brightness", "alike"},
    # A few images do not represent the set's values and channels.
    "alike": {
        "contrast",
        "swapped channels",
        "colourless",
        "grayscale",
        "less detail",
        "stretched",
    },
    "rough": {"less detail"},
}

TEXTS = {
    NOT_COMPARED: "{}",
    "other size": "{}: {}, which changes the distance; {}",
    "other shape": "the median ratio of width to height is {:.2f} in REAL and {:.2f} in FAKE: "
    "resizing to the network's square input stretches them differently; crop REAL as for "
    "training, or compare with {}",
    "brightness": "FAKE's images are {} than REAL's by {:.0f} of 255 levels on average: check "
    "how values are converted to bytes, and what was sampled",
    "swapped channels": "FAKE's mean colours match REAL's after red and blue are swapped: if "
    "both show the same kind of images, FAKE's channels were saved in BGR order, or its images "
    "are negatives; swap the channels or invert the values",
    "grayscale": "{:.0%} of REAL's images are grayscale, and {:.0%} of FAKE's",
    "colourless": "FAKE's images have almost no colour ({:.0f} levels against REAL's {:.0f}, "
    "medians): CHW and HWC layouts were confused, which gives a grid of small grey images, or "
    "one channel was saved as all three",
    "rough": "neighbouring pixels differ more in FAKE than in REAL ({:.0f}% against {:.0f}% of the "
    "difference between unrelated pixels): noise remains, values overflowed when they were "
    "converted to bytes, CHW and HWC layouts were confused, or REAL was enlarged or blurred",
    "clipped": "{:.0%} of FAKE's values are 0 or 255 against {:.0%} of REAL's (medians): values "
    "of a wider range, such as normalised ones, were clipped when they were converted to bytes, "
    "or the images have white borders",
    "contrast": "FAKE's images have {} contrast than REAL's (a standard deviation of {:.0f} "
    "levels against {:.0f}, medians): check how values are converted to bytes",
    "alike": "FAKE's images are all alike: they differ from each other by {:.0f} levels, and "
    "REAL's by {:.0f} (measured on coarse thumbnails): the generator has collapsed to a few "
    "images, or all have the same prompt, class or background",
    "lossy": "{:.0%} of FAKE's images are in a lossy format (JPEG, lossy WebP) against {:.0%} of "
    "REAL's: compression artefacts change the distance; save both sets in the same format",
    "other quality": "REAL's JPEGs have quality {:.0f} and FAKE's {:.0f} (medians): the "
    "compression artefacts differ, which changes the distance; save both sets at the same "
    "quality",
    "stretched": "{:.0%} of FAKE's images use the whole range from 0 to 255, but only {:.0%} of "
    "REAL's: each was stretched to its own smallest and largest value, as by (x - min) / (max - "
    "min) or save_image(normalize=True), or values were clipped; convert all images with the "
    "same fixed range",
    "repeated pixels": "{:.0%} of {}'s images consist of repeated pixels, against {:.0%} of "
    "{}'s: images with repeated pixels were enlarged from a smaller size; prepare both sets in "
    "the same way",
    "less detail": "{}{}'s images, unlike {}'s, have hardly any detail above about {} of their "
    "resolution: they were enlarged from a smaller size or blurred, or {}; prepare both sets in "
    "the same way",
}
"""What is said of a difference, by its code, with its values in place of the braces."""

# Code, and the values in its text.
_Difference = tuple[str, tuple[object, ...]]


def pair_findings(
    real: ImageRecords, fake: ImageRecords, own: Sequence[Finding], paired: bool = False
) -> list[Finding]:
    """Return the differences between FAKE and REAL, except those that follow from FAKE's ``own``
    findings.

    With ``paired``, FAKE's images are reconstructions of REAL's, which also reproduce the artefacts
    of lossy formats.
    """
    differences = list(_differences(Measures(real.records), Measures(fake.records), paired))
    explained = set[str]()
    for code, _ in differences:
        explained |= _IMPLIED_DIFFERENCES.get(code, set())
    for finding in own:
        if finding.code in _FAULTS and finding.count > _MAJORITY_SHARE * len(fake):
            explained |= _FAULT_DIFFERENCES
    findings = []
    for code, values in differences:
        if code not in explained:
            severity = _SEVERITIES.get(code, "medium")
            message = TEXTS[code].format(*values)
            findings.append(Finding(code, severity, len(fake), "", message, "pair"))
    return findings


def _differences(real: Measures, fake: Measures, paired: bool) -> Iterator[_Difference]:
    yield from _compare_sizes(real, fake)
    yield from _compare_colours(real, fake)
    yield from _compare_qualities(real, fake, paired)
    yield from _compare_values(real, fake)
    if len(real.measured) and len(fake.measured) and _side_ratio(real, fake) <= _SIMILAR_SIDE:
        yield from _compare_ends(real.measured, fake.measured)
        yield from _compare_detail(real.measured, fake.measured)
    if min(len(real), len(fake)) < _LARGE_SET:
        can_differ = _max_z_score(len(real), len(fake)) > _MIN_Z_SCORE
        but = ", except where nearly all images differ" if can_differ else ""
        text = (
            f"too few images ({len(fake)} in FAKE, {len(real)} in REAL) to compare brightness, "
            f"colours, values, variety and detail{but}"
        )
        yield NOT_COMPARED, (text,)
    older = [name for name, images in (("REAL", real), ("FAKE", fake)) if images.is_older]
    if older:
        text = (
            f"an earlier version wrote the statistics of {' and '.join(older)} and did not record "
            "the range and detail of images: create the statistics again to compare these as well"
        )
        yield NOT_COMPARED, (text,)


def _side_ratio(real: Measures, fake: Measures) -> float:
    return max(real.side, fake.side) / min(real.side, fake.side)


def _medians(real: NDArray[Any], fake: NDArray[Any]) -> tuple[float, float]:
    return float(np.median(real)), float(np.median(fake))


def _means(real: NDArray[np.generic], fake: NDArray[np.generic]) -> tuple[float, float]:
    return float(real.mean()), float(fake.mean())


def _is_certain(real: NDArray[np.generic], fake: NDArray[np.generic]) -> bool:
    """Return whether the images are so many that a difference in these values, one per image, is
    not by chance.
    """
    images = len(real)
    others = len(fake)
    if min(images, others) >= _LARGE_SET:
        return True
    if _max_z_score(images, others) <= _MIN_Z_SCORE:
        return False
    # The test of Mann, Whitney and Wilcoxon. Importing SciPy's takes a second.
    _, place, counts = np.unique(
        np.concatenate([real, fake]), return_inverse=True, return_counts=True
    )
    ranks = np.cumsum(counts) - (counts - 1) / 2
    every = images + others
    deviation = ranks[place[:images]].sum() - images * (every + 1) / 2
    ties = (counts.astype(np.float64) ** 3 - counts).sum() / (every * (every - 1))
    return bool(
        abs(deviation) > _MIN_Z_SCORE * math.sqrt(images * others / 12 * (every + 1 - ties))
    )


def _max_z_score(images: int, others: int) -> float:
    """Return how many standard deviations the rank sums of two sets differ by if no values
    overlap.
    """
    return math.sqrt(3.0 * images * others / (images + others + 1.0))


def _compare_sizes(real: Measures, fake: Measures) -> Iterator[_Difference]:
    size = real.usual_size
    fake_size = fake.usual_size
    shape, fake_shape = _medians(real.shapes, fake.shapes)
    stretched = abs(np.log(shape / fake_shape)) > np.log(1.2)
    smaller = min(real.side, fake.side)
    differing = ""
    if size and fake_size and size != fake_size:
        smaller = min(*size, *fake_size)
        differing = (
            f"FAKE's images are {fake_size[0]} x {fake_size[1]} pixels and REAL's "
            f"{size[0]} x {size[1]}"
        )
    elif _side_ratio(real, fake) > _MIN_SIZE_RATIO and smaller < _INPUT_SIDE:
        differing = (
            f"the median side of FAKE's images is {fake.side:.0f} pixels and that of REAL's "
            f"images is {real.side:.0f}"
        )
    if differing:
        effect = "they are shrunk by different factors"
        remedy = "prepare both sets at the same size"
        if smaller < _INPUT_SIDE:
            effect = "the smaller ones are blurred when they are enlarged"
        if stretched and size and fake_size:
            effect = "resizing to the network's square input stretches them differently"
            crops = crops_to_one_size(size, fake_size)
            remedy = f"crop them as for training, or compare with {crops}"
        yield "other size", (differing, effect, remedy)
    # If the sizes of both vary, they are photos, and the protocol squeezes them to squares alike.
    if stretched and bool(size) != bool(fake_size):
        yield "other shape", (shape, fake_shape, crops_to_one_size(size, fake_size))


def _compare_colours(real: Measures, fake: Measures) -> Iterator[_Difference]:
    light, fake_light = _means(real.light, fake.light)
    shift = fake_light - light
    least_shift = max(_MIN_BRIGHTNESS_SHIFT * real.light.std(), _MIN_SHIFT)
    if abs(shift) > least_shift and _is_certain(real.light, fake.light):
        yield "brightness", ("lighter" if shift > 0 else "darker", abs(shift))
    tints = real.chroma.mean(axis=2)
    fake_tints = fake.chroma.mean(axis=2)
    tint = tints.mean(axis=0)
    fake_tint = fake_tints.mean(axis=0)
    straight = abs(tint - fake_tint).sum()
    swapped = abs(tint - fake_tint[::-1]).sum()
    if straight > 2 * _MIN_COLOUR and swapped < _SWAPPED * straight:
        blue_minus_red = np.array([1.0, -1.0])
        if _is_certain(tints @ blue_minus_red, fake_tints @ blue_minus_red):
            yield "swapped channels", ()
    gray, fake_gray = _means(real.gray, fake.gray)
    if abs(gray - fake_gray) > _GRAYER and _is_certain(real.gray, fake.gray):
        yield "grayscale", (gray, fake_gray)
        return
    colour, faint = _medians(real.colour, fake.colour)
    if (
        colour >= _MIN_COLOUR
        and faint < _FAINTER * colour
        and _is_certain(real.colour, fake.colour)
    ):
        yield "colourless", (faint, colour)


def _compare_values(real: Measures, fake: Measures) -> Iterator[_Difference]:
    roughness = real.records["roughness"]
    fake_roughness = fake.records["roughness"]
    rough, rougher = _medians(roughness, fake_roughness)
    # Smaller images of the same things are rougher.
    comparable = fake.side > _AS_FINE * real.side and max(rough, rougher) < NOISE
    is_rougher = rougher > _ROUGHER * rough + _MIN_ROUGHNESS_CHANGE
    if comparable and is_rougher and _is_certain(roughness, fake_roughness):
        yield "rough", (rougher, rough)
    few, many = _medians(real.clipped, fake.clipped)
    contrast, other = _medians(real.contrast, fake.contrast)
    as_usual = _FLATTER * contrast <= other <= contrast / _FLATTER
    if many > max(_CLIPPED, _MORE_CLIPPED * few) and _is_certain(real.clipped, fake.clipped):
        yield "clipped", (many, few)
    elif not as_usual and _is_certain(real.contrast, fake.contrast):
        yield "contrast", ("less" if other < contrast else "more", other, contrast)
    # Images of less contrast naturally differ less.
    is_alike = fake.relative_variety < _MIN_VARIETY_RATIO * real.relative_variety
    if is_alike and _is_certain(real.deviation, fake.deviation):
        yield "alike", (fake.variety, real.variety)


def _compare_qualities(real: Measures, fake: Measures, paired: bool) -> Iterator[_Difference]:
    share, fake_share = _means(real.lossy, fake.lossy)
    gap = fake_share - share
    if gap > _LOSSY_GAP or (gap < -_LOSSY_GAP and not paired):
        yield "lossy", (fake_share, share)
    if all(len(images.qualities) >= 0.5 * len(images) for images in (real, fake)):
        quality, fake_quality = _medians(real.qualities, fake.qualities)
        if abs(quality - fake_quality) > _QUALITY:
            yield "other quality", (quality, fake_quality)


def _compare_ends(real: Measures, fake: Measures) -> Iterator[_Difference]:
    is_lossy = fake.lossy.mean() > 0.5
    ends = _ENDS_LOSSY if is_lossy else _ENDS
    usual = real.holds_both_ends(ends)
    full = fake.holds_both_ends(ends)
    few = np.minimum(fake.records["zeros"], fake.records["full"])
    is_few = few <= np.maximum(2, _FEW_AT_END * fake.records["values"])
    least = _FEW_UNSTRETCHED if is_few.mean() > 0.5 and not is_lossy else _UNSTRETCHED
    most = _STRETCHED_LOSSY if is_lossy else _STRETCHED
    share, fake_share = _means(usual, full)
    if fake_share > most and share < least and _is_certain(usual, full):
        yield "stretched", (fake_share, share)


def _compare_detail(real: Measures, fake: Measures) -> Iterator[_Difference]:
    """Yield what one of the sets lacks: detail above a part of its resolution, or pixels that
    differ.
    """
    if min(real.colourful.mean(), fake.colourful.mean()) < 0.5:
        return
    for images, name, others, other_name, reason in (
        (fake, "FAKE", real, "REAL", "the generator leaves out such detail"),
        (real, "REAL", fake, "FAKE", "the detail in FAKE is noise"),
    ):
        share, other_share = _means(images.repeated, others.repeated)
        is_enlarged = share > _SOME_REPEATS and other_share < _FEW_REPEATS
        if is_enlarged and _is_certain(images.repeated, others.repeated):
            yield "repeated pixels", (share, name, other_share, other_name)
            return
        for part, words in _PARTS:
            kept = _find_lost_detail(images, others, part)
            if kept is not None:
                yield "less detail", (words, name, other_name, kept, reason)
                return


def _find_lost_detail(images: Measures, others: Measures, part: float) -> Fraction | None:
    """Return up to which part of the resolution a set has the detail of the other; None if it
    lacks nothing.

    The sets are compared at a quantile of their images, in each band of frequencies: as it is and
    relative to the lowest band, so that neither contrast nor content count.
    """
    if not len(images.detail) or not len(others.detail):
        return None
    lost = _quantile_loss(images.detail, others.detail, part)
    least = np.minimum(lost, _quantile_loss(images.relative_detail, others.relative_detail, part))
    if least[BANDS // 2 :].mean() <= _MIN_LOSS_DB or (least[2:] - least[:-2]).max() <= _CLIFF:
        return None
    if not _is_certain(images.upper_detail, others.upper_detail):
        return None
    is_gone = lost >= min(_GONE_LOSS_DB, 0.8 * lost.max())
    return Fraction(max(1, int(is_gone.argmax())), BANDS)


def _quantile_loss(images: Floats, others: Floats, part: float) -> Floats:
    """Return how much less the images have than the others, in each column, at a quantile."""
    return np.quantile(others, part, axis=0) - np.quantile(images, part, axis=0)
