"""Whether the classes of FAKE have the shares that they have in REAL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.names import counted

_CHANCE = 1e-4
"""Probability of a warning about classes that are drawn at random."""
_NOTABLE = 0.02
"""Total variation distance of the shares above which a difference is notable."""
_FEWEST = 5.0
"""Classes with a smaller expected number of images count as one class: the law of chi-square holds for larger ones."""
_MOST_NAMED = 5


def balance_warnings(counts: Mapping[str, tuple[int, int]]) -> list[str]:
    """Return what is wrong with the shares of classes, from their numbers of images in REAL and FAKE, in a sentence.

    None if classes that are drawn at random from one population may have these numbers. A class of r images is in REAL
    alone with a probability of about (n / N)^r, if n of all N images are REAL's. All together have Pearson's chi-square
    test of homogeneity.
    """
    names, numbers = [*counts], np.array([*counts.values()], dtype=np.float64)
    images = numbers.sum(axis=0)
    if not images.all():
        return []
    (real, fake), shares = numbers.T, numbers / images
    lacking = (fake == 0) & (real * np.log(images[0] / images.sum()) < np.log(_CHANCE / len(names)))
    if lacking.any():
        missing = listed([names[place] for place in np.flatnonzero(lacking)])
        return [f"it has no images of {counted(int(lacking.sum()), 'class', 'classes')} of REAL: {missing}"]
    apart = np.abs(shares[:, 0] - shares[:, 1])
    if (distance := apart.sum() / 2) <= _NOTABLE or homogeneity(numbers) >= _CHANCE:
        return []
    most = (
        f"{names[place]} {shares[place, 1]:.2%} instead of {shares[place, 0]:.2%}" for place in np.argsort(-apart)[:3]
    )
    return [f"its classes have other shares than REAL's: {distance:.1%} of its images are too many ({', '.join(most)})"]


def homogeneity(numbers: NDArray[np.float64]) -> float:
    """Return the p-value of Pearson's chi-square test that two samples, the columns, are of one population."""
    expected = np.outer(numbers.sum(axis=1), numbers.sum(axis=0)) / numbers.sum()
    rare = expected.min(axis=1) < _FEWEST
    if rare.any():
        numbers, expected = (np.vstack([each[~rare], each[rare].sum(axis=0)]) for each in (numbers, expected))
    if len(numbers) < 2:
        return 1.0
    statistic = ((numbers - expected) ** 2 / expected).sum()
    half = torch.tensor([(len(numbers) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))  # importing scipy.special is slow


def listed(names: Sequence[str]) -> str:
    """Return the first of these names, and how many more there are."""
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
