"""Comparison of one FAKE with REAL: metric values, diagnosis of the images, and warnings."""

from __future__ import annotations

import math
import os
import traceback
from collections.abc import Mapping
from typing import Any

from fidtool.diagnose.diagnosis import Diagnosis, SetInspection, diagnosis_of, inspect_set, pair_warnings, set_warnings
from fidtool.distances.exact import FeatureSettings
from fidtool.errors import FidtoolError, InputError, ProgramError, RunError, on_every_rank
from fidtool.features.models.inception_weights import Weights, load_weights
from fidtool.features.protocol import FEATURES
from fidtool.metrics.metric import FeatureSet, Metric, MetricContext
from fidtool.metrics.registry import BUILT_IN, in_order, source_of
from fidtool.pipeline.agreement import Definitions
from fidtool.pipeline.explain import Explanations
from fidtool.pipeline.inputs import Inputs
from fidtool.pipeline.measure import Measurer
from fidtool.record import known_settings
from fidtool.results import Comparison, Exhibit, Influence, SetResult, SkippedFile, Uncertainty
from fidtool.statistics.moments import Gaussian
from fidtool.statistics.set_statistics import MeasuredSet, Statistics, facts_of
from fidtool.validation import declared, text_of


class Comparer:
    """Compares each FAKE with REAL. All ranks create and use it in the same way."""

    def __init__(
        self, inputs: Inputs, measurer: Measurer | None, definitions: Definitions, warnings: list[str]
    ) -> None:
        self._inputs, self._run, self._world = inputs, inputs.run, inputs.run.world
        self._measurer, self._definitions, self._warnings = measurer, definitions, warnings
        self.labels = self._world.on_rank_zero(lambda: inputs.labels(definitions))
        device = self._run.device.exact_sums
        self._features = {
            layer: FeatureSettings.of(definitions.get(layer), device)
            for layer in (FEATURES, *(layer for _, layer in self._metrics))
        }
        self.explanations = Explanations(self._run, self._features[FEATURES], self.labels.title("fid"))
        self._real: SetInspection | None = None
        """The inspection of REAL, on rank zero."""

    @property
    def _metrics(self) -> list[tuple[Metric, str]]:
        """The metrics with their layers; ``all`` may omit some of them once an iterable has been counted."""
        settings = self._inputs.settings
        return [(metric, settings.layer_of(metric)) for metric in in_order(settings.chosen)]

    @property
    def settings_of_metrics(self) -> dict[str, dict[str, Any]]:
        """The settings besides the features that determine each metric's value; for a custom metric also its source."""
        found = {}
        for metric, layer in self._metrics:
            recorded = dict(metric.record(self._definitions.get(layer)))
            if declared(type(metric)) or source_of(metric):
                found[metric.name] = recorded | ({"source": source_of(metric)} if source_of(metric) else {})
        return found

    def compare(self, real: MeasuredSet, fake: MeasuredSet) -> tuple[Comparison, Exhibit | None]:
        """Returns the comparison on every rank, and additional data for a report on rank zero. A collective."""
        numbers, warnings = self._numbers(real, fake)
        diagnosis, seen = self._diagnosis(real, fake)
        uncertainty = self.explanations.uncertainty(real, fake, diagnosis)
        influence = self.explanations.influence(real, fake, numbers.get("fid"))
        exhibit = self.explanations.exhibit(real, fake, seen)
        comparison = self._world.on_rank_zero(
            lambda: self._comparison(real, fake, numbers, warnings, diagnosis, uncertainty, influence)
        )
        return comparison, exhibit

    def _comparison(
        self,
        real: MeasuredSet,
        fake: MeasuredSet,
        numbers: Mapping[str, float],
        of_metrics: list[str],
        diagnosis: Diagnosis | None,
        uncertainty: Uncertainty | None,
        influence: Influence | None,
    ) -> Comparison:
        warnings = self._comparison_warnings(real, fake) + of_metrics
        warnings += () if diagnosis is None else diagnosis.lines
        if uncertainty is not None:
            warnings += _uncertainty_warnings(fake.path, uncertainty, self.labels.title("fid"))
        skipped = skipped_files(real.path, _statistics(real))
        skipped += skipped_files(fake.path, _statistics(fake)) if fake.path != real.path else ()
        return Comparison(
            self._set_result(real),
            self._set_result(fake),
            {self.labels.key(name): number for name, number in numbers.items()},
            tuple(map(self._run.console.shown, warnings)),
            skipped,
            diagnosis,
            uncertainty,
            influence,
            self.labels,
        )

    def _set_result(self, measured: MeasuredSet) -> SetResult:
        path, statistics = measured.path, _statistics(measured)
        images = self._inputs.images(path)
        return SetResult(
            path,
            statistics.count,
            statistics.found,
            known_settings(statistics.config),
            statistics.framing,
            None if images is None else images.source.passed_over,
            facts_of(measured, *self._inputs.published(path)),
        )

    def _comparison_warnings(self, real: MeasuredSet, fake: MeasuredSet) -> list[str]:
        sets = {each.path: _statistics(each) for each in (real, fake)}
        layers = {layer: None for metric, layer in self._metrics if metric.frechet}
        return [
            *self._warnings,
            *self._inputs.adapted,
            *set_warnings(sets, layers),
            *([f"{fake.path} is the same set as REAL: the values say nothing about a generator"] * (len(sets) == 1)),
            *pair_warnings(real.path, sets[real.path], fake.path, sets[fake.path], frechet=bool(layers)),
        ]

    # --- metrics -----------------------------------------------------------------------------------------------------

    def _numbers(self, real: MeasuredSet, fake: MeasuredSet) -> tuple[dict[str, float], list[str]]:
        """The values, and the warnings about them. A collective."""
        numbers: dict[str, float] = {}
        warnings: list[str] = []
        for metric, layer in self._metrics:
            context = MetricContext(self._world, self._features[layer], self._classifier)
            one = _feature_set(real, layer, metric.real_features)
            other = _feature_set(fake, layer, metric.fake_features)
            with self._run.clock(metric.phase or metric.name):
                numbers |= self._computed(metric, one, other, context)
            warnings += context.warnings
        return numbers, warnings

    def _computed(self, metric: Metric, real: FeatureSet, fake: FeatureSet, context: MetricContext) -> dict[str, float]:
        try:
            found = metric.compute(real, fake, context)
        except InputError as error:
            raise on_every_rank(error) from None  # all ranks have the same features and settings
        except FidtoolError:
            raise
        except (Exception, SystemExit) as error:  # custom metrics may raise anything
            reason = " ".join(str(error).split())
            last = traceback.extract_tb(error.__traceback__)[-1]
            position = f"({os.path.basename(last.filename)}:{last.lineno})"
            kind = RunError if type(metric) in BUILT_IN.values() else ProgramError
            raise kind(f"the metric {metric.name} failed: {type(error).__name__}: {reason} {position}") from error
        return self._world.on_rank_zero(lambda: _checked(metric, found))

    def _classifier(self) -> Weights:
        known = None if self._measurer is None else self._measurer.networks.weights
        file = text_of(self._inputs.settings.weights)
        return known or load_weights(file, self._run.console.say, classifier=True)

    def _diagnosis(
        self, real: MeasuredSet, fake: MeasuredSet
    ) -> tuple[Diagnosis | None, tuple[SetInspection | None, SetInspection | None]]:
        settings = self._inputs.settings
        if not settings.diagnose:
            return None, (None, None)
        seen: tuple[SetInspection | None, SetInspection | None] = (None, None)

        def diagnose() -> Diagnosis:
            nonlocal seen
            self._real = self._real or self._inspected(real)
            seen = self._real, self._real if fake.path == real.path else self._inspected(fake)
            return diagnosis_of(*seen, settings.max_duplicates)

        with self._run.clock("diagnosis"):
            return self._world.on_rank_zero(diagnose), seen

    def _inspected(self, measured: MeasuredSet) -> SetInspection | None:
        images = self._inputs.images(measured.path)
        passed_over = None if images is None else images.source.passed_over
        return inspect_set(measured.path, _statistics(measured).pictures, passed_over)


