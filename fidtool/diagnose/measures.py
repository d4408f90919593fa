"""What the records of a set of images say about each image."""

# mypy: disable-error-code=no-any-return
# The type of a field of a structured array is unknown.

from __future__ import annotations

from collections import Counter
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fidtool.reading.records import BANDS, BRIGHTNESS, FLAGS, RecordArray

# Images with less in the lowest band of detail, in levels squared, are flat: they have no detail to
# lose.
_TEXTURED = 10.0
# Images of repeated pixels have at least 18 % uneven columns or rows: 24 % if enlarged by 8,
# whereas cartoons have about 10 % and photos none.
_REPEATS = 18
# Share that counts as nearly all images.
_NEARLY_ALL = 0.9

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


class Measures:
    """Measures of the images in a set, computed when they are first asked for: arrays of shape
    (images,).
    """

    def __init__(self, records: RecordArray) -> None:
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    @cached_property
    def measured(self) -> Measures:
        """Those whose range and detail are recorded, without black images: in records these have
        neither.
        """
        return Measures(self.records[self.records["highest"] > 0])

    @property
    def is_older(self) -> bool:
        """Whether an earlier version recorded them, without the range and detail."""
        return not len(self.measured) and bool(self.records["high"].any())

    @cached_property
    def side(self) -> float:
        """Median side, in pixels, of squares with as many pixels as each image."""
        pixels = self.records["width"] * self.records["height"].astype(np.float64)
        return float(np.median(np.sqrt(pixels)))

    @cached_property
    def shapes(self) -> Floats:
        """Ratios of width to height."""
        return self.records["width"] / self.records["height"]

    @cached_property
    def usual_size(self) -> tuple[int, int] | None:
        """The width and height that nearly all images have; None if they vary."""
        size, count = _most_common_pair(self.records["width"], self.records["height"])
        return size if count >= _NEARLY_ALL * len(self) else None

    @cached_property
    def odd_sized(self) -> Flags:
        """Which do not have the most frequent size; photos of one camera in portrait and landscape
        have the same.
        """
        shorter = np.minimum(self.records["width"], self.records["height"])
        longer = np.maximum(self.records["width"], self.records["height"])
        size, _ = _most_common_pair(shorter, longer)
        return (shorter != size[0]) | (longer != size[1])

    def has_flag(self, name: str) -> Flags:
        """Which have a property, named as in `FLAGS`."""
        return self.records["flags"] >> FLAGS[name] & 1 == 1

    @cached_property
    def lossy(self) -> Flags:
        """Which are in a lossy format."""
        return self.has_flag("lossy")

    @cached_property
    def qualities(self) -> NDArray[np.uint8]:
        """Qualities of the JPEGs among them, shape (JPEGs,)."""
        return self.records["quality"][self.records["quality"] > 0]

    @cached_property
    def gray(self) -> Flags:
        """Which are grayscale."""
        return self.records["gray"] == 1

    @cached_property
    def cells(self) -> NDArray[np.uint8]:
        """Brightness of the cells of the thumbnails, shape (images, BRIGHTNESS)."""
        return self.records["thumb"][:, :BRIGHTNESS]

    @cached_property
    def light(self) -> Floats:
        """Mean brightness, 0 to 255."""
        return self.cells.mean(axis=1)

    @cached_property
    def chroma(self) -> Floats:
        """B - Y and R - Y in the parts of each image, shape (images, 2, parts)."""
        colours = self.records["thumb"][:, BRIGHTNESS:].reshape(len(self), 2, -1)
        return 2.0 * (colours - 128.0)

    @cached_property
    def colour(self) -> Floats:
        """Mean colourfulness, in grey levels."""
        return np.hypot(self.chroma[:, 0], self.chroma[:, 1]).mean(axis=1)

    @cached_property
    def contrast(self) -> Floats:
        """Standard deviations of the values in levels, in steps of 16."""
        shares = self.records["bins"] / self.records["values"][:, None]
        levels = 16.0 * np.arange(shares.shape[1])
        mean = shares @ levels
        return np.sqrt(np.maximum(shares @ levels**2 - mean**2, 0.0))

    @cached_property
    def deviation(self) -> Floats:
        """Differences of the thumbnails from the mean thumbnail, as standard deviations of their
        bytes.
        """
        thumbs = self.records["thumb"]
        return (thumbs - thumbs.mean(axis=0)).std(axis=1)

    @cached_property
    def variety(self) -> float:
        """How much the images differ from each other, in grey levels."""
        # In the half of the thumbnail that varies most between images; the other may be a
        # background.
        varied = np.sort(self.cells.var(axis=0))[BRIGHTNESS // 2 :]
        return float(np.sqrt(varied.mean()))

    @cached_property
    def relative_variety(self) -> float:
        """`variety`, as a share of the median contrast of the thumbnails."""
        return self.variety / max(float(np.median(self.cells.std(axis=1))), 1.0)

    @cached_property
    def colourful(self) -> Flags:
        """Which have values in most bins between their ends: others, such as masks, repeat pixels
        by nature.
        """
        between = (self.records["high"] >> 4) - (self.records["low"] >> 4) + 1
        return np.count_nonzero(self.records["bins"], axis=1) > 0.8 * between

    @cached_property
    def zeros(self) -> Floats:
        """Shares of the values that are 0."""
        return self.records["zeros"] / self.records["values"]

    @cached_property
    def full(self) -> Floats:
        """Shares of the values that are 255."""
        return self.records["full"] / self.records["values"]

    @cached_property
    def torn(self) -> Floats:
        """Shares of the values that are 0 in pixels that are not black: clipping sets single
        channels to 0.
        """
        return self.zeros - 3.0 * self.records["black"] / self.records["values"]

    @cached_property
    def clipped(self) -> Floats:
        """Shares of the values that are 0 or 255, without those of black borders and
        backgrounds.
        """
        return self.torn + self.full

    def holds_both_ends(self, slack: int) -> Flags:
        """Which have values at 0 and at 255, within so many levels."""
        return (self.records["lowest"] <= slack) & (self.records["highest"] >= 255 - slack)

    @cached_property
    def repeated(self) -> Flags:
        """Which consist of repeated pixels, and not by nature."""
        return (self.records["repeats"] >= _REPEATS) & self.colourful

    @cached_property
    def detail(self) -> Floats:
        """Detail of those that are not flat in decibels, by frequency, shape (images that are not
        flat, BANDS).
        """
        levels = 10.0 * np.log10(self.records["bands"].astype(np.float64) + 1.0)
        return levels[levels[:, 0] > 10.0 * np.log10(_TEXTURED)]

    @cached_property
    def relative_detail(self) -> Floats:
        """`detail` above that of the lowest frequencies, so that neither contrast nor content
        count.
        """
        return self.detail - self.detail[:, :1]

    @cached_property
    def upper_detail(self) -> Floats:
        """Mean of `relative_detail` in the upper half of the frequencies."""
        return self.relative_detail[:, BANDS // 2 :].mean(axis=1)


def _most_common_pair(
    one: NDArray[np.uint32], other: NDArray[np.uint32]
) -> tuple[tuple[int, int], int]:
    """Return the most frequent pair of numbers, and how many there are."""
    return Counter(zip(one.tolist(), other.tolist(), strict=True)).most_common(1)[0]
