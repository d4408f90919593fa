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
    """Fréchet Inception Distance (Heusel et al. 2017): the Fréchet distance between the features of
    the two sets.

    The value is |m1 - m2|² + tr(C1 + C2 - 2 (C1 C2)^½), where m and C are the means and covariances
    of the features, computed in float64. It is at least 0, and 0 for equal sets. With a network
    other than Inception, it is called FD.

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
    """sFID (Nash et al. 2021): the Fréchet distance between Inception's features before global
    average pooling.

    As in ADM's evaluator, the features are the first 7 channels of Inception's
    ``Mixed_6d.branch1x1`` at 17 x 17 places: 2023 features per image. They depend on where things
    are in an image.

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
                f"sFID uses Inception's layer Mixed_6d: {option('dims')} must be 768 or 2048, not "
                f"{facts.requested_dims}"
            )


@dataclass(frozen=True, kw_only=True)
class FIDInfinity(Metric):
    """FID-infinity (Chong & Forsyth 2020): the FID, extrapolated to infinitely many generated
    images.

    A line in 1/N is fitted to the FIDs at `POINTS` sample sizes N, from `MIN_IMAGES` to all images
    of FAKE. The value is the line at 1/N = 0, with its standard error.

    Raises:
        InputError: if FAKE has fewer than `MIN_IMAGES` + `POINTS` - 1 images, or if the features
            have `MIN_IMAGES` or more dimensions.
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
                f"fid-infinity draws subsets of {MIN_IMAGES} images, which are too few for "
                f"{facts.dims} dimensions:",
                "use a network with fewer dimensions",
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
