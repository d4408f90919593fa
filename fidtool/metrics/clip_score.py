"""CLIP score: the cosine of each generated image with its caption."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from fidtool.errors import InputError, ResultWarning, option
from fidtool.features.choice import NetworkChoice
from fidtool.metrics.cmmd import CLIPMetric
from fidtool.metrics.metric import (
    METRICS,
    FeatureSet,
    MetricContext,
    Number,
    Values,
    mean_of_images,
)
from fidtool.validation import Setting

if TYPE_CHECKING:
    from fidtool.features.protocol import Definition

# OpenAI's ViT-L/14, torchmetrics' default.
_USUAL = "clip:ViT-L-14-quickgelu"
# Captions in a forward pass. Batches do not depend on the number of ranks, and so neither do the
# bits.
_BATCH = 64


@dataclass(frozen=True, kw_only=True)
class CLIPScore(CLIPMetric):
    """CLIP score (Hessel et al. 2021) of FAKE: 100 × the cosine similarity of an image and its
    caption. Negative values count as 0.

    The values are the mean and the standard deviation over the images, as in torchmetrics, from 0
    to 100. With another ``weight`` or a ``prefix``, the title names both. Captions come from the
    setting ``captions``. Captions that are too long for the network (more than 77 tokens by
    default) are truncated, with a warning; ``clip_score_cut`` is their number.

    Raises:
        InputError: if the network has no text encoder.
    """

    extractor: str = Setting(_USUAL, METRICS, "NAME").help(
        "CLIP score: the network that embeds images and captions. If its weights cannot be "
        f"downloaded, pass {_USUAL}@weights=FILE."
    )
    weight: float = Setting(100.0, METRICS, "X", least=1e-9).help(
        "CLIP score: the factor by which the cosine is multiplied: 100 in torchmetrics, 2.5 in "
        "Hessel et al., or 1 for the cosine itself."
    )
    prefix: str = Setting("", METRICS, "TEXT").help(
        "CLIP score: words to put before each caption, followed by a space, such as 'A photo "
        "depicts' in Hessel et al."
    )

    name = "clip-score"
    numbers = (
        Number(
            "clip_score",
            "CLIP score",
            "higher",
            "mean of 100 × cosine",
            "clip_score_std",
            2,
            "clip_score",
            spread_kind="s.d.",
        ),
    )
    further = ("clip_score_cut",)
    usual_network = _USUAL
    fake_features = fake_only = captions = True
    by_name = f"it needs a caption for each image: request it by name and pass {option('captions')}"

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.weight, self.prefix) != (CLIPScore.weight, CLIPScore.prefix):
            convention = f"{self.weight:g} × cosine"
            title = f"CLIP score of {convention}"
            if self.prefix:
                title += f" with {self.prefix!r}"
            digits = 2 if self.weight > 10 else 4
            number = CLIPScore.numbers[0]
            number = replace(number, title=title, meaning=f"mean of {convention}", digits=digits)
            object.__setattr__(self, "numbers", (number,))

    def network(self) -> NetworkChoice:
        choice = super().network()
        if choice.family != "clip":
            setting = self.named("extractor")
            raise InputError(
                f"{option(setting, self.extractor)} has no text encoder:",
                f"name a model of open_clip, such as {_USUAL}",
            )
        return replace(choice, protocol="openai")

    def compute(self, real: FeatureSet, fake: FeatureSet, context: MetricContext) -> Values:
        """Compute the mean score and the score of each image. Captions that are too long are
        truncated, with a warning.
        """
        import numpy as np

        from fidtool.distances.parallel import share_out
        from fidtool.features.models.clip import TextTower, fetch

        network = self.network()
        captions = fake.captions or ()
        world = context.world
        state = world.on_rank_zero(lambda: fetch(network, lambda line: None, text=True))
        with world.together():
            tower = TextTower(network, state, context.features.device)

        def score(start: int) -> tuple[list[float], int]:
            batch = captions[start : start + _BATCH]
            if self.prefix:
                batch = [f"{self.prefix} {caption}" for caption in batch]
            texts, count = tower(batch)
            images = np.asarray(fake.rows[start : start + _BATCH], dtype=np.float64)
            cosines = (images * texts.double().numpy()).sum(axis=1)
            return (self.weight * cosines).clip(0).tolist(), count

        jobs = [partial(score, start) for start in range(0, len(captions), _BATCH)]
        scores = list[float]()
        too_long = 0
        for some, count in share_out(jobs, world):
            scores += some
            too_long += count
        if too_long:
            text = (
                f"{too_long} of {len(captions)} captions have more than the {tower.length} tokens "
                "that CLIP reads, and are truncated"
            )
            context.warnings.append(ResultWarning(fake.path, text))
        context.recorded["text_sha256"] = tower.sha256
        values = mean_of_images(self.numbers[0], np.array(scores), context)
        return values | {"clip_score_cut": too_long}

    def record(self, definition: Definition | None) -> Mapping[str, Any]:
        convention = {"weight": self.weight, "prefix": self.prefix}
        return {**super().record(definition), **convention}
