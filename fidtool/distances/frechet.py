"""Fréchet distance between two Gaussians, and its derivative with respect to each generated image,
in float64.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from fidtool.distances.exact import Features, FeatureSettings, iterate_blocks
from fidtool.distances.parallel import fork_safe, linear_algebra_threads, set_threads
from fidtool.errors import InputError, RunError
from fidtool.statistics.set_statistics import Gaussian, check_moments

# Relative error of the distance up to which the faster computation with eigenvalues is used.
_TOLERANCE = 1e-10
_EPSILON = float(np.finfo(np.float64).eps)
# An eigenvalue that should be 0 is not a rounding error beyond 1e-6 times the largest eigenvalue.
_INDEFINITE = 1e-6
# Columns of a pivoted factor that are computed one by one before all of them update the rest of the
# matrix.
_PANEL = 64
# Columns of a triangular factor whose zeros are skipped together.
_BLOCK = 256


@fork_safe
def frechet_distance(
    mu1: ArrayLike,
    sigma1: ArrayLike,
    mu2: ArrayLike,
    sigma2: ArrayLike,
    *,
    count1: int | None = None,
    count2: int | None = None,
) -> float:
    """Compute the squared Fréchet (2-Wasserstein) distance between N(mu1, sigma1) and N(mu2,
    sigma2).

    d² = |mu1 - mu2|² + tr sigma1 + tr sigma2 - 2 tr (sigma1 sigma2)^½ (Dowson & Landau 1982; as
    "FID", Heusel et al. 2017). With sigma = L Lᵀ, the last trace is the nuclear norm of L1ᵀ L2. It
    is computed in this form, without matrix square root, complex numbers or an epsilon on the
    diagonal. L is the Cholesky factor if the covariance has full rank, and a pivoted Cholesky
    factor if it is singular (see `factorize`). The norm is the sum of the singular values. At full
    rank, if this is accurate enough, it is the sum of the square roots of the eigenvalues of L1ᵀ L2
    L2ᵀ L1, which takes a third of the time.

    Args:
        mu1, mu2: means, shape (D,).
        sigma1, sigma2: covariances, shape (D, D), symmetric and positive semidefinite.
        count1, count2: numbers of samples from which the covariances were computed, if known: the
            covariance of n samples has rank n - 1 at most. Otherwise the rank is determined from
            the factor.

    Returns:
        The distance, finite and at least 0; a negative rounding error becomes 0.

    Raises:
        InputError: if shapes do not match, values are not finite, or a matrix is not a covariance.
        RunError: if LAPACK does not converge or the result is not finite.
    """
    with set_threads(linear_algebra_threads()):
        mean1, cov1 = _check_gaussian(mu1, sigma1, "first")
        mean2, cov2 = _check_gaussian(mu2, sigma2, "second")
        if mean1.shape != mean2.shape:
            raise InputError(
                f"the statistics have different dimensions: {mean1.shape[0]} against "
                f"{mean2.shape[0]}"
            )
        difference = mean1 - mean2
        rest = (difference @ difference).item() + cov1.trace().item() + cov2.trace().item()
        first = factorize(cov1, count1, "first")
        second = factorize(cov2, count2, "second")
        distance = rest - 2.0 * _overlap(first, second, rest)
    if not np.isfinite(distance):
        raise RunError("the Fréchet distance overflowed: the features are too large for float64")
    return max(distance, 0.0)


def _check_gaussian(
    mu: ArrayLike, sigma: ArrayLike, which: str
) -> tuple[torch.Tensor, torch.Tensor]:
    try:
        mean, cov = check_moments(np.atleast_1d(mu), np.atleast_2d(sigma))
    except ValueError as error:
        raise InputError(f"the {which} Gaussian cannot be used: {error}") from None
    # torch warns of arrays that are read-only.
    mean = np.require(mean, requirements=["C", "W"])
    cov = np.require(cov, requirements=["C", "W"])
    return torch.from_numpy(mean), torch.from_numpy(cov)


def distance_between(first: Gaussian, second: Gaussian) -> float:
    """Return the `frechet_distance` of two sets."""
    return frechet_distance(
        first.mu, first.sigma, second.mu, second.sigma, count1=first.count, count2=second.count
    )


def covariance_factor(gaussian: Gaussian) -> torch.Tensor:
    """Return the L with L Lᵀ = sigma that `frechet_distance` uses, see there: float64 tensor of
    shape (D, rank).
    """
    with set_threads(linear_algebra_threads()):
        _, cov = _check_gaussian(gaussian.mu, gaussian.sigma, "given")
        return factorize(cov, gaussian.count, "given")


def eigenvalues(matrix: torch.Tensor) -> torch.Tensor:
    """Return the eigenvalues of a positive semidefinite matrix, from its lower triangle:
    ascending, of shape (D,).
    """
    odd = len(matrix) % 2
    # MKL's eigenvalues of a large matrix of odd size differ in the last bits between calls: it gets
    # one more, 0.
    values: torch.Tensor = torch.linalg.eigvalsh(torch.nn.functional.pad(matrix, (0, odd, 0, odd)))
    return values[odd:]


def _overlap(first: torch.Tensor, second: torch.Tensor, rest: float) -> float:
    """Return the nuclear norm of L1ᵀ L2, as accurately as ``rest``, from which twice the norm is
    subtracted, needs.
    """
    if _is_triangular(first):
        rows = range(0, len(first), _BLOCK)
        # Above its block, a column of L1 is zero.
        overlaps = torch.cat([first[row:, row : row + _BLOCK].T @ second[row:] for row in rows])
    else:
        overlaps = first.T @ second
    if overlaps.numel() == 0:
        return 0.0
    if _is_triangular(first) and _is_triangular(second):
        # Small eigenvalues of P Pᵀ lose digits by squaring, unless P is graded, as Cholesky factors
        # usually are. If all were off by the same amount, the logarithms of the determinants would
        # differ by about this amount divided by the smallest eigenvalue.
        gram = torch.zeros_like(overlaps)  # only its lower triangle is computed
        for row in range(0, len(gram), _BLOCK):
            torch.mm(
                overlaps[row:], overlaps[row : row + _BLOCK].T, out=gram[row:, row : row + _BLOCK]
            )
        values = eigenvalues(gram)
        smallest = values[0].item()
        known = 2.0 * (first.diagonal().log().sum() + second.diagonal().log().sum()).item()
        if smallest > 0.0:
            discrepancy = abs(values.log().sum().item() - known) + len(values) * _EPSILON
            norm = values.sqrt().sum().item()
            error = 0.5 * len(values) * discrepancy * smallest**0.5
            if 2.0 * error <= _TOLERANCE * (rest - 2.0 * norm):
                return float(norm)
    try:
        return float(torch.linalg.svdvals(overlaps).sum())
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        raise RunError(f"the singular values did not converge: {error}") from error


def _is_triangular(factor: torch.Tensor) -> bool:
    """Whether a factor is a Cholesky factor: square, and zero above its diagonal."""
    return len(factor) == factor.shape[1] and torch.equal(factor, factor.tril())


def factorize(matrix: torch.Tensor, count: int | None, which: str) -> torch.Tensor:
    """Return the factor L of a covariance L Lᵀ.

    At full rank, this is the Cholesky factor. Otherwise it is the pivoted Cholesky factor (Higham
    1990), which takes columns by the largest remaining variance until none is left. For few
    samples, this takes a tenth of the time of an eigendecomposition and is as accurate. If anything
    remains, the eigenvalues show what is wrong with the covariance, which is float64 of shape (D,
    D), finite and symmetric.
    """
    dims = len(matrix)
    most = dims if count is None else max(0, min(count - 1, dims))
    if most == dims:
        lower: torch.Tensor
        lower, failed = torch.linalg.cholesky_ex(matrix)
        # A tiny pivot means that the last directions contain rounding errors instead of data.
        pivots = lower.diagonal()
        if failed.item() == 0 and (pivots.min() / pivots.max()).item() ** 2 > dims * _EPSILON:
            return lower
    pivoted, remaining = _pivoted_cholesky(matrix, most)
    if remaining <= max(dims, _PANEL) * _EPSILON * matrix.diagonal().max().item():
        return pivoted
    return _factorize_by_eigenvectors(matrix, most, count, which)


def _pivoted_cholesky(matrix: torch.Tensor, most: int) -> tuple[torch.Tensor, float]:
    """Return at most ``most`` columns of the pivoted Cholesky factor, and the largest entry of the
    remainder.

    Rows are not permuted. torch does not offer LAPACK's routine, and the bits of SciPy's would
    depend on the number of threads that the launcher leaves to SciPy's BLAS.
    """
    dims = len(matrix)
    rest = matrix.clone()
    columns = matrix.new_zeros(dims, most)
    variances = matrix.diagonal().clone()
    pivot = variances.max().item()
    least = dims * _EPSILON * pivot
    rank = 0
    while rank < most and pivot > least:
        start = rank
        while rank < min(start + _PANEL, most) and pivot > least:
            row = int(variances.argmax())
            column = columns[:, rank]
            torch.addmv(
                rest[:, row],
                columns[:, start:rank],
                columns[row, start:rank],
                alpha=-1.0,
                out=column,
            )
            column /= pivot**0.5
            # Rows that were pivots before contain only rounding errors.
            column[variances == -torch.inf] = 0.0
            variances -= column.square()
            variances[row] = -torch.inf
            pivot = variances.max().item()
            rank += 1
        panel = columns[:, start:rank]
        rest.addmm_(panel, panel.T, alpha=-1.0)
    return columns[:, :rank], rest.abs().max().item()


def _factorize_by_eigenvectors(
    matrix: torch.Tensor, most: int, count: int | None, which: str
) -> torch.Tensor:
    dims = len(matrix)
    values, vectors = torch.linalg.eigh(matrix)
    smallest = values[0].item()
    largest = values[-1].item()
    if smallest < -_INDEFINITE * abs(largest):
        raise InputError(
            f"the {which} sigma has a negative eigenvalue ({smallest:.3g}, the largest is "
            f"{largest:.3g}), so it is not a covariance"
        )
    if most < dims and values[dims - most - 1].item() > _INDEFINITE * largest:
        raise InputError(
            f"the {which} statistics state {count} samples, but sigma has a higher rank than "
            f"{most}, which is impossible: one of the two is wrong"
        )
    rank = min(most, int((values > dims * _EPSILON * largest).sum()))
    columns: torch.Tensor = vectors[:, dims - rank :] * values[dims - rank :].sqrt()
    return columns


def influence(
    real: Gaussian, fitted: Gaussian, fake: Features, settings: FeatureSettings
) -> NDArray[np.float64]:
    """Return the influence of each generated image on the distance: the derivative by its weight
    (von Mises 1947).

    The gradients of the distance with respect to the mean and covariance of the fakes are 2
    (mu_fake - mu_real) and I - T, where T transports N(0, sigma_fake) to N(0, sigma_real) at least
    cost. An image moves mean and covariance by u = x - mu_fake and u uᵀ - sigma_fake. The influence
    is therefore h(x) = 2 <mu_fake - mu_real, u> + |u|² - uᵀ T u, minus its mean. Without the k
    images of a set S, the distance changes by the negative sum over S of h / (n - k), to first
    order in k / n.

    With sigma_real = L Lᵀ and A = Lᵀ sigma_fake L, T = L A^(-1/2) Lᵀ: the last trace in the Fréchet
    distance is that of A^(1/2), and its derivative with respect to A is A^(-1/2) / 2. Directions in
    which A consists of rounding errors are omitted; their contribution to T is small, because L is
    small there.

    Args:
        fake: features of shape (n, D); one block at a time is read.
        settings: with the device for products. A single rank calls this function.

    Returns:
        h of each image: float64 array of shape (n,), with mean zero up to rounding.
    """
    device = settings.device
    factor = covariance_factor(real)
    values = list[NDArray[np.float64]]()
    with set_threads(linear_algebra_threads()):
        eigenvalues, vectors = torch.linalg.eigh(factor.T @ torch.from_numpy(fitted.sigma) @ factor)
        kept = eigenvalues > len(eigenvalues) * _EPSILON * eigenvalues.max()
        root = (factor @ (vectors[:, kept] * eigenvalues[kept] ** -0.25)).to(device)
        mu = torch.from_numpy(fitted.mu).to(device)
        shift = 2.0 * (mu - torch.from_numpy(real.mu).to(device))
        for block in iterate_blocks(fake, device):
            away = block - mu
            quadratic = away.square().sum(1) - (away @ root).square().sum(1)
            values.append((away @ shift + quadratic).cpu().numpy())
            settings.world.check_stop()
    influences = np.concatenate(values)
    centred: NDArray[np.float64] = influences - influences.mean()
    return centred
