"""Findings about how the images of FAKE differ from those of REAL, for reasons other than the generator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fidtool.diagnose.findings import Finding, Severity, brightness, contrast, usual_size
from fidtool.images.records import BRIGHTNESS, FLAGS, NOISE, ImageRecords, RecordArray

LOSSY = "lossy"
"""A finding that is a warning of a run which measures both sets anyway, see `fidtool.diagnose.warnings`."""
_BRIGHTER = 0.75
"""A shift of the mean brightness by so many standard deviations of REAL's images is not by chance."""
_LEAST_SHIFT = 8.0
"""Grey levels that anyone notices."""
_FEWEST = 50
_THROUGHOUT = 0.3
_COARSER, _AS_FINE = 2.0, 0.8
"""Ratios of sides."""
_ROUGHER, _LEAST_ROUGHER = 2.0, 8.0
_CLIPPED, _MORE_CLIPPED = 0.2, 5.0
_FLATTER = 0.6
LOSSY_GAP = 0.1
"""Shares of lossy files that differ by more than this make two sets incomparable."""
_SWAPPED = 0.4
_LEAST_COLOUR = 6.0
"""Grey levels by which red and blue must differ for a swap of them to show."""
_FAINTER = 0.25
_GRAYER = 0.1
_ALIKE = 0.45
"""Photos of flowers and of CIFAR-10 have at least 0.9 of each other's variety, the same with black borders 0.55, one
picture with a little noise 0.1 to 0.3."""
_ENLARGED = 299
"""Sides of the network's input."""
_QUALITY = 10


def pair_findings(real: ImageRecords, fake: ImageRecords, own: Sequence[Finding]) -> list[Finding]:
    """What tells FAKE's images from REAL's at first sight.

    Args:
        real, fake: images of the two sets.
        own: findings about FAKE alone; differences that follow from them are left out.
    """
    found = [
        *_sizes(real.records, fake.records),
        *_colours(real.records, fake.records),
        *_qualities(real.records, fake.records),
        *_values(real.records, fake.records),
        *_variety(real.records, fake.records),
    ]
    explained = set()
    throughout = {finding.code for finding in own if finding.count > _THROUGHOUT * len(fake)}
    if throughout & {"negative", "pale", "unscaled", "black", "clipped", "noise"}:
        explained = {"brightness", "clipped", "contrast", "grayscale", "rough", "colourless", "alike"}
    codes = {finding.code for finding in found}
    if "clipped" in codes:
        explained |= {"brightness", "alike"}
    if "alike" in codes:  # what one picture is like says nothing about values and channels
        explained |= {"contrast", "swapped channels", "colourless", "grayscale"}
    return [finding for finding in found if finding.code not in explained]


def _about_all(code: str, message: str, fake: RecordArray, severity: Severity = "medium") -> Finding:
    return Finding(code, severity, len(fake), "", message)


def _sizes(real: RecordArray, fake: RecordArray) -> Iterator[Finding]:
    one, other = usual_size(real), usual_size(fake)
    if one is not None and other is not None and one != other:
        yield _about_all(
            "other size",
            f"FAKE's images are {other[0]} x {other[1]} pixels and REAL's {one[0]} x {one[1]}: "
            f"{_by_size(min(*one, *other))}; prepare both at the same size",
            fake,
        )
        return
    sides = [np.median(_side(records)) for records in (real, fake)]
    if max(sides) > _COARSER * min(sides) and min(sides) < _ENLARGED:
        yield _about_all(
            "other size",
            f"the median of FAKE's images has a side of {sides[1]:.0f} pixels and that of REAL's {sides[0]:.0f}: "
            f"{_by_size(min(sides))}; prepare both at the same size",
            fake,
        )
    shapes = [np.log(records["width"] / records["height"]) for records in (real, fake)]
    wide, other_wide = (float(np.median(shape)) for shape in shapes)
    # An aspect ratio of REAL's own that varies is a set of photos, each squeezed to a square by the protocol.
    if other is not None and one is None and abs(wide - other_wide) > np.log(1.2):
        yield _about_all(
            "other shape",
            f"half of REAL's images are {np.exp(wide):.2f} times as wide as high, and FAKE's {np.exp(other_wide):.2f}: "
            "the protocol squeezes all to a square; crop REAL as the training did",
            fake,
        )


