"""What a comparison says about a value besides it: error bars, differences, harmful images, and
what a page shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import floor, hypot, log10
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fidtool.diagnose.diagnosis import Health
from fidtool.system.json_fields import Share


def count_decimals(value: float, digits: int) -> int:
    """Return how many decimals show the first ``digits`` digits of a value; 0 if it has as many
    before the point.
    """
    if not value:
        return digits
    return max(0, digits - 1 - floor(log10(abs(value))))


@dataclass(frozen=True)
class Interval:
    """An estimate with its standard error and confidence interval.

    Attributes:
        value: the estimate. It is unbiased, so for a distance near 0 it is negative as often as
            positive.
        error: standard error of the estimate.
        low: lower end of the 95 % confidence interval.
        high: upper end of this interval.
    """

    value: float
    error: float
    low: float
    high: float

    def __post_init__(self) -> None:
        # Only a file that was changed has another one.
        if self.error < 0.0 or not self.low <= self.value <= self.high:
            raise ValueError("an interval does not contain its value")

    def __sub__(self, other: Interval) -> Interval:
        """Return this estimate minus an independent one, with its 95 % interval (MOVER: Zou &
        Donner 2008).

        Distances from the same REAL, which counts as fixed, to independent samples of two
        generators are independent: their variances add up. So do the squares of the distances from
        the values to the ends of their intervals, which need not be symmetric. For ± t error, with
        Student's t of 19 degrees of freedom, this is ± t hypot(both errors): conservative, as the
        difference has 19 to 38 degrees of freedom (Welch). Of the same latents it is too wide.
        """
        below = hypot(self.value - self.low, other.high - other.value)
        above = hypot(self.high - self.value, other.value - other.low)
        value = self.value - other.value
        return Interval(value, hypot(self.error, other.error), value - below, value + above)

    @property
    def sign(self) -> int:
        """1 if the whole interval is above 0, -1 if it is below, 0 if it contains 0."""
        return (self.low > 0.0) - (self.high < 0.0)

    def texts(self, sign: str = "", decimals: int | None = None) -> tuple[str, str, str]:
        """Return estimate, error and interval as text: ``9.50``, ``0.12`` and ``9.26 to 9.74``.

        Args:
            sign: ``+`` for a difference.
            decimals: by default those to the second digit of the error, at most 4.
        """
        if decimals is None:
            decimals = min(4, count_decimals(self.error, 2))
        form = f"{sign}.{decimals}f"
        return (
            f"{self.value:{form}}",
            f"{self.error:.{decimals}f}",
            f"{self.low:{form}} to {self.high:{form}}",
        )

    @property
    def signed(self) -> str:
        """A difference as text: ``+1.2300 (95 %: +0.4100 to +2.0500)``."""
        value, _, interval = self.texts("+", 4)
        return f"{value} (95 %: {interval})"


@dataclass(frozen=True)
class Uncertainty:
    """Uncertainty of a Fréchet distance. REAL counts as fixed: the interval only covers the
    sampling of FAKE.

    Attributes:
        bias: estimated bias: the distance for this number of images minus the distance for
            infinitely many; None if withheld.
        corrected: bias-corrected distance, which estimates the distance for infinitely many images;
            None if withheld.
        withheld: why there is no interval; empty if there is one.
        curve: pairs of a number of images and their distance, ascending; the last pair is for all
            images.
        real: how REAL is treated: ``fixed``, as if it had no sampling error.
        level: confidence level of the interval.
    """

    bias: float | None
    corrected: Interval | None
    withheld: str
    curve: tuple[tuple[int, float], ...]
    real: str = "fixed"
    level: float = 0.95


@dataclass(frozen=True)
class Difference:
    """Difference between the Fréchet distances of two FAKEs.

    Attributes:
        first: path of the first FAKE, as passed by the caller.
        second: path of the second FAKE.
        interval: bias-corrected Fréchet distance of the first FAKE minus that of the second, with
            its 95 % interval; negative if the first is better.
        key: key of the distance, such as ``fd_dinov2``.
    """

    first: str
    second: str
    interval: Interval
    key: str = "fid"

    DERIVED = ("verdict",)

    @property
    def distinguished(self) -> bool:
        """Whether one of the two is better: 0 is outside the interval."""
        return self.interval.sign != 0

    @property
    def verdict(self) -> str:
        """Which of the two is better, or that they cannot be distinguished."""
        if not self.distinguished:
            return f"{self.first} and {self.second} cannot be distinguished"
        if self.interval.sign < 0:
            return f"{self.first} is better than {self.second}"
        return f"{self.second} is better than {self.first}"


@dataclass(frozen=True)
class Nearest:
    """Distances from the images in FAKE, and from held-out images, to their nearest images in REAL,
    the training set.

    They are Euclidean distances between the features of the first network: a diagnostic of
    memorisation, not a quality score.

    Attributes:
        median: median of the distances for FAKE.
        heldout_median: median of the distances for held-out images.
        copies: number of images in FAKE at distance 0.
        heldout_copies: number of held-out images at distance 0.
        closer: share of the images in FAKE that are closer to REAL than every held-out image.
        low: lower end of the 95 % confidence interval of ``closer`` (Clopper & Pearson 1934), for
            these held-out images.
        high: upper end of this interval.
        probability: estimated probability that an image in FAKE is closer to REAL than a held-out
            image, where equal distances count half: 0.5 without memorisation, and more with it
            (Mann & Whitney's U / nm, as in Meehan, Chaudhuri & Dasgupta 2020).
        error: standard error of ``probability`` without memorisation.
    """

    median: float
    heldout_median: float
    copies: int
    heldout_copies: int
    closer: Share
    low: Share
    high: Share
    probability: Share
    error: float


@dataclass(frozen=True)
class Heldout:
    """Comparison of one FAKE with real images that its generator was not trained on.

    Attributes:
        name: path of the held-out set, as passed by the caller.
        count: number of images in this set.
        images: number of held-out images from which the floors are computed, the first in their
            pseudo-random order: as many as FAKE has, or all if there are fewer.
        floors: Fréchet distances between these images and REAL by key, which a perfect generator
            would have.
        nearest: whether FAKE copies REAL.
    """

    name: str
    count: int
    images: int
    floors: Mapping[str, float]
    nearest: Nearest


@dataclass(frozen=True)
class HarmfulImage:
    """An image in FAKE and its effect.

    Attributes:
        file: path of the image.
        effect: decrease of the Fréchet distance without the image, to first order; negative if the
            distance would rise.
    """

    file: str
    effect: float


@dataclass(frozen=True)
class Removal:
    """Effect of removing the most harmful images.

    Attributes:
        fraction: fraction of FAKE that is removed.
        images: number of images that are removed.
        predicted: Fréchet distance of the remaining images according to the effects, to first
            order.
        distance: Fréchet distance of the remaining images, computed.
    """

    fraction: float
    images: int
    predicted: float
    distance: float


@dataclass(frozen=True)
class Influence:
    """Images in FAKE that raise its Fréchet distance.

    Attributes:
        most_harmful: images that raise the distance most, the worst first: 2 % of FAKE, at least 20
            and at most 1000.
        least_harmful: images whose removal would raise the distance most, the best first; at most
            20.
        removals: effects of removing the worst 0.5, 1 and 2 %.
        doubt: why the effects are rough estimates; empty if they are not.
    """

    most_harmful: tuple[HarmfulImage, ...]
    least_harmful: tuple[HarmfulImage, ...]
    removals: tuple[Removal, ...]
    doubt: str = ""

    @property
    def raising(self) -> tuple[HarmfulImage, ...]:
        """The images of ``most_harmful`` that do raise the distance: those with a positive
        effect.
        """
        return tuple(image for image in self.most_harmful if image.effect > 0)


@dataclass(frozen=True)
class Neighbour:
    """A generated image and its nearest real one.

    Attributes:
        fake: path of the generated image, or the path of its set with an index if only features are
            known.
        real: the same for the real image.
        distance: Euclidean distance between their features.
    """

    fake: str
    real: str
    distance: float


@dataclass(frozen=True, eq=False)
class ImageValues:
    """Values of single images in FAKE.

    Attributes:
        files: paths of the images.
        partners: path of the real image that each belongs to; empty if they were not compared in
            pairs.
        values: float64 arrays of shape (images,), by the key of the value.
    """

    files: Sequence[str]
    partners: Sequence[str]
    values: Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True)
class WorstPair:
    """A pair of images with a value that is among the worst.

    Attributes:
        fake: path of the image in FAKE.
        real: path of its partner in REAL.
        key: key of the value, such as ``psnr``.
        value: the value of the pair.
    """

    fake: str
    real: str
    key: str
    value: float


@dataclass(frozen=True)
class Exhibit:
    """What a page can show about one FAKE and about REAL.

    Attributes:
        fake: properties of FAKE; None if its images were not inspected.
        real: properties of REAL; None if its images were not inspected.
        random: paths of the first images in FAKE, in its pseudo-random order.
        neighbours: some images in FAKE, each with its nearest real image; empty if the features of
            either set are unknown.
        random_real: as ``random``, for REAL.
        without_features: paths of the sets whose per-image features are unknown.
        worst_pairs: the worst pairs of images by each metric that compares pairs, the worst first.
    """

    fake: Health | None = None
    real: Health | None = None
    random: tuple[str, ...] = ()
    neighbours: tuple[Neighbour, ...] = ()
    random_real: tuple[str, ...] = ()
    without_features: tuple[str, ...] = ()
    worst_pairs: tuple[WorstPair, ...] = ()


@dataclass(frozen=True)
class ClassResult:
    """A class of images in REAL and a FAKE, or a folder of each.

    Attributes:
        name: name of the class or folder.
        real: number of images in REAL.
        fake: number of images in FAKE.
        metrics: values for its images in FAKE against its images in REAL, by their keys in the
            JSON; without values that were not requested or need more images.
        corrected: bias-corrected Fréchet distance; None if error bars were not requested or need
            more images.
    """

    name: str
    real: int
    fake: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    corrected: Interval | None = None

    @property
    def smaller(self) -> int:
        """The smaller number of images."""
        return min(self.real, self.fake)

    @property
    def counted(self) -> str:
        """Its name with the numbers of images."""
        return f"{self.name} ({self.real} in REAL, {self.fake} in FAKE)"


@dataclass(frozen=True)
class Classes:
    """The classes of REAL and a FAKE, or their folders.

    Attributes:
        kind: whether they are classes or folders.
        classes: all classes or folders in either set, the worst by the first value first; those
            without values last, by name.
        mean: mean of each value over the classes that have it, by its key in the JSON.
        worst: name and value of the worst class, for values where lower or higher is better.
        min_class: number of images that a class needs in both REAL and FAKE to have values; None if
            only the metrics limit it.
    """

    DERIVED = ("left_out",)

    kind: Literal["class", "folder"]
    classes: tuple[ClassResult, ...]
    mean: Mapping[str, float] = field(default_factory=dict)
    worst: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    min_class: int | None = None

    @property
    def left_out(self) -> tuple[str, ...]:
        """Names of the classes with fewer than ``min_class`` images in REAL or FAKE."""
        least = self.min_class or 0
        return tuple(part.name for part in self.classes if part.smaller < least)


@dataclass(frozen=True)
class NotComputed:
    """A metric that could not be computed for some or all FAKEs.

    Attributes:
        metric: its name, with the network in brackets if that is not the first one.
        title: the titles of its values.
        reason: why it was not computed.
        requested: whether it was requested by name: the run then fails without it.
    """

    metric: str
    title: str
    reason: str
    requested: bool
