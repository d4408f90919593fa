"""Comparison of one FAKE with REAL: metric values, diagnosis of the images, and warnings."""

from __future__ import annotations

import math
import os
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fidtool.diagnose.diagnosis import Diagnosis, SetInspection, diagnosis_of, inspect_set, pair_warnings, set_warnings
from fidtool.distances.exact import FeatureSettings
from fidtool.errors import FidtoolError, InputError, ProgramError, RunError, on_every_rank
from fidtool.features.models.inception_weights import Weights, load_weights
from fidtool.features.protocol import FEATURES
from fidtool.metrics.metric import FeatureSet, Metric, MetricContext
from fidtool.metrics.registry import BUILT_IN, Requested
from fidtool.pipeline.explain import Explanations
from fidtool.pipeline.plan import Plan, check_count
from fidtool.pipeline.run import RunContext
from fidtool.pipeline.sets import Content, SetPlan
from fidtool.results import Comparison, Exhibit, SetResult, SkippedFile, Uncertainty
from fidtool.settings import known_settings
from fidtool.statistics.moments import Gaussian
from fidtool.statistics.set_statistics import MeasuredSet, Statistics, facts_of
from fidtool.validation import declared, text_of


class Comparer:
    """Compares each FAKE with REAL. All ranks create and use it in the same way."""

    def __init__(
        self, run: RunContext, plan: Plan, contents: Mapping[SetPlan, Content], known_weights: Weights | None
    ) -> None:
        self._run, self._world, self._plan, self._contents = run, run.world, plan, contents
        self._weights = known_weights
        device = self._run.device.exact_sums
        self._features = {
            layer: FeatureSettings.of(plan.definitions.get(layer), device)
            for layer in (FEATURES, *map(plan.settings.layer_of, plan.settings.chosen))
        }
        self.explanations = Explanations(run, plan.settings, self._features[FEATURES], plan.labels.title("fid"))
        self.left_out: dict[str, str] = dict(plan.left_out)
        """The requested metrics that cannot be computed, with the reasons."""
        self.notes: list[str] = []
        """What to say about the metrics that an iterable has too few images for."""
        self._real: SetInspection | None = None
        """The inspection of REAL, on rank zero."""

    @property
    def settings_of_metrics(self) -> dict[str, dict[str, Any]]:
        """The settings besides the features that determine each metric's value; for a custom metric also its source."""
        found, settings = {}, self._plan.settings
        for metric, source in ((each.metric, each.source) for each in settings.in_order):
            recorded = dict(metric.record(self._plan.definitions.get(settings.layer_of(metric))))
            if declared(type(metric)) or source:
                found[metric.name] = recorded | ({"source": source} if source else {})
        return found

    def compare(self, real: MeasuredSet, fake: MeasuredSet, planned: SetPlan) -> tuple[Comparison, Exhibit | None]:
        """Returns the comparison on every rank, and additional data for a report on rank zero. A collective."""
        metrics = self._plan.settings.in_order
        if "stream" in (self._plan.sets[0].holds, planned.holds):
            metrics = self._possible(real, fake, planned)
        numbers, warnings = self._numbers(metrics, real, fake)
        contents = [self._contents.get(each, Content()) for each in (self._plan.sets[0], planned)]
        diagnosis, seen = self._diagnosis(real, fake, contents)
        uncertainty = self.explanations.uncertainty(real, fake, diagnosis)
        influence = self.explanations.influence(real, fake, numbers.get("fid"))
        exhibit = self.explanations.exhibit(real, fake, seen)

        def comparison() -> Comparison:
            lines = self._warnings(real, fake) + warnings
            lines += () if diagnosis is None else diagnosis.lines
            if uncertainty is not None:
                lines += _uncertainty_warnings(fake.path, uncertainty, self._plan.labels.title("fid"))
            skipped = skipped_files(real.path, _statistics(real))
            skipped += skipped_files(fake.path, _statistics(fake)) if fake is not real else ()
            return Comparison(
                _set_result(real, contents[0]),
                _set_result(fake, contents[1]),
                {self._plan.labels.key(name): number for name, number in numbers.items()},
                tuple(map(self._run.console.shown, lines)),
                skipped,
                diagnosis,
                uncertainty,
                influence,
                self._plan.labels,
            )

        return self._world.on_rank_zero(comparison), exhibit

    def _warnings(self, real: MeasuredSet, fake: MeasuredSet) -> list[str]:
        names = real.path, fake.path
        if fake is not real and fake.path == real.path:  # one path, cropped or sampled in two ways
            names = f"{real.path} as REAL", f"{fake.path} as FAKE"
        sets = dict(zip(names, map(_statistics, (real, fake)), strict=True))
        settings = self._plan.settings
        layers = {settings.layer_of(metric): None for metric in settings.chosen if metric.frechet}
        return [
            *self._plan.warnings,
            *set_warnings(sets, layers),
            *([f"{fake.path} is the same set as REAL: the values say nothing about a generator"] * (fake is real)),
            *pair_warnings(names[0], _statistics(real), names[1], _statistics(fake), frechet=bool(layers)),
        ]

    def _possible(self, real: MeasuredSet, fake: MeasuredSet, planned: SetPlan) -> list[Requested]:
        """The metrics for which the sets have enough images, once an iterable has been counted. A collective."""

        def check() -> tuple[dict[str, str], list[str]]:
            first = replace(self._plan.sets[0], count=_statistics(real).count, holds="stream", fake=fake is real)
            sets = [first, replace(planned, count=_statistics(fake).count, holds="stream")]
            left_out, notes = {}, []
            for each in self._plan.settings.in_order:
                try:
                    check_count(each.metric, self._plan.settings, sets)
                except InputError as error:
                    if not each.optional:
                        raise
                    notes.append(f"{each.optional} omits '{each.metric.name}': {error.problem}")
                    left_out[each.metric.name] = error.problem
                    self._run.console.say(notes[-1], warns=True)
            return left_out, notes

        left_out, notes = self._world.on_rank_zero(check)
        self.left_out |= left_out
        self.notes += notes
        return [each for each in self._plan.settings.in_order if each.metric.name not in left_out]

    # --- metrics -----------------------------------------------------------------------------------------------------

    def _numbers(
        self, metrics: Sequence[Requested], real: MeasuredSet, fake: MeasuredSet
    ) -> tuple[dict[str, float], list[str]]:
        """The values, and the warnings about them. A collective."""
        numbers: dict[str, float] = {}
        warnings: list[str] = []
        for metric in (each.metric for each in metrics):
            layer = self._plan.settings.layer_of(metric)
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
        file = text_of(self._plan.settings.weights)
        return self._weights or load_weights(file, self._run.console.say, classifier=True)

    def _diagnosis(
        self, real: MeasuredSet, fake: MeasuredSet, contents: Sequence[Content]
    ) -> tuple[Diagnosis | None, tuple[SetInspection | None, SetInspection | None]]:
        settings = self._plan.settings
        if not settings.diagnose:
            return None, (None, None)
        seen: tuple[SetInspection | None, SetInspection | None] = (None, None)

        def diagnose() -> Diagnosis:
            nonlocal seen
            self._real = self._real or _inspected(real, contents[0])
            seen = self._real, self._real if fake is real else _inspected(fake, contents[1])
            return diagnosis_of(*seen, settings.max_duplicates)

        with self._run.clock("diagnosis"):
            return self._world.on_rank_zero(diagnose), seen


def _inspected(measured: MeasuredSet, content: Content) -> SetInspection | None:
    passed_over = None if content.images is None else content.images.passed_over
    return inspect_set(measured.path, _statistics(measured).pictures, passed_over)


def _set_result(measured: MeasuredSet, content: Content) -> SetResult:
    statistics = _statistics(measured)
    return SetResult(
        measured.path,
        statistics.count,
        statistics.found,
        known_settings(statistics.config),
        statistics.framing,
        None if content.images is None else content.images.passed_over,
        facts_of(measured, content.reference, content.sha256),
    )


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
