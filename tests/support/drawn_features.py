"""Features drawn from Gaussians whose distance is known."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fidtool.metrics.influence import Target
from support.feature_sets import Features

Array = NDArray[np.float64]
DIMS = 16


def covariance(dims: int, seed: int, decay: float) -> Array:
    """With a spectrum falling over ``decay`` decades."""
    rotation, _ = np.linalg.qr(np.random.RandomState(seed).randn(dims, dims))
    result: Array = (rotation * np.logspace(0, -decay, dims)) @ rotation.T
    return (result + result.T) / 2


REAL = Target(np.zeros(DIMS), covariance(DIMS, 0, 1.5), None)
MU = 0.02 * np.random.RandomState(1).randn(DIMS)
SIGMA = 0.97 * REAL.sigma + 0.03 * covariance(DIMS, 2, 1.0)


def generated(count: int, seed: int) -> Features:
    rows = np.random.RandomState(seed).randn(count, DIMS) @ np.linalg.cholesky(SIGMA).T + MU
    return rows.astype(np.float32)
