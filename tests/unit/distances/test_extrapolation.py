"""FID∞: its bias and its standard error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fidtool import frechet_distance
from fidtool.distances import extrapolation as module
from fidtool.distances.exact import FeatureSettings
from fidtool.distances.extrapolation import Extrapolation, fid_infinity
from fidtool.statistics.moments import Gaussian
from support.feature_sets import MU, REAL, SIGMA, Features, alone, covariance, generated

TRUE = frechet_distance(REAL.mu, REAL.sigma, MU, SIGMA)


def extrapolated(fake: Features, **options: Any) -> Extrapolation:
    return fid_infinity(REAL, fake, FeatureSettings(18), alone(), **{"fewest": 500, "points": 6, **options})


def test_the_error_is_the_spread_around_the_truth() -> None:
    """For 40 sets: the mean of 40 standard normals is within 0.6 of 0 (4 errors), and their deviation in 0.65..1.4."""
    found = [extrapolated(generated(4000, seed), seed=seed) for seed in range(40)]
    scores = np.array([(one.value - TRUE) / one.error for one in found])
    assert abs(scores.mean()) < 0.6
    assert 0.65 < scores.std(ddof=1) < 1.4
    plain = np.array([(one.distances[-1] - TRUE) / one.error for one in found])
    assert plain.mean() > 1.5, "plain FID fails the same bound"


def test_least_squares_equals_numpy() -> None:
    one = extrapolated(generated(3000, 5), points=11)
    x, y = 1 / np.array(one.counts), np.array(one.distances)
    _, value = np.polyfit(x, y, 1)
    assert one.value == pytest.approx(value, rel=1e-9)
    assert one.bend == pytest.approx(np.polyfit(x, y, 2)[-1] - value, rel=1e-6)
    assert one.counts == tuple(np.linspace(500, 3000, 11).astype(int))
    whole = Gaussian(*(f(generated(3000, 5).astype(np.float64).T) for f in (lambda x: x.mean(1), np.cov)), 3000)
    assert one.distances[-1] == pytest.approx(frechet_distance(REAL.mu, REAL.sigma, whole.mu, whole.sigma), rel=1e-5)


def test_a_bend_beyond_its_noise_is_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Subsets with only a few more images than dimensions deviate from the line."""
    dims = 60
    sigma = covariance(dims, 4, 0.5)
    rows = np.random.RandomState(5).randn(1500, dims) @ np.linalg.cholesky(sigma).T
    real = Gaussian(np.zeros(dims), sigma, None)

    def of_a_perfect_generator() -> Extrapolation:
        return fid_infinity(real, rows.astype(np.float32), FeatureSettings(18), alone(), points=15, fewest=100)

    with_bend = of_a_perfect_generator()
    assert with_bend.bend > 0
    assert abs(with_bend.value) < 3 * with_bend.error
    monkeypatch.setattr(module, "_SIGNIFICANT", np.inf)
    without = of_a_perfect_generator()
    assert without.value == with_bend.value
    assert abs(without.value) > 3 * without.error
