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

    The score of a split is the exponential of the mean Kullback-Leibler divergence of Inception's
    class probabilities for an image from their mean over the split. The values are the mean and the
    standard deviation over the splits. The score is from 1 to 1008, and higher with more images per
    split. REAL is not used.

    Raises:
        InputError: if the features are not Inception's 2048, if FAKE has fewer images than
            ``splits`` and ``split_size`` is not set, or if ``split_size`` is set and ``splits`` is
            not 10.
    """

    splits: int = Setting(10, METRICS, "N", least=1, excludes="is_split_size").help(
        "Inception Score: number of random splits of a FAKE to average over."
    )
    split_size: int | None = Setting(None, METRICS, "N", least=1, excludes="is_splits").help(
        "Inception Score: average over consecutive splits of N images in stored order instead. The "
        "last split may have fewer. ADM's evaluator uses 5000."
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
            "over splits of the set; uses FAKE only",
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
        return self.split_size is not None

    def check(self, facts: MetricFacts) -> None:
        needs = f"the Inception Score needs Inception's {_DIMS} features"
        of_split_size = self.named("split_size")
        of_splits = self.named("splits")
        stated = facts.definition
        if facts.extractor != "inception":
            problem = f"{needs}, not the features of {facts.extractor}:"
            raise not_computable_error(self, problem, f"omit {option('extractor')}")
        if facts.requested_dims not in (None, _DIMS):
            raise InputError(f"{needs}, not {facts.requested_dims}", setting="dims")
        if self.split_size is not None and self.splits != type(self).splits:
            raise InputError(
                f"{option(of_split_size)} and {option(of_splits)} both divide a set into splits:",
                "set one of them",
            )
        if stated is None and facts.dims is not None:
            raise InputError(
                f"{needs}, but {facts.file} does not state which network computed its features:",
                "pass the folder of images",
                f"pass {option('protocol', ...)} if they are Inception's",
                setting="metrics",
            )
        if stated is not None and (stated.extractor != INCEPTION or stated.dims != _DIMS):
            raise not_computable_error(
                self, f"{needs}, not {stated.dims} features of {stated.extractor}:"
            )
        if self.split_size is None and facts.images is not None and facts.images < self.splits:
            raise InputError(
                f"the Inception Score divides a set into {self.splits} splits, but {facts.has}:",
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
        if settings.get("split_size") is None:
            return ()
        ratio = values.get("is_order")
        if ratio is None:
            return [Requirement("order of FAKE", None, None, "random")]
        found = f"splits with {ratio:.2f} times the score of random splits"
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
            split_size=self.split_size,
            order=fake.order if self.stored_order else None,
        )
        values = {"is": mean, "is_std": std}
        of_split_size = option(self.named("split_size"))
        count = len(fake.rows)
        size = self.split_size or count
        rest = count % size
        if 0 < 2 * rest < size < count:
            text = (
                f"the last split of the Inception Score has {rest} of the {count} images, and the "
                f"other splits have {size} each: its score is lower, but counts equally; pass a "
                f"divisor of {count} as {of_split_size}"
            )
            context.warnings.append(ResultWarning(fake.path, text))
        if ratio is None:
            return values
        if ratio < SORTED:
            if 1 - ratio < _CERTAIN * error:
                return values
            text = (
                f"splits of {self.split_size} images in stored order have {ratio:.2f} times the "
                "Inception Score of random splits of that size: the images seem to be stored by "
                "class, and the score is too low; store the images in random order, or pass "
                f"{option(self.named('splits'))}, which divides them at random, instead of "
                f"{of_split_size}"
            )
            context.warnings.append(ResultWarning(fake.path, text, "medium"))
        return values | {"is_order": ratio}
