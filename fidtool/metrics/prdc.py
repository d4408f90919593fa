"""PRDC: precision, recall, density and coverage."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated

from fidtool.errors import InputError, option
from fidtool.metrics.metric import METRICS, FeatureSet, Metric, MetricContext, Number
from fidtool.validation import Setting


@dataclass(frozen=True, kw_only=True)
class PRDC(Metric):
    """Precision and recall (Kynkäänniemi et al. 2019), density and coverage (Naeem et al. 2020)."""

    nearest_k: Annotated[
        int,
        Setting(
            help="Precision, recall, density, coverage: neighbours that a ball reaches to.",
            group=METRICS,
            flag="--nearest-k",
            metavar="N",
            least=1,
        ),
    ] = 5
    ties: Annotated[
        str,
        Setting(
            help="Whether an image on the surface of a ball is outside (as prdc has it) or inside (as StyleGAN and "
            "ADM).",
            group=METRICS,
            flag="--ties",
            choices=("strict", "inclusive"),
        ),
    ] = "strict"

    name = "prdc"
    numbers = (
        Number("precision", "Precision", "higher", "share of generated images that lie among the real ones"),
        Number("recall", "Recall", "higher", "share of real images that lie among the generated ones"),
        Number(
            "density",
            "Density",
            "higher",
            "how many real images' neighbourhoods a generated one lies in, divided by k",
        ),
        Number("coverage", "Coverage", "higher", "share of real images that have a generated one near them"),
    )
    real_features = fake_features = True

    def check_count(self, images: int, has: str) -> None:
        if images <= self.nearest_k:
            raise InputError(
                f"precision and recall look at {self.nearest_k} neighbours of each image and {has}:",
                f"pass a smaller {option(self.named('nearest_k'))}",
                setting=self.named("nearest_k"),
            )

    def compute(self, real: FeatureSet, fake: FeatureSet, context: MetricContext) -> Mapping[str, float]:
        from fidtool.distances.neighbors import prdc

        found = prdc(
            real.rows,
            fake.rows,
            context.world,
            k=self.nearest_k,
            ties="strict" if self.ties == "strict" else "inclusive",
            feature_step=context.features.feature_step,
            device=context.features.device,
        )
        return asdict(found)
