"""Records of normal images, except for the properties that a test sets."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fidtool.reading.records import BINS, BRIGHTNESS, FLAGS, RECORD, ImageRecords, RecordArray

VALUES = 60_000
"""Number of values per image."""
LIGHT = 128
"""Mean brightness of a set."""
DETAIL = (2000, 900, 300, 150, 90, 50, 30, 20)
"""Detail of photos in each band."""


def some(*parts: tuple[int, object]) -> NDArray[Any]:
    """Return one value per image, from pairs of a count and a value."""
    return np.concatenate([np.repeat(np.asarray([value]), count, axis=0) for count, value in parts])


def share(part: float) -> int:
    """Return this share of an image's values."""
    return round(part * VALUES)


def histogram(contrast: float) -> NDArray[np.int64]:
    """Return the histogram, of shape (bins,), of two levels with this standard deviation."""
    gap = 14
    part = 0.5 - np.sqrt(0.25 - (contrast / (16 * gap)) ** 2)
    counts = np.zeros(BINS, dtype=np.int64)
    counts[1 + gap] = share(part)
    counts[1] = VALUES - counts[1 + gap]
    return counts


USUAL = np.maximum(histogram(60), 1)
"""The histogram of an image with many colours."""


def thumbnail(
    light: NDArray[Any] | float, within: float = 20, blue: object = 0, red: object = 0
) -> NDArray[np.uint8]:
    """Return brightness that varies by ``within`` between parts, and B - Y and R - Y: shape
    (images, parts).

    Args:
        light: mean of each image, or of one.
        within: variation between parts.
        blue, red: values of all parts, or of each of the four.
    """
    swing = within * (-1.0) ** np.arange(BRIGHTNESS)
    bright = np.atleast_1d(light)[:, None] + swing
    colours = np.concatenate(
        [np.broadcast_to(np.asarray(each) / 2 + 128, 4) for each in (blue, red)]
    )
    return np.hstack([bright, np.broadcast_to(colours, (len(bright), 8))]).astype(np.uint8)


def by_turns(count: int, swing: float = 40, light: float = LIGHT) -> NDArray[np.float64]:
    """Return two alternating brightnesses with this mean and standard deviation."""
    return light + swing * (-1.0) ** np.arange(count)


def records(count: int = 100, **fields: Any) -> RecordArray:
    """Return records of colour photos of one size in PNGs. ``fields`` are one value for all, or one
    per image.
    """
    made = np.zeros(count, dtype=RECORD)
    usual: dict[str, Any] = {
        **{
            "digest": np.arange(count),
            "height": 100,
            "width": 100,
            "format": b"PNG",
            "mode": b"RGB",
        },
        **{"low": 5, "high": 250, "roughness": 10, "values": VALUES, "bins": USUAL},
        **{"thumb": thumbnail(by_turns(count)), "lowest": 5, "highest": 250, "bands": DETAIL},
    }
    for name, value in {**usual, **fields}.items():
        made[name] = value
    return made


def pictures(count: int = 100, **fields: Any) -> ImageRecords:
    """Return the same records, with names."""
    return ImageRecords(records(count, **fields), [f"{number:05}.png" for number in range(count)])


def flagged(*parts: tuple[int, str]) -> NDArray[Any]:
    """Return values of ``flags``, from pairs of a count and a trait; an empty trait is none."""
    return some(*((count, 1 << FLAGS[trait] if trait else 0) for count, trait in parts))
