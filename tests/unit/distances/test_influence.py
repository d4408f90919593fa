"""Influence of images on the FID is the derivative of the distance."""

from __future__ import annotations

import numpy as np
import pytest

from fidtool import frechet_distance
from fidtool.distances.exact import FeatureSettings
from fidtool.distances.frechet import influence
from fidtool.statistics.set_statistics import Gaussian
from support.feature_sets import DIMS, REAL, Array, generated


@pytest.mark.parametrize("count", [None, 9])
def test_the_influence_is_the_derivative(count: int | None) -> None:
    """The derivative of the distance with respect to an image's weight, also if the real covariance
    is singular.
    """
    real = REAL
    if count is not None:
        rows = np.random.RandomState(3).randn(count, DIMS)
        real = Gaussian(rows.mean(0), np.cov(rows.T), count)
    x = generated(60, 7).astype(np.float64)

    def distance(weights: Array) -> float:
        mu = weights @ x
        return frechet_distance(
            real.mu, real.sigma, mu, ((x - mu).T * weights) @ (x - mu), count1=count
        )

    even = np.full(len(x), 1 / len(x))
    mu = even @ x
    fitted = Gaussian(mu, np.cov(x.T, ddof=0), len(x))
    h = influence(real, fitted, x.astype(np.float32), FeatureSettings(18))
    assert h.mean() == pytest.approx(0, abs=1e-12)
    for number in (0, 17, 59):
        step = 1e-5 * (np.eye(len(x))[number] - even)
        numeric = (distance(even + step) - distance(even - step)) / 2e-5
        assert h[number] == pytest.approx(numeric, rel=1e-5, abs=1e-7)
