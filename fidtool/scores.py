"""The numbers: every metric that was asked for, of one FAKE against REAL, on all ranks together."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from fidtool.distances.exact import FeatureSettings
from fidtool.distances.frechet import Gaussian
from fidtool.distributed.world import World
from fidtool.errors import FidtoolError, InputError, RunError, on_every_rank
from fidtool.features.models.inception_weights import Weights
from fidtool.features.protocol import Definition
from fidtool.metrics.metric import FeatureSet, Metric, MetricContext
from fidtool.metrics.registry import in_order
from fidtool.needs import layer_of
from fidtool.session import Session
from fidtool.statistics.statistics_file import MeasuredSet

Scores = dict[str, float]


class Scorer:
    """Computes the metrics that the run was asked for.

    Args:
        session: the run.
        definitions: what defines the features, by layer; None where nobody knows.
        classifier: gives Inception's weights with the classifier; called on rank zero, for the Inception Score.
    """

    def __init__(
        self, session: Session, definitions: Mapping[str, Definition | None], classifier: Callable[[], Weights]
    ) -> None:
        self._world: World = session.world
        self._clock: Callable[[str], AbstractContextManager[None]] = session.clock
        self._classifier = classifier
        self._metrics = [(metric, layer_of(metric, session.config)) for metric in in_order(session.config.chosen)]
        device = session.device.exact_sums
        self._features = {layer: FeatureSettings.of(definitions.get(layer), device) for _, layer in self._metrics}

    def compare(self, real: MeasuredSet, fake: MeasuredSet) -> Scores:
        """All numbers by their plain names, see `fidtool.labels`. A collective.

        Raises:
            FidtoolError: a number cannot be computed.
        """
        scores: Scores = {}
        for metric, layer in self._metrics:
            context = MetricContext(self._world, self._features[layer], self._classifier)
            one = _feature_set(real, layer, metric.real_features)
            other = _feature_set(fake, layer, metric.fake_features)
            with self._clock(metric.phase or metric.name):
                scores |= self._computed(metric, one, other, context)
        return scores

    def _computed(self, metric: Metric, real: FeatureSet, fake: FeatureSet, context: MetricContext) -> Scores:
        try:
            found = metric.compute(real, fake, context)
        except InputError as error:
            raise on_every_rank(error) from None  # all have the same features and settings
        except FidtoolError:
            raise
        except Exception as error:  # a metric's code may be anyone's
            reason = " ".join(str(error).split())
            raise RunError(f"the metric {metric.name} failed: {type(error).__name__}: {reason}") from error
        return self._world.on_rank_zero(lambda: _checked(metric, found))


def _feature_set(measured: MeasuredSet, layer: str, with_features: bool) -> FeatureSet:
    gaussian = None
    if measured.statistics is not None:
        of_layer = measured.statistics.layers[layer]
        gaussian = Gaussian(of_layer.mu, of_layer.sigma, measured.statistics.count)
    return FeatureSet(measured.path, measured.features[layer] if with_features else None, gaussian)


def _checked(metric: Metric, found: Mapping[str, float]) -> Scores:
    """A metric's numbers, once they are those that it declares."""
    names = {name for number in metric.numbers for name in (number.name, number.spread) if name}
    if set(found) != names:
        raise RunError(f"the metric {metric.name} gave {', '.join(found)}; it declares {', '.join(sorted(names))}")
    scores = {name: float(value) for name, value in found.items()}
    for name, value in scores.items():
        if not math.isfinite(value):
            raise RunError(f"the metric {metric.name} gave {value} for {name}")
    return scores
