"""CMMD: the squared MMD of CLIP's embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from fidtool.features.models.families import CMMD_EXTRACTOR, FEATURE_STEPS, NetworkChoice
from fidtool.features.protocol import EMBEDDING
from fidtool.metrics.metric import METRICS, FeatureSet, Metric, MetricContext, Number
from fidtool.validation import File, Setting, text_of

if TYPE_CHECKING:
    from fidtool.features.definition import Definition


@dataclass(frozen=True, kw_only=True)
class CMMD(Metric):
    """CMMD (Jayasumana et al. 2024): the squared MMD with a Gaussian kernel of embeddings of CLIP ViT-L/14 at 336."""

    extractor: Annotated[str, Setting(help="CMMD's network.", group=METRICS, metavar="NAME")] = "clip"
    weights: Annotated[
        File, Setting(help="Its weights, where they cannot be downloaded.", group=METRICS, metavar="FILE")
    ] = None
    input_size: Annotated[int | None, Setting(help="As --input-size.", group=METRICS, metavar="N", least=1)] = None
    feature_step: Annotated[
        int | None,
        Setting(help="As --feature-step.", group=METRICS, metavar="S", least=FEATURE_STEPS[0], most=FEATURE_STEPS[1]),
    ] = None

    name = "cmmd"
    numbers = (Number("cmmd", "CMMD", "lower", "1000 × the squared MMD of embeddings", layer=EMBEDDING),)
    usual_network = CMMD_EXTRACTOR
    real_features = fake_features = True

    def network(self) -> NetworkChoice:
        return NetworkChoice(self.extractor, text_of(self.weights), self.input_size, self.feature_step)

    def compute(self, real: FeatureSet, fake: FeatureSet, context: MetricContext) -> Mapping[str, float]:
        from fidtool.distances.kernel import cmmd

        step, device = context.features.feature_step, context.features.device
        return {"cmmd": cmmd(real.rows, fake.rows, context.world, feature_step=step, device=device)}

    def record(self, definition: Definition | None) -> Mapping[str, Any]:
        if definition is None:
            return {}
        return {"extractor": definition.extractor, "weights_sha256": definition.weights_sha256}
