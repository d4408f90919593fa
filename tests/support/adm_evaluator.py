"""The arithmetic of ADM's evaluator, by brute force and with SciPy's matrix square root."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from scipy.spatial.distance import cdist

Array = NDArray[np.float64]


def gaussian(features: NDArray[np.float32]) -> tuple[Array, Array]:
    """Return mean and covariance (divided by n - 1)."""
    rows = features.astype(np.float64)
    return rows.mean(axis=0), np.cov(rows, rowvar=False)


def frechet(one: tuple[Array, Array], other: tuple[Array, Array]) -> float:
    """Return the Fréchet distance."""
    root = linalg.sqrtm(one[1] @ other[1])
    gap = one[0] - other[0]
    return float(gap @ gap + np.trace(one[1]) + np.trace(other[1]) - 2 * np.trace(root.real))


def precision_recall(
    real: NDArray[np.float32], fake: NDArray[np.float32], k: int = 3
) -> tuple[float, float]:
    """Return precision and recall with exact distances; the surface of a ball is inside."""
    (inside_real, _), (inside_fake, _) = (
        _balls(some, others, k) for some, others in ((real, fake), (fake, real))
    )
    return float(inside_real.mean()), float(inside_fake.mean())


def _balls(
    centres: NDArray[np.float32], points: NDArray[np.float32], k: int
) -> tuple[NDArray[np.bool_], Array]:
    """Return which points are inside a ball around a centre with the distance of its k-th nearest
    neighbour.
    """
    centres, points = centres.astype(np.float64), points.astype(np.float64)
    own = cdist(centres, centres, "sqeuclidean")
    radii = np.sort(own, axis=1)[:, k]  # the nearest is the centre itself
    return (cdist(points, centres, "sqeuclidean") <= radii).any(axis=1), radii


def inception_score(
    features: NDArray[np.float32], weight: NDArray[np.float32], size: int = 5000
) -> float:
    """Return the Inception Score: the mean over consecutive parts of ``size`` rows, without the
    classifier's bias.
    """
    logits = features.astype(np.float64) @ weight.T.astype(np.float64)
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    parts = [p[start : start + size] for start in range(0, len(p), size)]
    return float(
        np.mean(
            [np.exp((part * (np.log(part) - np.log(part.mean(0)))).sum(1).mean()) for part in parts]
        )
    )
