"""Features: random, on a lattice, and of Gaussians with a known distance."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fidtool.distances.exact import FeatureSettings
from fidtool.features.models.inception import Weights
from fidtool.metrics.metric import FeatureSet, MetricContext
from fidtool.statistics.set_statistics import Gaussian

Features = NDArray[np.float32]


def context_alone() -> MetricContext:
    """Return what a metric gets in a single process, for features like Inception's."""
    return MetricContext(FeatureSettings(18), lambda: Weights({}, ""))


def feature_set(path: str, rows: Features) -> FeatureSet:
    """Return features as a metric gets them."""
    return FeatureSet(path, rows, gaussian_of(rows))


def gaussian_of(rows: Features) -> Gaussian:
    """Return mean and covariance, with ddof 1."""
    return Gaussian(
        rows.mean(0, dtype=np.float64), np.cov(rows.astype(np.float64), rowvar=False), len(rows)
    )


def normal(count: int, dims: int, seed: int, shift: float = 0.0, spread: float = 1.0) -> Features:
    """Return independent normal features."""
    rng = np.random.RandomState(seed)
    return (spread * rng.randn(count, dims) + shift).astype(np.float32)


def mixture(count: int, dims: int, seed: int) -> Features:
    """Return features in a few clusters of different widths, whose centres do not depend on the
    seed.
    """
    places = 3.0 * np.random.RandomState(99).randn(5, dims)
    rng = np.random.RandomState(seed)
    which = rng.randint(0, 5, count)
    return (places[which] + rng.randn(count, dims) * (0.2 + which[:, None] / 5)).astype(np.float32)


Array = NDArray[np.float64]
DIMS = 16


def covariance(dims: int, seed: int, decay: float) -> Array:
    """Return a covariance whose spectrum falls over ``decay`` decades."""
    rotation, _ = np.linalg.qr(np.random.RandomState(seed).randn(dims, dims))
    result: Array = (rotation * np.logspace(0, -decay, dims)) @ rotation.T
    return (result + result.T) / 2


REAL = Gaussian(np.zeros(DIMS), covariance(DIMS, 0, 1.5), None)
MU = 0.02 * np.random.RandomState(1).randn(DIMS)
SIGMA = 0.97 * REAL.sigma + 0.03 * covariance(DIMS, 2, 1.0)


def generated(count: int, seed: int) -> Features:
    rows = np.random.RandomState(seed).randn(count, DIMS) @ np.linalg.cholesky(SIGMA).T + MU
    return rows.astype(np.float32)
