"""FID: the Fréchet distance of the extractor's features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fidtool.errors import about
from fidtool.metrics.metric import FeatureSet, Metric, MetricContext, Number


@dataclass(frozen=True, kw_only=True)
class FID(Metric):
    """Fréchet Inception Distance (Heusel et al. 2017): the Fréchet distance of the extractor's features."""

    name = "fid"
    other_names: ClassVar[tuple[str, ...]] = ("frechet-inception-distance", "frechet-distance")
    numbers = (Number("fid", "FID", "lower", "Fréchet distance between the features of the two sets"),)
    frechet = True
    phase = "distance"

    def compute(self, real: FeatureSet, fake: FeatureSet, context: MetricContext) -> Mapping[str, float]:
        from fidtool.distances.frechet import frechet_distance

        def on_rank_zero() -> float:
            one, other = real.gaussian, fake.gaussian
            assert one is not None
            assert other is not None
            with about(f"{real.path} (first) against {fake.path} (second)"):
                return frechet_distance(one.mu, one.sigma, other.mu, other.sigma, count1=one.count, count2=other.count)

        return {self.name: context.world.on_rank_zero(on_rank_zero)}
