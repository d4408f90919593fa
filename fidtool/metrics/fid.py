"""FID, and the two metrics derived from it: sFID and FID-infinity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fidtool.errors import InputError, option, prefix_errors
from fidtool.features.protocol import SPATIAL
from fidtool.metrics.metric import (
    FeatureSet,
    Metric,
    MetricContext,
    MetricFacts,
    Number,
    Values,
    not_computable_error,
)

MIN_IMAGES = 5000
"""The smallest number of images at which the FID is linear in 1/N (Chong & Forsyth 2020)."""
POINTS = 15
"""Number of sample sizes that FID-infinity's line is fitted to."""


@dataclass(frozen=True, kw_only=True)
class FID(Metric):
    """Fréchet Inception Distance (Heusel et al. 2017): the Fréchet distance of the extractor's
    features.

    |m1 - m2|² + tr(C1 + C2 - 2 (C1 C2)^½) of the means and covariances of the extractor's features
    in float64. The value is at least 0, and 0 for equal sets. Of another network than Inception it
    is called FD.

    Raises:
        InputError: if the features are not finite.
        RunError: if the distance cannot be computed, see `fidtool.frechet_distance`.
    """

    name = "fid"
    other_names: ClassVar[tuple[str, ...]] = ("frechet-inception-distance", "frechet-distance")
    numbers = (
        Number(
            "fid",
            "FID",
            "lower",
            "Fréchet distance between the features of the two sets",
            is_distance=True,
            error_bars=True,
            gated=True,
            elsewhere={"fid": "fd", "FID": "FD"},
        ),
    )
    frechet = True
    phase = "distance"

    def compute(self, real: FeatureSet, fake: FeatureSet, context: MetricContext) -> Values:
        from fidtool.distances.frechet import distance_between

        def on_rank_zero() -> float:
            assert real.gaussian is not None
            assert fake.gaussian is not None
            with prefix_errors(f"{real.path} (first) against {fake.path} (second)"):
                return distance_between(real.gaussian, fake.gaussian)

        return {self.name: context.world.on_rank_zero(on_rank_zero)}


@dataclass(frozen=True, kw_only=True)
class SpatialFID(FID):
    """sFID (Nash et al. 2021): the Fréchet distance of Inception's features before global average
    pooling.

    As in ADM's evaluator, they are the first 7 channels of Inception's ``Mixed_6d.branch1x1`` at
    17 x 17 places, 2023 features per image, and so depend on where things are in an image.

    Raises:
        InputError: if the extractor is not Inception, or ``dims`` is 64 or 192.
    """

    name = "sfid"
    other_names = ("spatial-fid",)
    numbers = (
        Number(
            "sfid",
            "sFID",
            "lower",
            "Fréchet distance between spatial features",
            layer=SPATIAL,
            is_distance=True,
            gated=True,
        ),
    )
    phase = "sfid"

    def check(self, facts: MetricFacts) -> None:
        if facts.extractor != "inception":
            problem = "sFID is defined for Inception only:"
            raise not_computable_error(self, problem, f"omit {option('extractor')}")
        if facts.requested_dims in (64, 192):
            raise InputError(
                f"sFID needs Inception up to Mixed_6d: {option('dims', 768)} or 2048, not "
                f"{facts.requested_dims}"
            )


@dataclass(frozen=True, kw_only=True)
class FIDInfinity(Metric):
    """FID-infinity (Chong & Forsyth 2020): the FID at several sample sizes N, extrapolated by a
    line in 1/N.

    There are `POINTS` sizes, from `MIN_IMAGES` to all images of FAKE. The value is the line at
    1/N = 0, for infinitely many generated images, with its standard error.

    Raises:
        InputError: if FAKE has fewer than `MIN_IMAGES` + `POINTS` - 1 images, or
            the features have `MIN_IMAGES` or more dimensions.
    """

    name = "fid-infinity"
    other_names = ("fid-inf", "fid∞")
    numbers = (
        Number(
            "fid_infinity",
            "FID-infinity",
            "lower",
            "Fréchet distance extrapolated to infinitely many generated images, ± standard error",
            spread="fid_infinity_error",
            is_distance=True,
            gated=True,
            spread_kind="s.e.",
            elsewhere={
                "fid_infinity": "fd_infinity",
                "FID-infinity": "FD-infinity",
                "fid_infinity_error": "fd_infinity_error",
            },
        ),
    )
    fake_features = True
    fewest = MIN_IMAGES + POINTS - 1
    frechet = True
    phase = "extrapolation"

    def check(self, facts: MetricFacts) -> None:
        if facts.dims is not None and facts.dims >= MIN_IMAGES:
            raise not_computable_error(
                self,
                f"fid-infinity's subsets of {MIN_IMAGES} images are too small for {facts.dims} "
                "dimensions:",
                "use a smaller network",
            )
        super().check(facts)

    def compute(self, real: FeatureSet, fake: FeatureSet, context: MetricContext) -> Values:
        from fidtool.distances.extrapolation import fid_infinity

        target = context.world.on_rank_zero(lambda: real.gaussian)
        assert target is not None
        value, error = fid_infinity(
            target, fake.rows, context.features, points=POINTS, fewest=MIN_IMAGES
        )
        return {"fid_infinity": value, "fid_infinity_error": error}
