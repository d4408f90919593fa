"""Metric values for fixed features: the same in future versions, and on all processors to 1e-12.

The features are integers divided by powers of two, so that only the arithmetic of the distances can
change a digit. Counts and products are exact; sums of kernel values, exponentials and LAPACK differ
in the last bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fidtool
from fidtool.distances.frechet import covariance_factor
from fidtool.statistics.set_statistics import Gaussian
from support.exact_sets import bells, lattice, mixed
from support.goldens import Golden, near
from support.inside import cmmd, kid, nearest, prdc, score
from support.inside import gaussian as fitted

DIGITS = 1e-12


def distance(one: Gaussian, other: Gaussian, counts: bool = True) -> float:
    known = {"count1": one.count, "count2": other.count} if counts else {}
    return fidtool.frechet_distance(one.mu, one.sigma, other.mu, other.sigma, **known)


def diagonal(values: list[float], mean: float) -> Gaussian:
    return Gaussian(np.full(len(values), mean), np.diag(np.array(values)), 1000)


GAUSSIANS: dict[str, Callable[[], tuple[Gaussian, Gaussian]]] = {
    "full rank": lambda: (fitted(mixed(200, 12, 1)), fitted(bells(150, 12, 2, 0.25, 1.5))),
    "full rank, covariance by n": lambda: (
        fitted(mixed(200, 12, 1), 0),
        fitted(bells(150, 12, 2, 0.25, 1.5), 0),
    ),
    "close to each other": lambda: (fitted(mixed(400, 8, 3)), fitted(mixed(400, 8, 4))),
    "many dimensions": lambda: (fitted(mixed(300, 64, 5)), fitted(bells(280, 64, 6, 0.5))),
    "one of lower rank": lambda: (fitted(mixed(200, 16, 7)), fitted(bells(10, 16, 8, 0.5))),
    "both of lower rank": lambda: (fitted(mixed(9, 16, 9)), fitted(bells(10, 16, 10, 0.5))),
    "a feature that is constant": lambda: (
        fitted(mixed(60, 6, 11) * np.array([1, 1, 0, 1, 1, 1], np.float32)),
        fitted(bells(60, 6, 12)),
    ),
    "features that are copies": lambda: (
        fitted(np.tile(bells(60, 3, 13), (1, 2))),
        fitted(np.tile(bells(60, 3, 14, 1.0), (1, 2))),
    ),
    "two images": lambda: (fitted(bells(2, 4, 15)), fitted(bells(50, 4, 16))),
    "one image": lambda: (fitted(bells(1, 4, 17)), fitted(bells(50, 4, 18))),
    "one dimension": lambda: (fitted(bells(30, 1, 19)), fitted(bells(30, 1, 20, 2.0, 3.0))),
    "diagonals": lambda: (diagonal([1.0, 4.0, 9.0], 0.0), diagonal([4.0, 1.0, 16.0], 0.5)),
    "scales far apart": lambda: (diagonal([1e6, 1.0, 1e-6], 0.0), diagonal([1e6, 4.0, 4e-6], 1.0)),
}


def test_frechet(golden: Golden) -> None:
    """With counts, and without them: the rank is then determined from the covariance."""
    found: dict[str, Any] = {}
    for name, make in GAUSSIANS.items():
        one, other = make()
        found[name] = [
            distance(one, other),
            distance(other, one),
            distance(one, other, counts=False),
        ]
    golden("metrics/frechet", near(found, DIGITS))


def test_frechet_by_formula() -> None:
    assert distance(*GAUSSIANS["diagonals"]()) == pytest.approx(3 * 0.25 + 1 + 1 + 1, rel=1e-14)


def test_a_set_against_itself_is_at_zero() -> None:
    """Up to rounding errors relative to the variance."""
    for features in (mixed(200, 12, 1), bells(9, 16, 8), bells(1, 4, 17)):
        one = fitted(features)
        assert distance(one, one) <= 1e-13 * max(1.0, one.sigma.trace())


def refusals() -> dict[str, str]:
    eye, zero, three = np.eye(2), np.zeros(2), np.zeros(3)
    cases: dict[str, tuple[Any, ...]] = {
        "dimensions": (zero, eye, three, np.eye(3)),
        "shape": (zero, np.eye(3), zero, eye),
        "not finite": (zero, eye * np.nan, zero, eye),
        "infinite mean": (zero + np.inf, eye, zero, eye),
        "complex": (zero, eye * 1j, zero, eye),
        "not symmetric": (zero, np.array([[1.0, 0.5], [0.0, 1.0]]), zero, eye),
        "indefinite": (zero, eye, zero, np.diag([1.0, -0.5])),
        "overflow": (zero, eye * 1e308, zero, eye * 1e308),
    }
    said = {}
    for name, arguments in cases.items():
        with pytest.raises(fidtool.FidtoolError) as error:
            fidtool.frechet_distance(*arguments)
        said[name] = f"{type(error.value).__name__}: {error.value}"
    with pytest.raises(fidtool.FidtoolError) as error:
        fidtool.frechet_distance(three, np.eye(3), three, np.eye(3), count1=2)
    return said | {"too high a rank": f"{type(error.value).__name__}: {error.value}"}


def test_refused_gaussians(golden: Golden) -> None:
    golden("metrics/refused_gaussians", refusals())


def test_factors(golden: Golden) -> None:
    """L Lᵀ is the covariance, and the number of columns of L is the rank."""
    found = {}
    for name, features in (
        ("full", mixed(50, 5, 21)),
        ("low", bells(4, 6, 22)),
        ("none", bells(1, 3, 23)),
    ):
        gaussian = fitted(features)
        factor = covariance_factor(gaussian)
        assert (factor @ factor.T).numpy() == pytest.approx(gaussian.sigma, rel=1e-12, abs=1e-13)
        found[name] = list(factor.shape)
    golden("metrics/ranks", found)


KERNEL_SETS = {
    "far apart": (mixed(120, 10, 31), bells(110, 10, 32, 0.5, 1.5)),
    "near each other": (mixed(120, 10, 31), mixed(130, 10, 33)),
    "duplicates": (lattice(100, 4, 34), lattice(100, 4, 35)),
    "large, at a coarser step": (bells(60, 6, 36, spread=2.0**7), bells(60, 6, 37, 2.0**6, 2.0**7)),
}


def test_kid(golden: Golden) -> None:
    """Mean and standard deviation over subsets that are drawn by seed."""
    found: dict[str, Any] = {}
    ways = (
        {"subset_size": 50, "subsets": 10},
        {"subset_size": 20, "subsets": 7, "seed": 3},
        {"subset_size": 45},
    )
    for name, (real, fake) in KERNEL_SETS.items():
        found[name] = [kid(real, fake, **way) for way in ways]  # type: ignore[arg-type]
    # Terms of about 1, or of the sixth power of the features, cancel; this is a rounding error
    # relative to them.
    golden("metrics/kid", near(found, 1e-10))


def test_kid_of_fixed_subsets(golden: Golden) -> None:
    real, fake = KERNEL_SETS["far apart"]
    rows = np.arange(40)
    value = kid(real, fake, draws=[(rows, rows + 5), (rows + 3, rows[::-1])])
    golden("metrics/kid_of_given_subsets", near(value, DIGITS))


def test_cmmd(golden: Golden) -> None:
    found = {name: cmmd(*sets) for name, sets in KERNEL_SETS.items()}
    found["of a length of about 1"] = cmmd(
        *(each / 4 for each in KERNEL_SETS["far apart"]), feature_step=20
    )
    golden("metrics/cmmd", near(found, 1e-11))


def test_precision_and_recall(golden: Golden) -> None:
    """These are counts of images, so they are exact."""
    found: dict[str, Any] = {}
    for name, (real, fake) in KERNEL_SETS.items():
        for k, ties in ((5, "strict"), (3, "inclusive"), (1, "strict")):
            found[f"{name}, {k} neighbours, {ties}"] = prdc(real, fake, k=k, ties=ties)
    golden("metrics/prdc", found)


def test_inception_score(golden: Golden) -> None:
    """With and without the bias of the classifier, for several numbers of splits."""
    features, weight = bells(90, 12, 41, 0.5), bells(15, 12, 42, spread=0.5)
    bias = bells(1, 15, 43)[0]
    found: dict[str, Any] = {}
    for splits in (1, 4, 10):
        for name, added in (("without", None), ("with", bias)):
            found[f"{splits} splits, {name} bias"] = score(features, weight, added, splits=splits)
    golden("metrics/inception_score", near(found, DIGITS, 1e-15))


def test_nearest(golden: Golden) -> None:
    """The first of several equally near rows is returned."""
    rows, distances = nearest(lattice(9, 4, 51), lattice(60, 4, 52))
    golden(
        "metrics/nearest", {"rows": rows.tolist(), "distances": near(distances.tolist(), DIGITS)}
    )


def test_refused_features(golden: Golden) -> None:
    """Sets that come from different networks, or have features that are out of range."""
    many, other, broken = bells(30, 4, 62), bells(30, 5, 63), np.full((30, 4), np.nan, np.float32)
    calls: dict[str, Callable[[], object]] = {
        "kid of two networks": lambda: kid(many, other, subset_size=9),
        "kid of NaN": lambda: kid(many, broken, subset_size=9),
        "kid of small features": lambda: kid(many, many, subset_size=9, feature_step=2),
    }
    said = {}
    for name, call in calls.items():
        with pytest.raises(fidtool.FidtoolError) as error:
            call()
        said[name] = f"{type(error.value).__name__}: {error.value}"
    golden("metrics/refused_features", said)
