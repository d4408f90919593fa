"""The values of the metrics for one FAKE, or for a class of its images."""

from __future__ import annotations

import math
import os
import traceback
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fidtool.distances.exact import FeatureSettings, feature_settings
from fidtool.errors import (
    FidtoolError,
    InputError,
    ProgramError,
    ResultWarning,
    RunError,
    brief,
    in_short,
    on_every_rank,
)
from fidtool.features.models.inception import Weights, load_weights
from fidtool.metrics.metric import Metric, MetricContext, feature_set
from fidtool.metrics.registry import BUILT_IN, Requested
from fidtool.result.values import key_of
from fidtool.run.captions import captions_of
from fidtool.run.context import RunContext
from fidtool.run.plan import Plan
from fidtool.run.sets import Content, SetPlan
from fidtool.statistics.set_statistics import MeasuredSet

T = TypeVar("T")


@dataclass
class Computed:
    """What the metrics say about a FAKE.

    Attributes:
        numbers: their values by key.
        warnings: warnings about these.
        of_images: values of single images, by key: float64 arrays of shape (images,), in the order
            of the features.
    """

    numbers: dict[str, float] = field(default_factory=dict)
    warnings: list[ResultWarning] = field(default_factory=list)
    of_images: dict[str, NDArray[np.float64]] = field(default_factory=dict)


@dataclass
class MetricRunner:
    """Computes metrics. All ranks create and use it in the same way.

    Attributes:
        weights: Inception's, if the run has loaded them.
        recorded: what the metrics recorded, by their names, see `MetricContext.recorded`.
    """

    run: RunContext
    plan: Plan
    contents: Mapping[SetPlan, Content]
    weights: Weights | None
    recorded: dict[str, dict[str, Any]]

    def features(self, layer: str) -> FeatureSettings:
        """Return how the features of a layer are summed."""
        return feature_settings(
            self.plan.definitions.get(layer), self.run.device.torch_device, self.run.world
        )

    def compute(
        self, metrics: Sequence[Requested], real: MeasuredSet, fake: MeasuredSet, planned: SetPlan
    ) -> Computed:
        """Return the values of metrics; ``planned`` is the plan of the FAKE. A collective."""
        computed = Computed()
        of_networks = defaultdict[str, dict[str, dict[str, float]]](dict)
        for asked in metrics:
            values = self._compute_metric(asked, real, fake, planned, computed)
            computed.numbers |= self._by_key(asked, values)
            network = self.plan.settings.network_of(asked.layer).extractor
            of_networks[asked.metric.name].setdefault(network, values)
        for asked in metrics:
            if not asked.further:
                summary = asked.metric.summarize(of_networks[asked.metric.name])
                computed.numbers |= self._by_key(asked, _check_values(asked.metric, summary))
        return computed

    def _by_key(self, asked: Requested, returned: Mapping[str, T]) -> dict[str, T]:
        """What a metric returned by the names of values, by their keys."""
        values = self.plan.values_of(asked)
        return {key_of(values, name): value for name, value in returned.items()}

    def _compute_metric(
        self,
        asked: Requested,
        real: MeasuredSet,
        fake: MeasuredSet,
        planned: SetPlan,
        computed: Computed,
    ) -> dict[str, float]:
        """The values of a metric; warnings about them, and values of single images, are added. A
        collective.
        """
        run = self.run
        metric = asked.metric
        layer = asked.layer
        features_of_real = feature_set(real, layer, metric.real_features)
        features = feature_set(fake, layer, metric.fake_features)
        if metric.captions:
            captions = run.world.on_rank_zero(
                lambda: captions_of(planned, self.contents[planned], fake.statistics)
            )
            features = replace(features, captions=captions)
        network = self.plan.settings.network_of(layer).extractor
        context = MetricContext(self.features(layer), self._classifier, extractor=network)
        try:
            with run.clock(metric.phase or metric.name):
                values = metric.compute(features_of_real, features, context)
        except InputError as error:
            raise on_every_rank(error) from None  # all ranks have the same features and settings
        except FidtoolError:
            raise
        except (Exception, SystemExit) as error:  # custom metrics may raise anything
            last = traceback.extract_tb(error.__traceback__)[-1]
            position = f"({os.path.basename(last.filename)}:{last.lineno})"
            kind = RunError if type(metric) in BUILT_IN.values() else ProgramError
            raise kind(f"the metric {asked.name} failed: {in_short(error)} {position}") from error
        for warning in context.said:
            if warning not in computed.warnings:  # others are of the sets, and not of the network
                if asked.further:
                    warning = replace(warning, text=f"{asked.further}: {warning.text}")
                computed.warnings.append(warning)
        computed.of_images |= self._by_key(asked, context.of_images)
        self.recorded.setdefault(asked.name, {}).update(context.recorded)
        required = {number.name for number in metric.numbers}
        return run.world.on_rank_zero(lambda: _check_values(metric, values, required))

    def _classifier(self) -> Weights:
        path = self.plan.settings.network.weights
        return self.weights or load_weights(path, self.run.console.say, classifier=True)


def _check_values(
    metric: Metric, returned: Mapping[str, float], required: Collection[str] = ()
) -> dict[str, float]:
    """What a metric returned, as floats: the ``required`` values, and others that it declares."""
    names = {*metric.further}
    for number in (*metric.numbers, *metric.summary):
        names |= {number.name, number.spread}
    if not isinstance(returned, Mapping) or not {*required} <= {*returned} <= names:
        declared = ", ".join(sorted(filter(None, names)))
        raise RunError(
            f"the metric {metric.name} returned {brief(returned)}; it declares {declared}"
        )
    values = {}
    for name, value in returned.items():
        try:
            values[name] = float(value)
        except (TypeError, ValueError, OverflowError):  # an integer can be too large for a float
            values[name] = math.nan
        if not math.isfinite(values[name]):
            raise RunError(f"the metric {metric.name} returned {brief(value)} for {name}")
    return values
