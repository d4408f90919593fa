"""KID: the Kernel Inception Distance."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from fidtool.errors import InputError, option
from fidtool.metrics.metric import METRICS, FeatureSet, Metric, MetricContext, Number
from fidtool.validation import Setting


@dataclass(frozen=True, kw_only=True)
class KID(Metric):
    """Kernel Inception Distance (Bińkowski et al. 2018): the squared MMD with a cubic kernel, over random subsets."""

    subsets: Annotated[
        int,
        Setting(
            help="KID: number of pairs of random subsets, over which it is the mean.",
            group=METRICS,
            metavar="N",
            least=1,
        ),
    ] = 100
    subset_size: Annotated[
        int, Setting(help="KID: images in a subset; no set may have fewer.", group=METRICS, metavar="N", least=2)
    ] = 1000
    seed: Annotated[int, Setting(help="KID: which random subsets.", group=METRICS)] = 0

    name = "kid"
    numbers = (
        Number(
            "kid",
            "KID",
            "lower",
            "squared MMD of the features, its mean ± spread over random subsets",
            spread="kid_std",
            digits=6,
        ),
    )
    real_features = fake_features = True

    def check_count(self, images: int, has: str) -> None:
        if images < 2:
            remedy = f"leave kid out of {option('metrics')}"
            raise InputError(f"KID needs two images of each set, and {has}:", remedy, setting="metrics")
        if images < self.subset_size:
            raise InputError(
                f"KID draws subsets of {self.subset_size} images and {has}:",
                f"pass {option(self.named('subset_size'), images)} or less",
                setting=self.named("subset_size"),
            )

    def compute(self, real: FeatureSet, fake: FeatureSet, context: MetricContext) -> Mapping[str, float]:
        from fidtool.distances.kernel import kid

        found = kid(
            real.rows,
            fake.rows,
            context.world,
            subset_size=self.subset_size,
            subsets=self.subsets,
            seed=self.seed,
            feature_step=context.features.feature_step,
            device=context.features.device,
        )
        return {"kid": found.mean, "kid_std": found.std}
