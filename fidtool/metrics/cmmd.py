"""CMMD: the squared MMD of CLIP embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from fidtool.errors import InputError, Say, option, rename_setting
from fidtool.features.choice import CMMD_EXTRACTOR, NetworkChoice, parse_networks
from fidtool.features.protocol import EMBEDDING
from fidtool.metrics.metric import METRICS, FeatureSet, Metric, MetricContext, Number, Values
from fidtool.validation import Setting

if TYPE_CHECKING:
    from fidtool.features.protocol import Definition


class CLIPMetric(Metric):
    """Base class of metrics with a CLIP network of their own."""

    extractor: str

    def network(self) -> NetworkChoice:
        with rename_setting("extractor", self.named("extractor")):
            return parse_networks(self.extractor)[0]

    def obtain(self, weights: str | None, images: bool, say: Say | None) -> None:
        if not images:
            return
        title = self.numbers[0].title
        if find_spec("open_clip") is None:
            if say is not None:
                return  # the network is refused when it is built
            raise InputError(
                f"{title}'s network needs the package open_clip (pip install 'fidtool[clip]')"
            )
        from fidtool.features.models.clip import fetch, is_downloaded

        network = self.own_network
        if network is None or is_downloaded(network):
            return
        if say is None:
            raise InputError(
                f"the weights of {title}'s network are not on this machine "
                f"({option('metrics', self.name)} downloads them)"
            )
        if network == type(self)().network():
            fetch(network, say)

    def record(self, definition: Definition | None) -> Mapping[str, Any]:
        if definition is None:
            return {}
        return {"extractor": definition.extractor, "weights_sha256": definition.weights_sha256}


@dataclass(frozen=True, kw_only=True)
class CMMD(CLIPMetric):
    """CMMD (Jayasumana et al. 2024): the squared MMD between CLIP ViT-L/14 embeddings (336 px),
    with a Gaussian kernel.

    The value is 1000 × the biased estimate, with embeddings of norm 1 and a bandwidth of 10, as in
    the authors' code. It is at least 0, and 0 for equal sets.

    Raises:
        RunError: if the weights cannot be downloaded.
    """

    extractor: str = Setting("clip", METRICS, "NAME").help(
        "CMMD: the network that embeds the images. If its weights cannot be downloaded, pass "
        "clip@weights=FILE."
    )

    name = "cmmd"
    numbers = (
        Number(
            "cmmd", "CMMD", "lower", "1000 × the squared MMD of the embeddings", layer=EMBEDDING
        ),
    )
    usual_network = CMMD_EXTRACTOR
    real_features = fake_features = True

    def compute(self, real: FeatureSet, fake: FeatureSet, context: MetricContext) -> Values:
        from fidtool.distances.kernel import cmmd

        return {"cmmd": cmmd(real.rows, fake.rows, context.features)}
