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
    mark_agreed,
    short_repr,
    summarize_error,
)
from fidtool.features.models.inception import Weights, load_weights
from fidtool.metrics.metric import Metric, MetricContext, feature_set
from fidtool.metrics.registry import BUILT_IN, RequestedMetric
from fidtool.result.values import find_key
from fidtool.run.captions import order_captions
from fidtool.run.context import RunContext
from fidtool.run.plan import Plan
from fidtool.run.sets import SetContent, SetPlan
from fidtool.statistics.set_statistics import MeasuredSet

T = TypeVar("T")


@dataclass
class ComputedValues:
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
    contents: Mapping[SetPlan, SetContent]
    weights: Weights | None
    recorded: dict[str, dict[str, Any]]

    def feature_settings(self, layer: str) -> FeatureSettings:
        """Return how the features of a layer are summed."""
        return feature_settings(
            self.plan.definitions.get(layer), self.run.device.torch_device, self.run.world
        )

    def compute(
        self,
        metrics: Sequence[RequestedMetric],
        real: MeasuredSet,
        fake: MeasuredSet,
        set_plan: SetPlan,
    ) -> ComputedValues:
        """Return the values of metrics; ``set_plan`` is the plan of the FAKE. A collective."""
        computed = ComputedValues()
        of_networks = defaultdict[str, dict[str, dict[str, float]]](dict)
        for requested in metrics:
            values = self._compute_metric(requested, real, fake, set_plan, computed)
            computed.numbers |= self._rename_keys(requested, values)
            network = self.plan.settings.layer_network(requested.layer).extractor
            of_networks[requested.metric.name].setdefault(network, values)
        for requested in metrics:
            if not requested.network_name:
                summary = requested.metric.summarize(of_networks[requested.metric.name])
                computed.numbers |= self._rename_keys(
                    requested, _check_values(requested.metric, summary)
                )
        return computed

    def _rename_keys(self, requested: RequestedMetric, returned: Mapping[str, T]) -> dict[str, T]:
        """What a metric returned by the names of values, by their keys."""
        values = self.plan.metric_values(requested)
        return {find_key(values, name): value for name, value in returned.items()}

    def _compute_metric(
        self,
        requested: RequestedMetric,
        real: MeasuredSet,
        fake: MeasuredSet,
        set_plan: SetPlan,
        computed: ComputedValues,
    ) -> dict[str, float]:
        """The values of a metric; warnings about them, and values of single images, are added. A
        collective.
        """
        run = self.run
        metric = requested.metric
        layer = requested.layer
        features_of_real = feature_set(real, layer, metric.real_features)
        features = feature_set(fake, layer, metric.fake_features)
        if metric.captions:
            captions = run.world.on_rank_zero(
                lambda: order_captions(set_plan, self.contents[set_plan], fake.statistics)
            )
            features = replace(features, captions=captions)
        network = self.plan.settings.layer_network(layer).extractor
        context = MetricContext(self.feature_settings(layer), self._classifier, extractor=network)
        try:
            with run.clock(metric.phase or metric.name):
                values = metric.compute(features_of_real, features, context)
        except InputError as error:
            raise mark_agreed(error) from None  # all ranks have the same features and settings
        except FidtoolError:
            raise
        except (Exception, SystemExit) as error:  # custom metrics may raise anything
            last = traceback.extract_tb(error.__traceback__)[-1]
            position = f"({os.path.basename(last.filename)}:{last.lineno})"
            kind = RunError if type(metric) in BUILT_IN.values() else ProgramError
            raise kind(
                f"the metric {requested.name} failed: {summarize_error(error)} {position}"
            ) from error
        for warning in context.said:
            if warning not in computed.warnings:  # others are of the sets, and not of the network
                if requested.network_name:
                    warning = replace(warning, text=f"{requested.network_name}: {warning.text}")
                computed.warnings.append(warning)
        computed.of_images |= self._rename_keys(requested, context.of_images)
        self.recorded.setdefault(requested.name, {}).update(context.recorded)
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
            f"the metric {metric.name} returned {short_repr(returned)}, but declares {declared}"
        )
    values = {}
    for name, value in returned.items():
        try:
            values[name] = float(value)
        except (TypeError, ValueError, OverflowError):  # an integer can be too large for a float
            values[name] = math.nan
        if not math.isfinite(values[name]):
            raise RunError(f"the metric {metric.name} returned {short_repr(value)} for {name}")
    return values
