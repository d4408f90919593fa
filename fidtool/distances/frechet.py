"""The Fréchet distance between two Gaussians, in float64."""

from __future__ import annotations

import os

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from fidtool.distances.factors import Factor, factor, lower_gram, product
from fidtool.distances.parallel import using_threads
from fidtool.errors import InputError, RunError

_MAX_THREADS = 8
_ENOUGH = 1e-10
"""Relative error of the distance that is good enough to leave the singular values uncomputed."""


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
    rank and a pivoted one where it is singular (see `fidtool.distances.factors`). The norm is the sum of the singular
    values; at full rank, where that is accurate enough, of the roots of the eigenvalues of L1ᵀ L2 L2ᵀ L1, which takes a
    third of the time.

    Args:
        mu1, mu2: means, shape (D,).
        sigma1, sigma2: covariances, shape (D, D), symmetric and positive semidefinite.
        count1, count2: numbers of samples behind the covariances, where known: a covariance of n samples has rank
            n - 1 at most. Without them the rank is read off the factor.

    Returns:
        The distance, finite and at least 0; a negative rounding residue becomes 0.

    Raises:
        InputError: shapes that do not fit, values that are not finite, a matrix that is no covariance.
        RunError: LAPACK did not converge or the result is not finite.
    """
    with using_threads(linear_algebra_threads()):
        mean1, cov1 = _checked(mu1, sigma1, "first")
        mean2, cov2 = _checked(mu2, sigma2, "second")
        if mean1.shape != mean2.shape:
            raise InputError(f"the statistics have different dimensions: {mean1.shape[0]} against {mean2.shape[0]}")
        difference = mean1 - mean2
        rest = (difference @ difference).item() + cov1.trace().item() + cov2.trace().item()
        overlap = _overlap(factor(cov1, count1, "first"), factor(cov2, count2, "second"), rest)
    distance = rest - 2.0 * overlap
    if not np.isfinite(distance):
        raise RunError("the Fréchet distance overflowed: the features are too large for float64")
    return max(distance, 0.0)


def _checked(mu: ArrayLike, sigma: ArrayLike, which: str) -> tuple[torch.Tensor, torch.Tensor]:
    if np.iscomplexobj(mu) or np.iscomplexobj(sigma):
        raise InputError(f"the {which} statistics are complex numbers")
    mean = _tensor(np.atleast_1d(np.asarray(mu, dtype=np.float64)))
    cov = _tensor(np.atleast_2d(np.asarray(sigma, dtype=np.float64)))
    if mean.ndim != 1 or not len(mean) or cov.shape != (len(mean), len(mean)):
        shapes = f"mu of shape {tuple(mean.shape)} and sigma of shape {tuple(cov.shape)}"
        raise InputError(f"the {which} statistics have {shapes}")
    largest = _largest(cov)
    if not (mean.isfinite().all() and np.isfinite(largest)):
        raise InputError(f"the {which} statistics hold NaN or infinite values")
    if _largest(cov - cov.T) > 1e-6 * largest:
        raise InputError(f"the {which} sigma is not symmetric, so it is no covariance")
    return mean, cov


def _tensor(array: NDArray[np.float64]) -> torch.Tensor:
    array = np.ascontiguousarray(array)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _largest(matrix: torch.Tensor) -> float:
    """The largest size of an entry; NaN where there is one."""
    return float(torch.linalg.vector_norm(matrix, torch.inf))


def covariance_factor(sigma: ArrayLike, count: int | None = None) -> torch.Tensor:
    """L with L Lᵀ = sigma, as `frechet_distance` takes it.

    Args:
        sigma: covariance, shape (D, D).
        count: number of samples behind it, where known.

    Returns:
        float64 tensor of shape (D, rank).

    Raises:
        InputError: values that are not finite, or a matrix that is no covariance.
    """
    with using_threads(linear_algebra_threads()):
        _, cov = _checked(np.zeros(len(np.asarray(sigma))), sigma, "given")
        return factor(cov, count, "given").matrix


def _overlap(first: Factor, second: Factor, rest: float) -> float:
    """The nuclear norm of L1ᵀ L2.

    Args:
        first, second: the factors.
        rest: what the norm will be subtracted from, twice: it decides how many digits are needed.
    """
    overlaps = product(first, second)
    if overlaps.numel() == 0:
        return 0.0
    if first.log_determinant is not None and second.log_determinant is not None:
        norm, error = _by_eigenvalues(overlaps, first.log_determinant + second.log_determinant)
        if 2.0 * error <= _ENOUGH * (rest - 2.0 * norm):
            return norm
    return _by_singular_values(overlaps)


def _by_eigenvalues(matrix: torch.Tensor, log_determinant: float) -> tuple[float, float]:
    """The nuclear norm from the eigenvalues of P Pᵀ, and an estimate of its error.

    Squaring costs the small eigenvalues digits, unless the matrix is graded as Cholesky factors usually make it. The
    determinant, known from the factors' pivots, tells: were every eigenvalue off by the same amount, the discrepancy of
    the logarithms would be about that amount over the smallest eigenvalue.
    """
    values = torch.linalg.eigvalsh(lower_gram(matrix))
    smallest = values[0].item()
    if not smallest > 0.0:
        return 0.0, float("inf")
    discrepancy = abs(values.log().sum().item() - 2.0 * log_determinant) + len(values) * np.finfo(np.float64).eps
    return values.sqrt().sum().item(), 0.5 * len(values) * discrepancy * smallest**0.5


def _by_singular_values(matrix: torch.Tensor) -> float:
    """The nuclear norm as the sum of the singular values."""
    try:
        return float(torch.linalg.svdvals(matrix).sum())
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        # LAPACK's divide and conquer can fail to converge where the slower QR iteration does not.
        import scipy.linalg

        try:
            return float(scipy.linalg.svd(matrix.numpy(), compute_uv=False, lapack_driver="gesvd").sum())
        except np.linalg.LinAlgError as error:
            raise RunError(f"the singular values did not converge: {error}") from error
