"""Comparison of each FAKE with held-out images: the floor of its distances, and whether it copies
its training set.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from fidtool.diagnose.diagnosis import pair_warnings, set_warnings
from fidtool.distances.frechet import distance_between
from fidtool.errors import ResultWarning
from fidtool.features.protocol import FEATURES
from fidtool.names import counted
from fidtool.result.explanations import Heldout, Nearest
from fidtool.run.compute import MetricRunner
from fidtool.statistics.set_statistics import MeasuredSet


@dataclass
class HeldoutComparer:
    """Compares each FAKE with held-out images, where REAL is the training set. All ranks create and
    use it alike.

    Attributes:
        distances: those of the held-out images to their nearest real ones, float64 of shape (n,);
            None until needed.
    """

    runner: MetricRunner
    heldout: MeasuredSet
    distances: NDArray[np.float64] | None = None

    def compare(self, real: MeasuredSet, fake: MeasuredSet) -> Heldout:
        """Returns the comparison, with a floor of the metric fid of each network. A collective."""
        with self.runner.run.clock("heldout"):
            if self.distances is None:
                self.distances = self._distances(real, self.heldout)
            mine, its = self._distances(real, fake), self.distances

            def conclude() -> Heldout:
                images, floors = (
                    min(len(its), fake.statistics.count or len(mine)),
                    dict[str, float](),
                )
                for value in self.runner.plan.values:
                    if value.number.error_bars:
                        layer = value.features.layer
                        rows = self.heldout.features[layer]
                        first = self.runner.features(layer).gaussian(rows, np.arange(images))
                        floors[value.key] = distance_between(real.gaussian(layer), first)
                return Heldout(self.heldout.path, len(its), images, floors, nearest_of(mine, its))

            return self.runner.run.world.on_rank_zero(conclude)

    def warnings(self, training: MeasuredSet) -> list[ResultWarning]:
        """Returns warnings about the held-out set and REAL, on rank zero, after the first
        comparison.
        """
        path, (real, heldout) = self.heldout.path, (training.statistics, self.heldout.statistics)
        found = [
            *set_warnings({path: heldout}, ()),
            *pair_warnings(real, path, heldout, frechet=False),
        ]
        if same := 0 if self.distances is None else int((self.distances == 0).sum()):
            text = (
                f"{counted(same, 'image')} at distance 0 from REAL, so not held out: no image of "
                "FAKE can be closer"
            )
            found.append(ResultWarning(path, text, "high"))
        used, every = len(training.features[FEATURES]), real.found or real.count or 0
        if used + len(real.skipped) < every:
            text = (
                f"only {used} of {every} images are compared with FAKE one by one: copies of "
                "others are not found"
            )
            found.append(ResultWarning(training.path, text, "medium"))
        return found

    def _distances(self, real: MeasuredSet, some: MeasuredSet) -> NDArray[np.float64]:
        """Returns the distances of a set's images to their nearest real ones, on all ranks. A
        collective.
        """
        from fidtool.distances.neighbors import nearest_reals

        return nearest_reals(
            real.features[FEATURES], some.features[FEATURES], self.runner.features(FEATURES)
        )[1]


def nearest_of(fake: NDArray[np.float64], heldout: NDArray[np.float64]) -> Nearest:
    """Returns what the distances of generated and held-out images to their nearest real ones say of
    memorisation.
    """
    from scipy.stats import binomtest  # deferred: it takes a second

    n, m, ascending = len(fake), len(heldout), np.sort(heldout)
    closer = int((fake < ascending[0]).sum())
    interval = binomtest(closer, n).proportion_ci(0.95, "exact")
    # The numbers of held-out images that are closer than each image, and of those that are not
    # farther.
    below, upto = (int(np.searchsorted(ascending, fake, side).sum()) for side in ("left", "right"))
    return Nearest(
        median=float(np.median(fake)),
        heldout_median=float(np.median(heldout)),
        copies=int((fake == 0).sum()),
        heldout_copies=int((heldout == 0).sum()),
        closer=closer / n,
        low=float(interval.low),
        high=float(interval.high),
        probability=1 - (below + upto) / (2 * n * m),
        error=sqrt((n + m + 1) / (12 * n * m)),
    )
