"""KID: the Kernel Inception Distance."""

from dataclasses import dataclass, replace
from typing import Literal

from fidtool.errors import InputError, ResultWarning, option
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


@dataclass(frozen=True, kw_only=True)
class KID(Metric):
    """Kernel Inception Distance (Bińkowski et al. 2018): the squared MMD between the features of
    the two sets, averaged over random subsets.

    The values are the mean and the standard deviation, over the subsets, of the unbiased estimate
    with the kernel (<x, y> / D + 1)³. The estimate may be negative, and is 0 on average for equal
    distributions. With another kernel, the value is called KID-poly or KID-rbf.

    Raises:
        InputError: if a set has fewer than 2 images, or a setting of the other kernel is set.
        RunError: if values of the kernel are not finite.
    """

    subsets: int = Setting(100, METRICS, "N", least=1).help(
        "KID: number of pairs of random subsets to average over."
    )
    subset_size: int = Setting(1000, METRICS, "N", least=2).help(
        "KID: images per subset. If the smaller set of a comparison has fewer images, a subset has "
        "all of them."
    )
    seed: int = Setting(0, METRICS).help("KID: seed of the random subsets.")
    kernel: Literal["poly", "rbf"] = Setting("poly", METRICS).help(
        "KID: the kernel. poly is (gamma <x, y> + coef) ** degree; rbf is exp(-|x - y|² / (2 "
        "sigma²)), as in torch-fidelity."
    )
    degree: int = Setting(3, METRICS, "N", least=1).help("KID: degree of the kernel poly.")
    gamma: float | None = Setting(None, METRICS, "X", least=1e-9).help(
        "KID: factor gamma in the kernel poly.", default="1 / dimensions"
    )
    coef: float = Setting(1.0, METRICS, "X", least=1e-9).help(
        "KID: constant term of the kernel poly."
    )
    sigma: float = Setting(10.0, METRICS, "X", least=1e-9).help("KID: bandwidth of the kernel rbf.")

    name = "kid"
    other_names = ("kernel-inception-distance",)
    numbers = (
        Number(
            "kid",
            "KID",
            "lower",
            "squared MMD between the features, mean ± standard deviation over random subsets",
            spread="kid_std",
            digits=6,
            # It varies by about 1 / (8 n) for equal distributions: CIFAR-10, n from 60 to 1,000.
            one_image=0.1,
            spread_kind="s.d.",
        ),
    )
    further = ("kid_subset_size",)
    real_features = fake_features = True
    fewest = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        plain = (KID.kernel, KID.degree, KID.gamma, KID.coef)
        if (self.kernel, self.degree, self.gamma, self.coef) != plain:
            number = replace(KID.numbers[0], title=f"KID-{self.kernel}", one_image=0.0)
            object.__setattr__(self, "numbers", (number,))

    def check(self, facts: MetricFacts) -> None:
        unused = ("sigma",) if self.kernel == "poly" else ("degree", "gamma", "coef")
        for name in unused:
            if getattr(self, name) != getattr(KID, name):
                raise InputError(
                    f"{option(self.named(name))} is not a setting of KID's kernel {self.kernel}:",
                    f"omit it, or pass another {option(self.named('kernel'))}",
                )
        super().check(facts)

    def compute(self, real: FeatureSet, fake: FeatureSet, context: MetricContext) -> Values:
        from fidtool.distances.kernel import kid

        smaller = min(real, fake, key=lambda images: len(images.rows))
        size = min(self.subset_size, len(smaller.rows))
        if size < self.subset_size:
            text = f"KID draws subsets of {size} images instead of {self.subset_size}"
            context.warnings.append(ResultWarning(smaller.path, text, detail=f"only {size} images"))
        # All subsets are the same if each is the whole set on both sides: one is enough, and there
        # is no spread.
        is_whole = size == len(real.rows) == len(fake.rows)
        mean, spread = kid(
            real.rows,
            fake.rows,
            context.features,
            subset_size=size,
            subsets=1 if is_whole else self.subsets,
            seed=self.seed,
            kernel=self.sigma if self.kernel == "rbf" else (self.degree, self.gamma, self.coef),
        )
        values = {"kid": mean}
        if not is_whole:
            values["kid_std"] = spread
        if size < self.subset_size:
            values["kid_subset_size"] = size
        return values
