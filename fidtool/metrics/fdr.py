"""FDr: Fréchet distances in several feature spaces, each divided by that of real images, and their
mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fidtool.errors import InputError, option
from fidtool.metrics.fid import FID
from fidtool.metrics.metric import (
    FeatureSet,
    MetricContext,
    MetricFacts,
    Number,
    Requirement,
    Values,
    not_computable_error,
)

if TYPE_CHECKING:
    from fidtool.features.protocol import Definition

DENOMINATORS = {
    "inception": 1.68,
    "fdr:convnext": 56.87,
    "fdr:dinov2": 14.19,
    "fdr:mae": 0.04,
    "fdr:siglip": 0.60,
    "fdr:clip": 5.60,
}
"""Fréchet distances of ImageNet's validation set at 256 x 256 pixels from the training set, by
network, as FD-Loss publishes them in two decimals (``FDR_VALIDATION_FD`` of its eval_all_fds.py).
That of MAE has one digit: its ratio is only known to 12 %.
"""


@dataclass(frozen=True, kw_only=True)
class FDR(FID):
    """FDr (Yang et al. 2026, FD-Loss): the Fréchet distance, divided by the distance between
    ImageNet's validation set and training set.

    FDr6 is the mean of FDr over the six networks of the paper, for ImageNet at 256 x 256 pixels. It
    is returned if a run has all six networks. A value of 1 means that FAKE is as far from REAL as
    the validation set is. The divisors are `DENOMINATORS`.

    Raises:
        InputError: if there is no divisor for the run's network, protocol or dimensions.
    """

    name = "fdr"
    other_names = ("fdr6",)
    numbers = (
        Number(
            "fdr",
            "FDr",
            "lower",
            "Fréchet distance divided by the distance of ImageNet's validation set",
        ),
    )
    summary = (Number("fdr6", "FDr6", "lower", "mean of FDr over the six networks of FD-Loss"),)
    frechet = False
    by_name = f"it needs the networks of FD-Loss: pass {option('preset', 'fdr6')}"
    phase = ""

    def check(self, facts: MetricFacts) -> None:
        if facts.extractor not in DENOMINATORS:
            raise not_computable_error(
                self,
                f"FDr is only defined for the networks of FD-Loss ({', '.join(DENOMINATORS)}), not "
                f"{facts.extractor}:",
                f"pass {option('preset', 'fdr6')}",
            )
        stated = facts.definition
        if stated is None or not stated.standard:
            return
        if stated.protocol_name != "tensorflow" or stated.dims != 2048:
            raise InputError(
                "FDr with Inception is only defined for its 2048 features and the protocol "
                "tensorflow:",
                f"pass {option('protocol', 'tensorflow')}",
                setting="protocol",
            )

    def compute(self, real: FeatureSet, fake: FeatureSet, context: MetricContext) -> Values:
        distance = super().compute(real, fake, context)["fdr"]
        return {"fdr": distance / DENOMINATORS[context.extractor]}

    def summarize(self, values: Mapping[str, Values]) -> Values:
        if not DENOMINATORS.keys() <= values.keys():
            return {}
        ratios = [values[network]["fdr"] for network in DENOMINATORS]
        return {"fdr6": sum(ratios) / len(ratios)}

    @classmethod
    def requirements(cls, settings: Mapping[str, Any], values: Values) -> Sequence[Requirement]:
        is_whole = "fdr6" in values
        networks = "all six" if is_whole else "not all six"
        return [Requirement("networks of FDr6", is_whole, networks, "all six")]

    def record(self, definition: Definition | None) -> Mapping[str, Any]:
        return dict(DENOMINATORS)