def _statistics(measured: MeasuredSet) -> Statistics:
    assert measured.statistics is not None
    return measured.statistics


def _feature_set(measured: MeasuredSet, layer: str, with_features: bool) -> FeatureSet:
    gaussian = order = None
    if measured.statistics is not None:
        of_layer, order = measured.statistics.layers[layer], measured.statistics.order
        gaussian = Gaussian(of_layer.mu, of_layer.sigma, measured.statistics.count)
    return FeatureSet(measured.path, measured.features[layer] if with_features else None, gaussian, order)


def _checked(metric: Metric, found: Mapping[str, float]) -> dict[str, float]:
    required = {number.name for number in metric.numbers}
    names = required | {number.spread for number in metric.numbers if number.spread} | {*metric.further}
    returned = ", ".join(map(str, found)) if isinstance(found, Mapping) else f"{found!r}, which is not a dictionary"
    if not isinstance(found, Mapping) or not required <= set(found) <= names:
        raise RunError(f"the metric {metric.name} returned {returned}; it declares {', '.join(sorted(names))}")
    try:
        numbers = {name: float(value) for name, value in found.items()}
    except (TypeError, ValueError) as error:
        raise RunError(f"the metric {metric.name} returned something that is not a number: {error}") from None
    for name, value in numbers.items():
        if not math.isfinite(value):
            raise RunError(f"the metric {metric.name} returned {value} for {name}")
    return numbers


def skipped_files(path: str, statistics: Statistics) -> tuple[SkippedFile, ...]:
    """The skipped files of a set."""
    return tuple(SkippedFile(path, bad.file, bad.reason) for bad in statistics.skipped)


def _uncertainty_warnings(name: str, uncertainty: Uncertainty, title: str) -> list[str]:
    if not uncertainty.withheld:
        return []
    points = ", ".join(f"{distance:.6g} for {images}" for images, distance in uncertainty.curve)
    known = f"; {title} by number of images: {points}" if points else ""
    return [f"{name}: no error bars: {uncertainty.withheld}{known}"]
