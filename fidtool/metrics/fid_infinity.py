"""FID-infinity: the FID extrapolated to infinitely many generated images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fidtool.errors import InputError, option
from fidtool.metrics.metric import FeatureSet, Metric, MetricContext, MetricFacts, Number

FEWEST_IMAGES = 5000
"""The smallest number of images at which the FID is linear in 1/N (Chong & Forsyth 2020)."""
POINTS = 15
"""Number of sample sizes that the line is fitted to."""


@dataclass(frozen=True, kw_only=True)
class FIDInfinity(Metric):
    """FID-infinity (Chong & Forsyth 2020): the FID at several sample sizes N, extrapolated by a line in 1/N."""

    name = "fid-infinity"
    other_names = ("fid-inf", "fid∞")
    numbers = (
        Number(
            "fid_infinity",
            "FID-infinity",
            "lower",
            "Fréchet distance extrapolated to infinitely many generated images, ± standard error",
            spread="fid_infinity_error",
        ),
    )
    fake_features = True
    frechet = True
    phase = "extrapolation"

    def check(self, facts: MetricFacts) -> None:
        if facts.dims is not None and facts.dims >= FEWEST_IMAGES:
            raise InputError(
                f"fid-infinity extrapolates from subsets of {FEWEST_IMAGES} images, which is too few for features of "
                f"{facts.dims} dimensions:",
                "use a smaller network",
                f"omit fid-infinity from {option('metrics')}",
                setting="metrics",
            )
        fewest = FEWEST_IMAGES + POINTS - 1
        if facts.images is not None and facts.images < fewest:
            raise InputError(
                f"fid-infinity extrapolates from {POINTS} sample sizes, the smallest of {FEWEST_IMAGES} images, and "
                f"{facts.has}:",
                f"it needs at least {fewest}",
                setting="metrics",
            )

    def compute(self, real: FeatureSet, fake: FeatureSet, context: MetricContext) -> Mapping[str, float]:
        from fidtool.distances.extrapolation import fid_infinity

        target = context.world.on_rank_zero(lambda: real.gaussian)
        assert target is not None
        found = fid_infinity(target, fake.rows, context.features, context.world, points=POINTS, fewest=FEWEST_IMAGES)
        return {"fid_infinity": found.value, "fid_infinity_error": found.error}