def _by_size(side: float) -> str:
    """What the protocol does to images whose smaller side has so many pixels."""
    if side < _ENLARGED:
        return "the coarser ones are blurred by enlarging them, and that counts"
    return "they are shrunk by different factors, and that counts"


def _side(records: RecordArray) -> NDArray[np.float64]:
    """Side of the square with as many pixels as each image: float64 array of shape (images,)."""
    area: NDArray[np.float64] = records["width"] * records["height"].astype(np.float64)
    return np.sqrt(area)


def _colours(real: RecordArray, fake: RecordArray) -> Iterator[Finding]:
    if min(len(real), len(fake)) < _FEWEST:
        return
    light = [brightness(records) for records in (real, fake)]
    shift = float(light[1].mean() - light[0].mean())
    if abs(shift) > max(_BRIGHTER * float(light[0].std()), _LEAST_SHIFT):
        yield _about_all(
            "brightness",
            f"FAKE's images are {'lighter' if shift > 0 else 'darker'} than REAL's by {abs(shift):.0f} of 255 levels "
            "in the mean: look at how values become bytes, or at what was sampled",
            fake,
        )
    (blue, red), (fake_blue, fake_red) = (_chroma(records) for records in (real, fake))
    straight = abs(blue - fake_blue) + abs(red - fake_red)
    swapped = abs(blue - fake_red) + abs(red - fake_blue)
    if straight > 2 * _LEAST_COLOUR and swapped < _SWAPPED * straight:
        yield _about_all(
            "swapped channels",
            "FAKE is as blue as REAL is red, or the reverse: if these are pictures of the same kind, the channels were "
            "written in the order BGR, or the pictures are negatives; turn them around",
            fake,
        )
    gray = [float((records["gray"] == 1).mean()) for records in (real, fake)]
    if abs(gray[0] - gray[1]) > _GRAYER:
        yield _about_all(
            "grayscale", f"{gray[0]:.0%} of REAL's images are grayscale against {gray[1]:.0%} of FAKE's", fake
        )
        return
    colour, faint = (float(np.median(_colourfulness(records))) for records in (real, fake))
    if colour >= _LEAST_COLOUR and faint < _FAINTER * colour:
        yield _about_all(
            "colourless",
            f"FAKE's pictures have next to no colour ({faint:.0f} levels against {colour:.0f}, medians): the memory's "
            "layout (CHW, HWC) was taken for another, which leaves a grid of gray copies, or one channel was written "
            "for all",
            fake,
            "high",
        )


def _colourfulness(records: RecordArray) -> NDArray[np.float64]:
    """Mean distance of each image's parts from gray, in levels: float64 array of shape (images,)."""
    blue, red = 2.0 * (records["thumb"][:, BRIGHTNESS:].reshape(len(records), 2, -1).swapaxes(0, 1) - 128.0)
    result: NDArray[np.float64] = np.hypot(blue, red).mean(axis=1)
    return result


def _chroma(records: RecordArray) -> NDArray[np.float64]:
    """Means of B - Y and R - Y over a set: float64 array of shape (2,)."""
    colours = records["thumb"][:, BRIGHTNESS:].reshape(len(records), 2, -1)
    result: NDArray[np.float64] = 2.0 * (colours.mean(axis=(0, 2)) - 128.0)
    return result


