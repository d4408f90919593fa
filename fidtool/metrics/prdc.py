"""PRDC: precision, recall, density and coverage."""

from dataclasses import dataclass
from typing import Literal

from fidtool.errors import InputError, option
from fidtool.metrics.metric import (
    METRICS,
    FeatureSet,
    Metric,
    MetricContext,
    MetricFacts,
    Number,
    Values,
)
from fidtool.validation import Setting

Ties = Literal["strict", "inclusive"]


def _share(name: str, title: str, meaning: str) -> Number:
    return Number(name, title, "higher", meaning, one_image=1.0)


@dataclass(frozen=True, kw_only=True)
class PRDC(Metric):
    """Precision and recall (Kynkäänniemi et al. 2019), density and coverage (Naeem et al. 2020).

    The F-score is the harmonic mean of precision and recall. Each image has a ball, whose radius is
    the distance to its ``nearest_k``-th neighbour in the same set. The values are shares from 0 to
    1, except that density may be above 1.

    Raises:
        InputError: if a set has no more than ``nearest_k`` images.
    """

    nearest_k: int = Setting(5, METRICS, "K", flag="--nearest-k", least=1).help(
        "Precision, recall, density, coverage: the radius of an image's ball is the distance to "
        "its K-th nearest neighbour."
    )
    ties: Ties = Setting("strict", METRICS, flag="--ties").help(
        "Precision, recall, density, coverage: whether an image on the surface of a ball counts as "
        "outside (strict, as in prdc) or inside (inclusive, as in StyleGAN and ADM)."
    )

    name = "prdc"
    other_names = ("precision-recall",)
    numbers = (
        _share(
            "precision",
            "Precision",
            "share of generated images that are in the neighbourhood of a real image",
        ),
        _share(
            "recall",
            "Recall",
            "share of real images that are in the neighbourhood of a generated image",
        ),
        _share(
            "density",
            "Density",
            "mean number of real images' neighbourhoods that contain a generated image, divided "
            "by k",
        ),
        _share(
            "coverage",
            "Coverage",
            "share of real images with a generated image in their neighbourhood",
        ),
        _share("f_score", "F-score", "harmonic mean of precision and recall"),
    )
    real_features = fake_features = True

    def check(self, facts: MetricFacts) -> None:
        if facts.images is not None and facts.images <= self.nearest_k:
            raise InputError(
                f"precision and recall use {self.nearest_k} neighbours of each image, but "
                f"{facts.has}:",
                f"pass a smaller {option(self.named('nearest_k'))}",
                setting=self.named("nearest_k"),
            )

    def compute(self, real: FeatureSet, fake: FeatureSet, context: MetricContext) -> Values:
        from fidtool.distances.neighbors import prdc

        values, radii = prdc(
            real.rows, fake.rows, context.features, k=self.nearest_k, ties=self.ties
        )
        rule = "only images with the same features" if self.ties == "inclusive" else "no image"
        titles = ("Precision, density and coverage", "Recall")
        for images, title, zeros in zip((real, fake), titles, radii, strict=True):
            if zeros:
                context.warnings.append(
                    f"{title}: {zeros} of {len(images.rows)} images of {images.path} have a radius "
                    f"of 0, because each has {self.nearest_k} or more duplicates by its features: "
                    f"{rule} can be within that radius; remove the duplicates, or pass a larger "
                    f"{option(self.named('nearest_k'))}"
                )
        return values
