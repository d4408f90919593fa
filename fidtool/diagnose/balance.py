"""Whether the classes of FAKE have the shares that they have in REAL."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fidtool.names import counted, shortened

_CHANCE = 1e-4
"""Probability of a warning about classes that are drawn at random."""
_NOTABLE = 0.02
"""Total variation distance of the shares above which a difference is notable."""
_FEWEST = 5.0
"""The law of chi-square holds for classes with at least this expected number of images."""


def balance_warnings(counts: Mapping[str, tuple[int, int]]) -> list[str]:
    """Return what is wrong with the shares of classes, from their numbers of images in REAL and
    FAKE, in a sentence.

    There is none if classes drawn at random from one population may have these numbers. A class of
    r images is in REAL alone with a probability of about (n / N)^r, if n of all N images are
    REAL's.
    """
    names = [*counts]
    numbers = np.array([*counts.values()], dtype=np.float64)
    images = numbers.sum(axis=0)
    chances = numbers[:, 0] * np.log(images[0] / images.sum())
    missing = np.flatnonzero((numbers[:, 1] == 0) & (chances < np.log(_CHANCE / len(names))))
    if len(missing):
        lacking = shortened(", ".join(names[place] for place in missing))
        return [
            f"it has no images of {counted(len(missing), 'class', 'classes')} of REAL: {lacking}"
        ]
    shares = numbers / images
    apart = np.abs(shares[:, 0] - shares[:, 1])
    if (distance := apart.sum() / 2) <= _NOTABLE or homogeneity(numbers) >= _CHANCE:
        return []
    most = (
        f"{names[apart.argmax()]} has {shares[apart.argmax(), 1]:.2%} instead of "
        f"{shares[apart.argmax(), 0]:.2%}"
    )
    return [
        f"its classes have other shares than REAL's: {distance:.1%} of its images are too many "
        f"({most})"
    ]


def homogeneity(numbers: NDArray[np.float64]) -> float:
    """Return the p-value of Pearson's test that two samples, the columns, are of one population,
    without rare rows.
    """
    from scipy.stats import chi2_contingency  # deferred: it takes a second

    kept = numbers[numbers.sum(axis=1) * numbers.sum(axis=0).min() / numbers.sum() >= _FEWEST]
    return float(chi2_contingency(kept, correction=False).pvalue) if len(kept) > 1 else 1.0
