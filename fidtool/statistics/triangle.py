"""Symmetric matrices of integers, kept as their upper triangles."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray


def upper_triangle(matrix: torch.Tensor) -> NDArray[np.int64]:
    """The upper triangle of an int64 matrix, row by row."""
    array: NDArray[np.int64] = matrix.cpu().numpy()
    return array[np.triu_indices(len(array))]


def symmetric(upper: NDArray[np.int64], dims: int) -> torch.Tensor:
    """The matrix whose upper triangle, row by row, is ``upper``.

    Raises:
        ValueError: it is not that of so many dimensions.
    """
    if upper.shape != (dims * (dims + 1) // 2,) or upper.dtype != np.int64:
        raise ValueError(f"the sums are not those of {dims} dimensions")
    matrix = np.zeros((dims, dims), dtype=np.int64)
    matrix[np.triu_indices(dims)] = upper
    return torch.from_numpy(matrix + np.triu(matrix, 1).T)
