"""Whether the classes of FAKE have the shares that they have in REAL."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fidtool.names import format_count, shorten

# Probability of a warning about classes that are drawn at random.
_FALSE_ALARM_RATE = 1e-4
# Total variation distance of the shares above which a difference is notable.
_NOTABLE = 0.02
# The law of chi-square holds for classes with at least this expected number of images.
_MIN_EXPECTED = 5.0


def balance_warnings(counts: Mapping[str, tuple[int, int]]) -> list[str]:
    """Return what is wrong with the shares of classes, from their numbers of images in REAL and
    FAKE, in a sentence.

    There is none if classes drawn at random from one population may have these numbers. A class of
    r images is in REAL alone with a probability of about (n / N)^r, if n of all N images are
    REAL's.
    """
    names = list(counts)
    numbers = np.array(list(counts.values()), dtype=np.float64)
    images = numbers.sum(axis=0)
    chances = numbers[:, 0] * np.log(images[0] / images.sum())
    missing = np.flatnonzero(
        (numbers[:, 1] == 0) & (chances < np.log(_FALSE_ALARM_RATE / len(names)))
    )
    if len(missing):
        lacking = shorten(", ".join(names[place] for place in missing))
        number = format_count(len(missing), "class")
        return [f"it has no images of {number} that REAL has: {lacking}"]
    shares = numbers / images
    apart = np.abs(shares[:, 0] - shares[:, 1])
    distance = apart.sum() / 2
    if distance <= _NOTABLE or homogeneity(numbers) >= _FALSE_ALARM_RATE:
        return []
    most = apart.argmax()
    real_share, fake_share = shares[most]
    return [
        f"its classes are distributed differently from REAL's: {distance:.1%} of its images would "
        f"have to be of another class ({names[most]} has {fake_share:.2%} instead of "
        f"{real_share:.2%})"
    ]


def homogeneity(numbers: NDArray[np.float64]) -> float:
    """Return the p-value of Pearson's test that two samples, the columns, are of one population,
    without rare rows.
    """
    from scipy.stats import chi2_contingency  # deferred: it takes a second

    expected = numbers.sum(axis=1) * numbers.sum(axis=0).min() / numbers.sum()
    kept = numbers[expected >= _MIN_EXPECTED]
    if len(kept) < 2:
        return 1.0
    return float(chi2_contingency(kept, correction=False).pvalue)
