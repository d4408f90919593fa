"""Factors L with L Lᵀ = a covariance, of whatever rank that has, in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from fidtool.errors import InputError

_EPSILON = float(np.finfo(np.float64).eps)
_INDEFINITE = 1e-6
"""An eigenvalue beyond 1e-6 times the largest, where there should be none, is no rounding residue."""
_PANEL = 64
"""Columns of a pivoted factor that are found one by one, before the rest of the matrix hears of them at once."""
_BLOCK = 256
"""Columns of a triangular factor whose zeros are passed over together."""


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