def _values(real: RecordArray, fake: RecordArray) -> Iterator[Finding]:
    if min(len(real), len(fake)) < _FEWEST:
        return
    rough, rougher = (float(np.median(records["roughness"])) for records in (real, fake))
    # Smaller pictures of the same things are rougher.
    comparable = np.median(_side(fake)) > _AS_FINE * np.median(_side(real))
    if comparable and rough < NOISE and rougher > _ROUGHER * rough + _LEAST_ROUGHER and rougher < NOISE:
        yield _about_all(
            "rough",
            f"neighbouring pixels of FAKE are less alike than REAL's ({rougher:.0f} % against {rough:.0f} % of what "
            "unrelated ones would differ by): noise is left, values overflowed as they became bytes, or the memory's "
            "layout (CHW, HWC) was taken for another",
            fake,
            "high",
        )
    clipped = [
        float(np.median((one["zeros"] + one["full"].astype(float) - 3.0 * one["black"]) / one["values"]))
        for one in (real, fake)
    ]
    # Borders and backgrounds of black are no clipping, which takes the channels one by one.
    if clipped[1] > max(_CLIPPED, _MORE_CLIPPED * clipped[0]):
        yield _about_all(
            "clipped",
            f"{clipped[1]:.0%} of FAKE's values are 0 or 255 against {clipped[0]:.0%} of REAL's (medians): values of "
            "another range, normalised ones for instance, were clipped as they became bytes, or pictures got white "
            "borders",
            fake,
            "high",
        )
        return
    usual, other = (float(np.median(contrast(records))) for records in (real, fake))
    if not _FLATTER * usual <= other <= usual / _FLATTER:
        yield _about_all(
            "contrast",
            f"FAKE's pictures have {'less' if other < usual else 'more'} contrast than REAL's: their values spread by "
            f"{other:.0f} levels against {usual:.0f} (medians); look at how values become bytes",
            fake,
        )


def _variety(real: RecordArray, fake: RecordArray) -> Iterator[Finding]:
    """Pictures that are all similar, as those of a generator that has collapsed."""
    if min(len(real), len(fake)) < _FEWEST:
        return
    varied, other = (_between_pictures(records) for records in (real, fake))
    # ImageRecords of less contrast differ less by nature.
    usual, spread = (
        max(float(np.median(records["thumb"][:, :BRIGHTNESS].std(axis=1))), 1.0) for records in (real, fake)
    )
    if other / spread < _ALIKE * varied / usual:
        yield _about_all(
            "alike",
            f"FAKE's pictures are alike: from one to the next they differ by {other:.0f} levels and REAL's by "
            f"{varied:.0f} (coarse thumbnails): the generator has collapsed to a few pictures, or one prompt, class or "
            "background made them all",
            fake,
            "high",
        )


def _between_pictures(records: RecordArray) -> float:
    """By how many levels a set's images differ in the half of their parts in which they differ most.

    The other half may be a background or borders.
    """
    variances = np.sort(records["thumb"][:, :BRIGHTNESS].var(axis=0))
    return float(np.sqrt(variances[BRIGHTNESS // 2 :].mean()))


def _qualities(real: RecordArray, fake: RecordArray) -> Iterator[Finding]:
    lossy = [float((records["flags"] >> FLAGS["lossy"] & 1).mean()) for records in (real, fake)]
    if abs(lossy[0] - lossy[1]) > LOSSY_GAP:
        yield _about_all(
            LOSSY,
            f"{lossy[1]:.0%} of FAKE are in a lossy format (JPEG, lossy WebP) against {lossy[0]:.0%} of REAL: its "
            "artefacts count towards the distance; save both in the same format",
            fake,
        )
    if min(float((records["quality"] > 0).mean()) for records in (real, fake)) < 0.5:
        return
    one, other = (float(np.median(records["quality"][records["quality"] > 0])) for records in (real, fake))
    if abs(one - other) > _QUALITY:
        yield _about_all(
            "other quality",
            f"REAL's JPEGs have quality {one:.0f} and FAKE's {other:.0f} (medians): the difference in artefacts counts "
            "towards the distance; save both alike",
            fake,
        )
