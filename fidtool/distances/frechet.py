"""The Fréchet distance between two Gaussians and its derivative by each generated image, in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from fidtool.distances.exact import BLOCK_ROWS, parts_of
from fidtool.distances.parallel import linear_algebra_threads, using_threads
from fidtool.distributed.world import World
from fidtool.errors import InputError, RunError
from fidtool.statistics.moments import MeanCovariance

_ENOUGH = 1e-10
"""Relative error of the distance that is good enough to leave the singular values uncomputed."""
_EPSILON = float(np.finfo(np.float64).eps)
_INDEFINITE = 1e-6
"""An eigenvalue beyond 1e-6 times the largest, where there should be none, is no rounding residue."""
_PANEL = 64
"""Columns of a pivoted factor that are found one by one, before the rest of the matrix is updated by all of them."""
_BLOCK = 256
"""Columns of a triangular factor whose zeros are passed over together."""


@dataclass(frozen=True)
class Gaussian:
    """Mean and covariance of the features of a set of images, between which the distance is.

    Attributes:
        mu: float64 array of shape (D,).
        sigma: float64 array of shape (D, D).
        count: number of images behind it, None where unknown.
    """

    mu: NDArray[np.float64]
    sigma: NDArray[np.float64]
    count: int | None


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
    rank and a pivoted one where it is singular (see `factor`). The norm is the sum of the singular values. At full
    rank, where that is accurate enough, it is the sum of the roots of the eigenvalues of L1ᵀ L2 L2ᵀ L1, which takes a
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


# --- factors of a covariance -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Factor:
    """L of shape (D, rank) with L Lᵀ = a covariance, and the logarithm of its determinant where L is triangular."""

    matrix: torch.Tensor
    log_determinant: float | None = None


def factor(matrix: torch.Tensor, count: int | None, which: str) -> Factor:
    """A factor of a covariance.

    At full rank that is the Cholesky factor. Otherwise columns are taken by the largest remaining variance until none
    is left (the pivoted Cholesky factor, Higham 1990), which for few samples takes a tenth of an eigen-decomposition's
    time and is as accurate. Should anything remain, the eigenvalues tell what is wrong with the covariance.

    Args:
        matrix: the covariance, float64 of shape (D, D), finite and symmetric.
        count: number of samples behind it, where known: its rank is count - 1 at most.
        which: of two, for the message.

    Raises:
        InputError: it is no covariance, or none of so few samples.
    """
    dims = len(matrix)
    most = dims if count is None else max(0, min(count - 1, dims))
    if most == dims:
        lower: torch.Tensor
        lower, failed = torch.linalg.cholesky_ex(matrix)
        # A tiny pivot means that rounding, not the data, filled the last directions.
        pivots = lower.diagonal()
        if failed.item() == 0 and (pivots.min() / pivots.max()).item() ** 2 > dims * _EPSILON:
            return Factor(lower, pivots.log().sum().item())
    pivoted, remaining = _pivoted(matrix, most)
    if remaining <= max(dims, _PANEL) * _EPSILON * matrix.diagonal().max().item():
        return Factor(pivoted)
    return Factor(_by_eigenvectors(matrix, most, count, which))


def _pivoted(matrix: torch.Tensor, most: int) -> tuple[torch.Tensor, float]:
    """At most so many columns of the pivoted Cholesky factor, and the largest entry of what they leave over.

    Rows stay where they are. LAPACK's own is not to be had through torch, and through SciPy its bits would depend on
    how many threads the launcher leaves to SciPy's BLAS.
    """
    dims = len(matrix)
    rest, columns = matrix.clone(), matrix.new_zeros(dims, most)
    variances = matrix.diagonal().clone()
    least = dims * _EPSILON * variances.max().item()
    rank, full = 0, False
    while rank < most and not full:
        start = rank
        while rank < min(start + _PANEL, most):
            place = int(variances.argmax())
            pivot = variances[place].item()
            if not pivot > least:
                full = True
                break
            column = columns[:, rank]
            torch.addmv(rest[:, place], columns[:, start:rank], columns[place, start:rank], alpha=-1.0, out=column)
            column /= pivot**0.5
            column[variances == -torch.inf] = 0.0  # chosen before: rounding left something there
            variances -= column.square()
            variances[place] = -torch.inf
            rank += 1
        panel = columns[:, start:rank]
        rest.addmm_(panel, panel.T, alpha=-1.0)
    return columns[:, :rank], rest.abs().max().item()


def _by_eigenvectors(matrix: torch.Tensor, most: int, count: int | None, which: str) -> torch.Tensor:
    dims = len(matrix)
    values, vectors = torch.linalg.eigh(matrix)
    largest = values[-1].item()
    if values[0].item() < -_INDEFINITE * abs(largest):
        raise InputError(
            f"the {which} sigma has a negative eigenvalue ({values[0].item():.3g}, the largest is {largest:.3g}), "
            "so it is no covariance"
        )
    if most < dims and values[dims - most - 1].item() > _INDEFINITE * largest:
        raise InputError(
            f"the {which} statistics say that they are of {count} samples, but sigma has a higher rank than "
            f"{most}: one of the two is wrong"
        )
    rank = min(most, int((values > dims * _EPSILON * largest).sum()))
    columns: torch.Tensor = vectors[:, dims - rank :] * values[dims - rank :].sqrt()
    return columns


def product(first: Factor, second: Factor) -> torch.Tensor:
    """L1ᵀ L2, of shape (rank, rank)."""
    if first.log_determinant is None:
        return first.matrix.T @ second.matrix
    rows = range(0, len(first.matrix), _BLOCK)
    # The rows above a column's block are zeros.
    return torch.cat([first.matrix[row:, row : row + _BLOCK].T @ second.matrix[row:] for row in rows])


def lower_gram(matrix: torch.Tensor) -> torch.Tensor:
    """P Pᵀ of a square P, of which the upper triangle is not to be read."""
    gram = torch.zeros_like(matrix)
    for row in range(0, len(matrix), _BLOCK):
        torch.mm(matrix[row:], matrix[row : row + _BLOCK].T, out=gram[row:, row : row + _BLOCK])
    return gram


# --- the derivative --------------------------------------------------------------------------------------------------


def influence(
    real: Gaussian, fitted: MeanCovariance, fake: NDArray[np.float32], world: World, device: torch.device
) -> NDArray[np.float64]:
    """The influence of each generated image on the distance: the derivative by its weight (von Mises 1947).

    The gradients of the distance by the fakes' mean and covariance are 2 (mu_fake - mu_real) and I - T, with T the
    optimal transport map of `transport_root`, and an image moves these by u = x - mu_fake and u uᵀ - sigma_fake:
    h(x) = 2 <mu_fake - mu_real, u> + |u|² - uᵀ T u, less its mean. Without the k images of a set S the distance
    changes by - sum over S of h / (n - k), to first order in k / n.

    Args:
        real: what the fakes are compared with.
        fitted: mean and covariance of the fakes.
        fake: features of shape (n, D); read a block at a time.
        world: the ranks; this is done on one of them, which leaves early when it must stop.
        device: where products are computed; it must have float64.

    Returns:
        h of each image: float64 array of shape (n,), of mean zero up to rounding.
    """
    root = transport_root(real, fitted).to(device)
    mu = torch.from_numpy(fitted.mu).to(device)
    shift = 2.0 * (mu - torch.from_numpy(real.mu).to(device))
    values = np.zeros(len(fake))
    with using_threads(linear_algebra_threads()):
        for part in parts_of(len(fake), BLOCK_ROWS):
            away = torch.from_numpy(fake[part].astype(np.float64)).to(device) - mu
            quadratic = away.square().sum(1) - (away @ root).square().sum(1)
            values[part] = (away @ shift + quadratic).cpu().numpy()
            if world.must_stop():
                break
    centred: NDArray[np.float64] = values - values.mean()
    return centred


def transport_root(real: Gaussian, fake: MeanCovariance) -> torch.Tensor:
    """M with M Mᵀ = T, the linear map that takes N(0, sigma_fake) to N(0, sigma_real) at least cost.

    With sigma_real = L Lᵀ and A = Lᵀ sigma_fake L, T = L A^(-1/2) Lᵀ: the last trace in the Fréchet distance is that of
    A^(1/2), whose derivative by A is A^(-1/2) / 2. Directions in which A is lost to rounding are left out: their part
    of T is small, as L is there.

    Returns:
        float64 tensor of shape (D, rank).
    """
    factor = covariance_factor(real.sigma, real.count)
    with using_threads(linear_algebra_threads()):
        values, vectors = torch.linalg.eigh(factor.T @ torch.from_numpy(fake.sigma) @ factor)
        kept = values > len(values) * np.finfo(np.float64).eps * values.max()
        root: torch.Tensor = factor @ (vectors[:, kept] * values[kept] ** -0.25)
    return root
