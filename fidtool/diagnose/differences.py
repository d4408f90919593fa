"""How the images of FAKE differ from those of REAL in ways that no generator is meant to answer for."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fidtool.diagnose.findings import Finding, brightness, usual_size
from fidtool.images.inspection import BRIGHTNESS, Records
from fidtool.statistics.pictures import Pictures

_BRIGHTER = 0.75
"""A shift of the mean brightness by so many standard deviations of REAL's images is no chance."""
_FEWEST = 50
_SWAPPED = 0.4
_LEAST_COLOUR = 6.0
"""Grey levels by which red and blue must differ for a swap of them to show."""
_GRAYER = 0.1
_QUALITY = 10


def pair_findings(real: Pictures, fake: Pictures) -> list[Finding]:
    """What tells FAKE's images from REAL's at a glance.

    Args:
        real, fake: the two sets' images.
    """
    found = [
        *_sizes(real.records, fake.records),
        *_colours(real.records, fake.records),
        *_qualities(real.records, fake.records),
    ]
    return found


def _whole(code: str, message: str, fake: Records, severity: str = "medium") -> Finding:
    return Finding(code, "high" if severity == "high" else "medium", len(fake), "", message)


def _sizes(real: Records, fake: Records) -> Iterator[Finding]:
    one, other = usual_size(real), usual_size(fake)
    if one is not None and other is not None and one != other:
        yield _whole(
            "other size",
            f"FAKE's images are {other[0]} x {other[1]} pixels and REAL's {one[0]} x {one[1]}: the coarser ones are "
            "blurred by enlarging them, and that counts; prepare both at the same size",
            fake,
        )
        return
    shapes = [np.log(records["width"] / records["height"]) for records in (real, fake)]
    wide, other_wide = (float(np.median(shape)) for shape in shapes)
    # An aspect ratio of REAL's own that varies is a set of photos, each squeezed to a square by the protocol.
    if other is not None and one is None and abs(wide - other_wide) > np.log(1.2):
        yield _whole(
            "other shape",
            f"half of REAL's images are {np.exp(wide):.2f} times as wide as high, and FAKE's {np.exp(other_wide):.2f}: "
            "the protocol squeezes all to a square; crop REAL as the training did",
            fake,
        )


def _colours(real: Records, fake: Records) -> Iterator[Finding]:
    if min(len(real), len(fake)) < _FEWEST:
        return
    light = [brightness(records) for records in (real, fake)]
    shift = float(light[1].mean() - light[0].mean())
    if abs(shift) > _BRIGHTER * max(float(light[0].std()), 1.0):
        yield _whole(
            "brightness",
            f"FAKE's images are {'lighter' if shift > 0 else 'darker'} than REAL's by {abs(shift):.0f} of 255 levels "
            "in the mean: look at how values become bytes, or at what was sampled",
            fake,
        )
    (blue, red), (fake_blue, fake_red) = (_chroma(records) for records in (real, fake))
    straight = abs(blue - fake_blue) + abs(red - fake_red)
    swapped = abs(blue - fake_red) + abs(red - fake_blue)
    if straight > 2 * _LEAST_COLOUR and swapped < _SWAPPED * straight:
        yield _whole(
            "swapped channels",
            "FAKE has red where REAL has blue and the reverse: the channels were written in the order BGR; turn them "
            "around",
            fake,
            "high",
        )
    gray = [float((records["gray"] == 1).mean()) for records in (real, fake)]
    if abs(gray[0] - gray[1]) > _GRAYER:
        yield _whole("grayscale", f"{gray[0]:.0%} of REAL's images are grayscale against {gray[1]:.0%} of FAKE's", fake)


def _chroma(records: Records) -> NDArray[np.float64]:
    """Means of B - Y and R - Y over a set."""
    colours = records["thumb"][:, BRIGHTNESS:].reshape(len(records), 2, -1)
    result: NDArray[np.float64] = 2.0 * (colours.mean(axis=(0, 2)) - 128.0)
    return result


def _qualities(real: Records, fake: Records) -> Iterator[Finding]:
    shares = [float((records["quality"] > 0).mean()) for records in (real, fake)]
    if min(shares) < 0.5:
        return  # of lossy against lossless, the traits speak
    one, other = (float(np.median(records["quality"][records["quality"] > 0])) for records in (real, fake))
    if abs(one - other) > _QUALITY:
        yield _whole(
            "other quality",
            f"REAL's JPEGs have quality {one:.0f} and FAKE's {other:.0f} (medians): the difference in artefacts counts "
            "towards the FID; save both alike",
            fake,
        )
