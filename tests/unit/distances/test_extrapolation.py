"""FID∞: its bias and its standard error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fidtool import frechet_distance
from fidtool.distances import extrapolation as module
from fidtool.distances.exact import FeatureSettings
from fidtool.distances.extrapolation import fid_infinity
from fidtool.distances.frechet import distance_between
from fidtool.statistics.set_statistics import Gaussian
from support.feature_sets import MU, REAL, SIGMA, Features, covariance, generated

TRUE = frechet_distance(REAL.mu, REAL.sigma, MU, SIGMA)


def extrapolated(fake: Features, **options: Any) -> tuple[float, float]:
    return fid_infinity(REAL, fake, FeatureSettings(18), **{"fewest": 500, "points": 6, **options})


def test_the_error_is_the_spread_around_the_truth() -> None:
    """For 40 sets: the mean of 40 standard normals is within 0.6 of 0 (4 errors), and their
    deviation in 0.65..1.4.
    """
    sets = [generated(4000, seed) for seed in range(40)]
    estimates = [extrapolated(fake, seed=seed) for seed, fake in enumerate(sets)]
    scores = np.array([(value - TRUE) / error for value, error in estimates])
    assert abs(scores.mean()) < 0.6
    assert 0.65 < scores.std(ddof=1) < 1.4
    plain = [
        (distance_of(fake) - TRUE) / error for fake, (_, error) in zip(sets, estimates, strict=True)
    ]
    assert np.mean(plain) > 1.5, "plain FID fails the same bound"


def distance_of(fake: Features) -> float:
    rows = fake.astype(np.float64)
    return frechet_distance(
        REAL.mu, REAL.sigma, rows.mean(0), np.cov(rows.T), count1=REAL.count, count2=len(rows)
    )


def test_least_squares_equals_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, seen = generated(3000, 5), dict[int, float]()

    def remembered(real: Gaussian, some: Gaussian) -> float:
        assert some.count is not None
        return seen.setdefault(some.count, distance_between(real, some))

    monkeypatch.setattr(module, "distance_between", remembered)
    value, _ = extrapolated(fake, points=11)
    counts = np.linspace(500, 3000, 11).astype(int).tolist()
    assert sorted(seen) == counts
    assert seen[3000] == pytest.approx(distance_of(fake), rel=1e-5)
    x, y = 1 / np.array(counts), np.array([seen[count] for count in counts])
    line = np.polyfit(x, y, 1)[-1]
    assert value == pytest.approx(line, rel=1e-9)


def test_a_bend_beyond_its_noise_is_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Subsets with only a few more images than dimensions deviate from the line."""
    dims = 60
    sigma = covariance(dims, 4, 0.5)
    rows = np.random.RandomState(5).randn(1500, dims) @ np.linalg.cholesky(sigma).T
    real = Gaussian(np.zeros(dims), sigma, None)
    seen = dict[int, float]()

    def remembered(real: Gaussian, some: Gaussian) -> float:
        assert some.count is not None
        return seen.setdefault(some.count, distance_between(real, some))

    def of_a_perfect_generator() -> tuple[float, float]:
        return fid_infinity(
            real, rows.astype(np.float32), FeatureSettings(18), points=15, fewest=100
        )

    monkeypatch.setattr(module, "distance_between", remembered)
    value, error = of_a_perfect_generator()
    assert abs(value) < 3 * error
    monkeypatch.setattr(module, "SIGNIFICANT_ERRORS", np.inf)
    same, without = of_a_perfect_generator()
    assert same == value
    assert abs(value) > 3 * without
    # The least-squares line and parabola at 1/N = 0 are weighted sums of the distances.
    counts = np.array(sorted(seen))
    line, parabola = (np.linalg.pinv(np.vander(1 / counts, size))[-1] for size in (2, 3))
    bend = parabola - line
    noise = 1 / counts - 1 / 1500
    variance = without**2 / (1 / 1500 + line**2 @ noise)
    squared = (bend @ [seen[count] for count in counts]) ** 2
    assert error**2 - without**2 == pytest.approx(squared - variance * (bend**2 @ noise), rel=1e-6)
