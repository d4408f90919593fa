"""KID: the Kernel Inception Distance."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fidtool.errors import TooFewImagesError, option
from fidtool.metrics.metric import METRICS, FeatureSet, Metric, MetricContext, MetricFacts, Number
from fidtool.validation import Setting


@dataclass(frozen=True, kw_only=True)
class KID(Metric):
    """Kernel Inception Distance (Bińkowski et al. 2018): the squared MMD with a cubic kernel, over random subsets."""

    subsets: int = Setting(100, METRICS, "N", least=1).help("KID: number of pairs of random subsets to average over.")
    subset_size: int = Setting(1000, METRICS, "N", least=2).help(
        "KID: images per subset, or all of the smaller set of a comparison if it has fewer."
    )
    seed: int = Setting(0, METRICS).help("KID: seed of the random subsets.")

    name = "kid"
    other_names = ("kernel-inception-distance",)
    numbers = (
        Number(
            "kid",
            "KID",
            "lower",
            "squared MMD of the features: mean ± standard deviation over random subsets",
            spread="kid_std",
            digits=6,
        ),
    )
    further = ("kid_subset_size",)
    real_features = fake_features = True
    _kernel: ClassVar[tuple[int, float | None, float]] = (3, None, 1.0)

    def check(self, facts: MetricFacts) -> None:
        if facts.images is not None and facts.images < 2:
            remedy = f"omit kid from {option('metrics')}"
            problem = f"KID needs at least two images per set, and {facts.has}:"
            raise TooFewImagesError(problem, remedy, setting="metrics")

    def compute(self, real: FeatureSet, fake: FeatureSet, context: MetricContext) -> Mapping[str, float]:
        from fidtool.distances.kernel import kid

        smaller = min(real, fake, key=lambda each: len(each.rows))
        size = min(self.subset_size, len(smaller.rows))
        if size < self.subset_size:
            context.warnings.append(
                f"{smaller.path} (only {size} images): KID draws subsets of that size instead of {self.subset_size}"
            )
        # All subsets are the same if each is the whole set on both sides: one is enough, and there is no spread.
        whole = size == len(real.rows) == len(fake.rows)
        mean, spread = kid(
            real.rows,
            fake.rows,
            context.features,
            context.world,
            subset_size=size,
            subsets=1 if whole else self.subsets,
            seed=self.seed,
            kernel=self._kernel,
        )
        values = {"kid": mean} if whole else {"kid": mean, "kid_std": spread}
        return values if size == self.subset_size else {**values, "kid_subset_size": size}
