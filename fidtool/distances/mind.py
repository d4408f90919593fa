"""MIND: how far apart two sets of features are along random directions."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.distances.exact import BLOCK_ROWS, FeatureSettings, parts_of
from fidtool.distances.parallel import share_out
from fidtool.distributed.world import World

_DIRECTIONS = 100
"""Directions per job: of 50,000 images, the projections on them take 40 MB."""


def mind(
    real: NDArray[np.float32],
    fake: NDArray[np.float32],
    settings: FeatureSettings,
    world: World,
    *,
    directions: int = 1000,
    seed: int = 0,
) -> float:
    """Returns MIND (Berthet et al. 2026), 3 D times the squared sliced 2-Wasserstein distance. A collective.

    It is 3 D times the mean, over random unit directions and the images of a set, of the squared difference of the
    sorted projections, in float64. If the sets have the same number of images, torch-fidelity draws the same directions
    for the same seed, and computes in float32.

    Args:
        real, fake: features of shapes (n, D) and (m, D), the same on every rank, in random order: of the larger set
            only the first min(n, m) are used. One block at a time is read.
        settings: with the device of the projections.
        world: the ranks. The result has the same bits at any number of ranks, since each job runs on one thread.
        directions: number of random directions, at least 1.
        seed: seed of the directions.
    """
    count, dims = min(len(real), len(fake)), real.shape[1]
    drawn = torch.randn(directions, dims, generator=torch.Generator().manual_seed(seed))
    units = torch.nn.functional.normalize(drawn.double()).to(settings.device)

    def apart(some: slice) -> float:
        one, other = (_sorted_projections(features[:count], units[some]) for features in (real, fake))
        return float((one - other).square_().sum())

    sums = share_out([partial(apart, some) for some in parts_of(directions, _DIRECTIONS)], world)
    return float(3 * dims * math.fsum(sums) / (directions * count))


def _sorted_projections(features: NDArray[np.float32], units: torch.Tensor) -> torch.Tensor:
    """Returns the projections on each direction, ascending: float64, shape (directions, n)."""
    blocks = (torch.from_numpy(features[rows].astype(np.float64)) for rows in parts_of(len(features), BLOCK_ROWS))
    return torch.cat([units @ block.to(units.device).T for block in blocks], 1).sort(1).values
