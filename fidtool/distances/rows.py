"""The Gaussian of some of a set's images, from their kept features."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.distances.exact import parts_of
from fidtool.distances.parallel import fair_threads, using_threads
from fidtool.distributed.world import World
from fidtool.features.protocol import INCEPTION_FEATURE_STEP, Definition
from fidtool.statistics.moments import ExactMoments, MeanCovariance

PART = 1024
"""Rows that are read at a time. Where it shows in the last bits it is fixed."""
_MANY_DIMS = 256


@dataclass(frozen=True)
class FeatureSettings:
    """What it takes to add up features.

    Attributes:
        feature_step: features are rounded to multiples of 2 ** -feature_step; see `ExactMoments`.
        ddof: covariances are divided by N - ddof.
        device: where sums are computed; it must have float64.
    """

    feature_step: int
    ddof: int = 1
    device: torch.device = torch.device("cpu")  # noqa: RUF009 (immutable)

    @classmethod
    def of(cls, definition: Definition | None, device: torch.device) -> FeatureSettings:
        """Those of a network; Inception's, where statistics files do not say whose features they hold."""
        if definition is None:
            return cls(INCEPTION_FEATURE_STEP, device=device)
        return cls(definition.feature_step, definition.ddof, device)

    def gaussian(
        self, features: NDArray[np.float32], rows: NDArray[np.int64], world: World, *, ddof: int | None = None
    ) -> MeanCovariance:
        """Mean and covariance of some rows, exact. No collective: each rank may look at other rows.

        Args:
            features: shape (n, D); a block at a time is read.
            rows: which of them; their order does not show, and a disk likes an ascending one.
            world: the ranks, which share the machine's cores. Where one must stop, the result is of the rows so far.
            ddof: in the place of the settings' own.

        Raises:
            RunError: features that are not finite, or too large or small for the step.
        """
        moments = ExactMoments(features.shape[1], self.feature_step, self.device)
        # Products of few dimensions are done before a second thread has woken up.
        with using_threads(fair_threads(world) if features.shape[1] >= _MANY_DIMS else 1):
            for part in parts_of(len(rows), PART):
                moments.add(torch.from_numpy(features[rows[part]]))
                if world.must_stop():
                    break
            return moments.mean_covariance(self.ddof if ddof is None else ddof)
