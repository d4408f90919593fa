"""The Gaussian of some of a set's images, from their kept features."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.distributed.world import World
from fidtool.metrics.exact import parts_of
from fidtool.metrics.parallel import fair_threads, using_threads
from fidtool.statistics.gaussian import MeanCovariance
from fidtool.statistics.moments import ExactMoments

PART = 1024
"""Rows that are read at a time. Where it shows in the last bits it is fixed."""
_MANY_DIMS = 256


@dataclass(frozen=True)
class FeatureSettings:
    """What it takes to add up features.

    Attributes:
        feature_step, device: see `ExactMoments`.
        ddof: see `ExactMoments.mean_covariance`.
    """

    feature_step: int
    ddof: int
    device: torch.device

    def gaussian(self, features: NDArray[np.float32], rows: NDArray[np.int64], world: World) -> MeanCovariance:
        """As `gaussian_of_rows`."""
        step, ddof, device = self.feature_step, self.ddof, self.device
        return gaussian_of_rows(features, rows, feature_step=step, ddof=ddof, world=world, device=device)


def gaussian_of_rows(
    features: NDArray[np.float32],
    rows: NDArray[np.int64],
    *,
    feature_step: int,
    ddof: int,
    world: World,
    device: torch.device,
) -> MeanCovariance:
    """Mean and covariance of some rows, exact. No collective: each rank may look at other rows.

    Args:
        features: shape (n, D); a block at a time is read.
        rows: which of them; their order does not show, and a disk likes an ascending one.
        feature_step, ddof, device: see `ExactMoments`.
        world: the ranks, which share the machine's cores. Where one must stop, the result is of the rows so far.

    Raises:
        RunError: features that are not finite, or too large or small for the step.
    """
    moments = ExactMoments(features.shape[1], feature_step, device)
    # Products of few dimensions are done before a second thread has woken up.
    with using_threads(fair_threads(world) if features.shape[1] >= _MANY_DIMS else 1):
        for part in parts_of(len(rows), PART):
            moments.add(torch.from_numpy(features[rows[part]]))
            if world.must_stop():
                break
        return moments.mean_covariance(ddof)
