"""The real image that a generated one is nearest to."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.distances.exact import parts_of
from fidtool.distances.rows import PART


def nearest_rows(
    some: NDArray[np.float32], others: NDArray[np.float32], device: torch.device
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """For each of a few vectors the nearest of many, by Euclidean distance; the first of several.

    Args:
        some: shape (k, D).
        others: shape (n, D), n at least 1; read a block at a time.
        device: where distances are computed; it must have float64.

    Returns:
        Rows of ``others`` and the distances to them, both of shape (k,).
    """
    points = torch.from_numpy(some.astype(np.float64)).to(device)
    nearest = torch.full((len(some),), float("inf"), dtype=torch.float64, device=device)
    rows = torch.zeros(len(some), dtype=torch.int64, device=device)
    for part in parts_of(len(others), PART):
        block = torch.from_numpy(others[part].astype(np.float64)).to(device)
        # Not by products: the nearest of copies is at distance 0 exactly.
        distances, places = torch.cdist(points, block, compute_mode="donot_use_mm_for_euclid_dist").min(1)
        closer = distances < nearest
        nearest[closer], rows[closer] = distances[closer], places[closer] + part.start
    return rows.cpu().numpy(), nearest.cpu().numpy()
