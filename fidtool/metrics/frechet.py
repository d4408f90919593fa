"""The Fréchet distance between two Gaussians, in float64."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from fidtool.errors import InputError, RunError

_MAX_THREADS = 8
_INDEFINITE = 1e-6
"""An eigenvalue below -1e-6 times the largest is no rounding residue."""


def linear_algebra_threads() -> int:
    """Threads that the distance uses: by the machine, not by the launcher or the world size, which must not count."""
    return min(os.cpu_count() or 1, _MAX_THREADS)


def frechet_distance(
    mu1: ArrayLike,
    sigma1: ArrayLike,
    mu2: ArrayLike,
    sigma2: ArrayLike,
    *,
    count1: int | None = None,
    count2: int | None = None,
) -> float:
    """Squared Fréchet (2-Wasserstein) distance between N(mu1, sigma1) and N(mu2, sigma2).

    d² = |mu1 - mu2|² + tr sigma1 + tr sigma2 - 2 tr (sigma1 sigma2)^½ (Dowson & Landau 1982; as "FID", Heusel et al.
    2017). With sigma = L Lᵀ the last trace is the nuclear norm of L1ᵀ L2, which is what is computed here: no matrix
    square root, no complex numbers, no epsilon on the diagonal. L is the Cholesky factor where the covariance has full
    rank and a truncated eigen-decomposition where it is singular.

    Args:
        mu1, mu2: means, shape (D,).
        sigma1, sigma2: covariances, shape (D, D), symmetric and positive semidefinite.
        count1, count2: numbers of samples behind the covariances, where known: a covariance of n samples has rank
            n - 1 at most. Without them the rank is read off the eigenvalues.

    Returns:
        The distance, finite and at least 0; a negative rounding residue becomes 0.

    Raises:
        InputError: shapes that do not fit, values that are not finite, a matrix that is no covariance.
        RunError: LAPACK did not converge or the result is not finite.
    """
    mean1, cov1 = _checked(mu1, sigma1, "first")
    mean2, cov2 = _checked(mu2, sigma2, "second")
    if mean1.shape != mean2.shape:
        raise InputError(f"the statistics have different dimensions: {mean1.shape[0]} against {mean2.shape[0]}")
    difference = mean1 - mean2
    with _threads():
        overlap = _nuclear_norm(_factor(cov1, count1, "first").T @ _factor(cov2, count2, "second"))
    distance = float(difference @ difference) + float(np.trace(cov1)) + float(np.trace(cov2)) - 2.0 * overlap
    if not np.isfinite(distance):
        raise RunError("the Fréchet distance overflowed: the features are too large for float64")
    return max(distance, 0.0)


def _checked(mu: ArrayLike, sigma: ArrayLike, which: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    mean = np.atleast_1d(np.asarray(mu, dtype=np.float64))
    cov = np.atleast_2d(np.asarray(sigma, dtype=np.float64))
    if mean.ndim != 1 or cov.shape != (len(mean), len(mean)):
        raise InputError(f"the {which} statistics have mu of shape {mean.shape} and sigma of shape {cov.shape}")
    if not (np.isfinite(mean).all() and np.isfinite(cov).all()):
        raise InputError(f"the {which} statistics hold NaN or infinite values")
    scale = np.abs(cov).max(initial=0.0)
    if np.abs(cov - cov.T).max(initial=0.0) > 1e-6 * scale:
        raise InputError(f"the {which} sigma is not symmetric, so it is no covariance")
    return mean, cov


def _factor(cov: NDArray[np.float64], count: int | None, which: str) -> torch.Tensor:
    """L of shape (D, rank) with L Lᵀ = cov."""
    matrix = torch.from_numpy(np.ascontiguousarray(cov))
    dims = len(matrix)
    most = dims if count is None else max(0, min(count - 1, dims))
    if most == dims:
        lower: torch.Tensor
        lower, failed = torch.linalg.cholesky_ex(matrix)
        # A tiny pivot means that rounding, not the data, filled the last directions.
        pivots = lower.diagonal()
        if failed.item() == 0 and (pivots.min() / pivots.max()).item() ** 2 > dims * np.finfo(np.float64).eps:
            return lower
    values, vectors = torch.linalg.eigh(matrix)
    largest = values[-1].item() if dims else 0.0
    if values[0].item() < -_INDEFINITE * abs(largest):
        raise InputError(
            f"the {which} sigma has a negative eigenvalue ({values[0].item():.3g}, the largest is {largest:.3g}), "
            "so it is no covariance"
        )
    rank = min(most, int((values > dims * np.finfo(np.float64).eps * largest).sum()))
    factor: torch.Tensor = vectors[:, dims - rank :] * values[dims - rank :].sqrt()
    return factor


def _nuclear_norm(matrix: torch.Tensor) -> float:
    """Sum of the singular values; 0 for a matrix without rows or columns."""
    if matrix.numel() == 0:
        return 0.0
    try:
        return float(torch.linalg.svdvals(matrix).sum())
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        # LAPACK's divide and conquer can fail to converge where the slower QR iteration does not.
        import scipy.linalg

        try:
            return float(scipy.linalg.svd(matrix.numpy(), compute_uv=False, lapack_driver="gesvd").sum())
        except np.linalg.LinAlgError as error:
            raise RunError(f"the singular values did not converge: {error}") from error


@contextlib.contextmanager
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(linear_algebra_threads())
    try:
        yield
    finally:
        torch.set_num_threads(before)
