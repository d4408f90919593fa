"""IS: the Inception Score of each FAKE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fidtool.errors import InputError, ResultWarning, Say, option
from fidtool.features.protocol import INCEPTION, INCEPTION_DIMS
from fidtool.metrics.metric import (
    METRICS,
    FeatureSet,
    Metric,
    MetricContext,
    MetricFacts,
    Number,
    Requirement,
    Values,
    not_computable_error,
)
from fidtool.validation import Setting

SORTED = 0.9
"""Parts whose score is below this share of that of random parts do not have random images, if the
difference is also more than `_CERTAIN` standard errors.
"""
_CERTAIN = 4.0
_DIMS = max(INCEPTION_DIMS)


@dataclass(frozen=True, kw_only=True)
class InceptionScore(Metric):
    """Inception Score (Salimans et al. 2016) of each FAKE, from its features and Inception's
    classifier.

    exp of the mean Kullback-Leibler divergence of Inception's class probabilities of an image from
    their mean, as the mean and standard deviation over parts of the set. The value is from 1 to
    1008, and higher with more images per part. REAL is not used.

    Raises:
        InputError: if the features are not Inception's 2048, FAKE has fewer images than ``splits``
            without a ``part_size``, or a ``part_size`` is set beside other ``splits`` than 10.
    """

    splits: int = Setting(10, METRICS, "N", least=1, excludes="is_part_size").help(
        "Inception Score: number of consecutive parts of a FAKE to average over."
    )
    part_size: int | None = Setting(None, METRICS, "N", least=1, excludes="is_splits").help(
        "Inception Score: average over consecutive parts of N images in stored order instead, of "
        "which the last may have fewer; ADM's evaluator uses 5000."
    )
    bias: bool = Setting(False, METRICS).help(
        "Inception Score: add the classifier's bias, which other tools omit."
    )

    name = "is"
    other_names = ("inception-score",)
    numbers = (
        Number(
            "is",
            "IS",
            "higher",
            "how confident and how varied a classifier's predictions are, ± standard deviation "
            "over parts of the set; uses FAKE only",
            spread="is_std",
            inception=True,
            spread_kind="s.d.",
        ),
    )
    fake_features = True
    classifier = True
    further = ("is_order",)

    @property
    def stored_order(self) -> bool:
        return self.part_size is not None

    def check(self, facts: MetricFacts) -> None:
        needs = f"the Inception Score needs Inception's {_DIMS} features"
        of_parts = self.named("part_size")
        of_splits = self.named("splits")
        stated = facts.definition
        if facts.extractor != "inception":
            problem = f"{needs}, not those of {facts.extractor}:"
            raise not_computable_error(self, problem, f"omit {option('extractor')}")
        if facts.requested_dims not in (None, _DIMS):
            raise InputError(f"{needs}, not {facts.requested_dims}", setting="dims")
        if self.part_size is not None and self.splits != type(self).splits:
            raise InputError(
                f"{option(of_parts)} and {option(of_splits)} both divide a set into parts:",
                "set one of them",
            )
        if stated is None and facts.dims is not None:
            raise InputError(
                f"{needs}, and {facts.file} does not state the network of its features:",
                "pass the folder of images",
                f"pass {option('protocol', ...)} if they are Inception's",
                setting="metrics",
            )
        if stated is not None and (stated.extractor != INCEPTION or stated.dims != _DIMS):
            raise not_computable_error(
                self, f"{needs}, not the {stated.dims} of {stated.extractor}:"
            )
        if self.part_size is None and facts.images is not None and facts.images < self.splits:
            raise InputError(
                f"the Inception Score divides a set into {self.splits} parts, and {facts.has}:",
                f"pass a smaller {option(of_splits)}",
                setting=of_splits,
            )

    def obtain(self, weights: str | None, images: bool, say: Say | None) -> None:
        from fidtool.features.models.inception import has_local_classifier, load_weights

        if say is not None:
            load_weights(weights, say, classifier=True)
        elif not has_local_classifier(weights):
            raise InputError(
                "no weights with Inception's classifier are on this machine (`fidtool weights "
                "--download` gets them)"
            )

    @classmethod
    def requirements(cls, settings: Mapping[str, Any], values: Values) -> Sequence[Requirement]:
        if settings.get("part_size") is None:
            return ()
        ratio = values.get("is_order")
        if ratio is None:
            return [Requirement("order of FAKE", None, None, "random")]
        found = f"parts with {ratio:.2f} times the score of random parts"
        return [Requirement("order of FAKE", ratio >= SORTED, found, "random")]

    def compute(self, real: FeatureSet, fake: FeatureSet, context: MetricContext) -> Values:
        return context.world.on_rank_zero(lambda: self._score(fake, context))

    def _score(self, fake: FeatureSet, context: MetricContext) -> Values:
        from fidtool.distances.inception_score import inception_score

        state = context.classifier().state
        mean, std, ratio, error = inception_score(
            fake.rows,
            state["fc.weight"].numpy(),
            state["fc.bias"].numpy() if self.bias else None,
            splits=self.splits,
            part_size=self.part_size,
            order=fake.order if self.stored_order else None,
        )
        values = {"is": mean, "is_std": std}
        of_parts = option(self.named("part_size"))
        count = len(fake.rows)
        size = self.part_size or count
        rest = count % size
        if 0 < 2 * rest < size < count:
            text = (
                f"the last part of the Inception Score has {rest} of the {count} images and the "
                f"others {size} each: its score is lower, and counts as much; pass a divisor of "
                f"{count} as {of_parts}"
            )
            context.warnings.append(ResultWarning(fake.path, text))
        if ratio is None:
            return values
        if ratio < SORTED:
            if 1 - ratio < _CERTAIN * error:
                return values
            text = (
                f"parts of {self.part_size} images in stored order have {ratio:.2f} times the "
                "Inception Score of random parts of that size: the images seem to be stored by "
                "class, and the score is too low; store them in random order, or pass "
                f"{option(self.named('splits'))}, which divides them at random, instead of "
                f"{of_parts}"
            )
            context.warnings.append(ResultWarning(fake.path, text, "medium"))
        return values | {"is_order": ratio}
