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
        """Return the comparison, with a floor of the metric fid of each network. A collective."""
        runner = self.runner
        with runner.run.clock("heldout"):
            if self.distances is None:
                self.distances = self._distances(real, self.heldout)
            distances = self._distances(real, fake)
            of_heldout = self.distances

            def make_heldout() -> Heldout:
                images = min(len(of_heldout), fake.statistics.count or len(distances))
                floors = {}
                for value in runner.plan.values:
                    if value.number.error_bars:
                        layer = value.features.layer
                        rows = self.heldout.features[layer]
                        sample = runner.feature_settings(layer).gaussian(rows, np.arange(images))
                        floors[value.key] = distance_between(real.gaussian(layer), sample)
                nearest = compare_nearest(distances, of_heldout)
                return Heldout(self.heldout.path, len(of_heldout), images, floors, nearest)

            return runner.run.world.on_rank_zero(make_heldout)

    def warnings(self, training: MeasuredSet) -> list[ResultWarning]:
        """Return warnings about the held-out set and REAL, on rank 0, after the first
        comparison.
        """
        path = self.heldout.path
        real = training.statistics
        heldout = self.heldout.statistics
        warnings = [
            *set_warnings(path, heldout, ()),
            *pair_warnings(real, path, heldout, frechet=False),
        ]
        same = 0 if self.distances is None else int((self.distances == 0).sum())
        if same:
            are = "image is" if same == 1 else "images are"
            text = (
                f"{same} {are} at distance 0 from REAL and thus not held out: no image in FAKE can "
                "be closer"
            )
            warnings.append(ResultWarning(path, text, "high"))
        used = len(training.features[FEATURES])
        total = real.found or real.count or 0
        if used + len(real.skipped) < total:
            text = (
                f"only {used} of {total} images are compared with FAKE one by one: copies of the "
                "other images are not found"
            )
            warnings.append(ResultWarning(training.path, text, "medium"))
        return warnings

    def _distances(self, real: MeasuredSet, some: MeasuredSet) -> NDArray[np.float64]:
        """Return the distances of a set's images to their nearest real ones, on all ranks. A
        collective.
        """
        from fidtool.distances.neighbors import nearest_reals

        settings = self.runner.feature_settings(FEATURES)
        _, distances = nearest_reals(real.features[FEATURES], some.features[FEATURES], settings)
        return distances


def compare_nearest(fake: NDArray[np.float64], heldout: NDArray[np.float64]) -> Nearest:
    """Return what the distances of generated and held-out images to their nearest real ones say of
    memorisation.
    """
    from scipy.stats import binomtest  # deferred: it takes a second

    n = len(fake)
    m = len(heldout)
    ascending = np.sort(heldout)
    closer = int((fake < ascending[0]).sum())
    interval = binomtest(closer, n).proportion_ci(0.95, "exact")
    # The numbers of held-out images that are closer than each image, and of those that are not
    # farther.
    below = int(np.searchsorted(ascending, fake, "left").sum())
    upto = int(np.searchsorted(ascending, fake, "right").sum())
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
