"""Comparison of one FAKE with REAL: metric values, diagnosis of the images, and warnings."""

from __future__ import annotations

import math
import os
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fidtool.diagnose.diagnosis import SetInspection, diagnosis_of, inspect_set, pair_warnings, set_warnings
from fidtool.distances.exact import FeatureSettings
from fidtool.errors import FidtoolError, InputError, ProgramError, RunError, on_every_rank
from fidtool.features.models.inception_weights import Weights, load_weights
from fidtool.features.protocol import FEATURES
from fidtool.metrics.metric import FeatureSet, Metric, MetricContext
from fidtool.metrics.registry import BUILT_IN
from fidtool.pipeline.explain import Exhibit, exhibit_of, gaussian_of, influence_of, uncertainty_of
from fidtool.pipeline.opening import check_number
from fidtool.pipeline.plan import Plan, check_count
from fidtool.pipeline.run import RunContext
from fidtool.pipeline.sets import Content, SetPlan
from fidtool.results import Comparison, SetResult, SkippedFile
from fidtool.settings import known_settings
from fidtool.statistics.set_statistics import MeasuredSet, facts_of
from fidtool.validation import text_of


class Comparer:
    """Compares each FAKE with REAL. All ranks create and use it in the same way.

    Attributes:
        left_out: the requested metrics that cannot be computed, with the reasons.
        notes: what to say about the metrics that an iterable has too few images for.
        parts: on rank zero, by the FAKEs that have error bars: the distances that `difference` compares.
    """

    def __init__(
        self, run: RunContext, plan: Plan, contents: Mapping[SetPlan, Content], known_weights: Weights | None
    ) -> None:
        self._run, self._world, self._plan, self._contents = run, run.world, plan, contents
        self._weights = known_weights
        self.left_out: dict[str, str] = dict(plan.left_out)
        self.notes: list[str] = []
        self.parts: dict[str, NDArray[np.float64]] = {}
        self._real: SetInspection | None = None
        """The inspection of REAL, on rank zero."""

    def compare(self, real: MeasuredSet, fake: MeasuredSet, planned: SetPlan) -> tuple[Comparison, Exhibit | None]:
        """Returns the comparison on every rank, and additional data for a report on rank zero. A collective."""
        metrics = self._plan.settings.chosen
        if "stream" in (self._plan.sets[0].holds, planned.holds):
            metrics = self._possible(real, fake, planned)
        numbers: dict[str, float] = {}
        warnings: list[str] = []
        exhibit: Exhibit | None = None
        for metric in metrics:
            numbers |= self._values(metric, real, fake, warnings)

        def conclude() -> Comparison:
            nonlocal exhibit
            comparison, exhibit = self._conclude(real, fake, planned, numbers, warnings)
            return comparison

        return self._world.on_rank_zero(conclude), exhibit

    def _possible(self, real: MeasuredSet, fake: MeasuredSet, planned: SetPlan) -> list[Metric]:
        """The metrics for which the sets have enough images, once an iterable has been counted. A collective."""

        def check() -> tuple[dict[str, str], list[str]]:
            pair = (self._plan.sets[0], real, fake is real), (planned, fake, True)
            sets, left_out, notes = [], {}, []
            for one, each, role in pair:
                assert each.statistics is not None
                sets.append(replace(one, count=each.statistics.count, holds="stream", fake=role))
                if role and one.holds == "stream":
                    found = (each.statistics.count or 0) + len(each.statistics.skipped)
                    check_number(self._plan.settings.expect, each.path, found)
            for metric, by in ((each.metric, each.optional) for each in self._plan.settings.in_order):
                try:
                    check_count(metric, self._plan.settings, sets)
                except InputError as error:
                    if not by:
                        raise
                    notes.append(f"{by} omits '{metric.name}': {error.problem}")
                    left_out[metric.name] = error.problem
                    self._run.console.say(notes[-1], warns=True)
            return left_out, notes

        left_out, notes = self._world.on_rank_zero(check)
        self.left_out |= left_out
        self.notes += notes
        return [metric for metric in self._plan.settings.chosen if metric.name not in left_out]

    def _values(self, metric: Metric, real: MeasuredSet, fake: MeasuredSet, warnings: list[str]) -> dict[str, float]:
        """The values of a metric; warnings about them are added to ``warnings``. A collective."""
        plan, run = self._plan, self._run
        layer, sets = plan.settings.layer_of(metric), []
        for each, with_features in ((real, metric.real_features), (fake, metric.fake_features)):
            gaussian = order = None
            if each.statistics is not None:
                gaussian, order = gaussian_of(each, layer), each.statistics.order
            sets.append(FeatureSet(each.path, each.features[layer] if with_features else None, gaussian, order))

        def classifier() -> Weights:
            return self._weights or load_weights(text_of(plan.settings.weights), run.console.say, classifier=True)

        features = FeatureSettings.of(plan.definitions.get(layer), run.device.exact_sums)
        context = MetricContext(self._world, features, classifier, warnings)
        try:
            with run.clock(metric.phase or metric.name):
                found = metric.compute(sets[0], sets[1], context)
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

    def _conclude(
        self,
        real: MeasuredSet,
        fake: MeasuredSet,
        planned: SetPlan,
        numbers: Mapping[str, float],
        warnings: Sequence[str],
    ) -> tuple[Comparison, Exhibit | None]:
        """The comparison, and additional data for a report if one is written. On rank zero."""
        plan, settings, world, clock = self._plan, self._plan.settings, self._world, self._run.clock
        one, other = real.statistics, fake.statistics
        assert one is not None
        assert other is not None
        contents = [self._contents[each] for each in (plan.sets[0], planned)]
        title, lines = plan.labels.title("fid"), [*self._set_warnings(real, fake), *warnings]
        features = FeatureSettings.of(plan.definitions.get(FEATURES), self._run.device.exact_sums)
        seen: tuple[SetInspection | None, SetInspection | None] = (None, None)
        diagnosis = uncertainty = harmful = exhibit = None
        if settings.diagnose:
            with clock("diagnosis"):
                self._real = self._real or _inspected(real, contents[0])
                seen = self._real, self._real if fake is real else _inspected(fake, contents[1])
                diagnosis = diagnosis_of(*seen, settings.max_duplicates)
            lines += diagnosis.lines
        if settings.uncertainty and diagnosis is not None:
            with clock("uncertainty"):
                uncertainty, parts = uncertainty_of(real, fake, diagnosis, features, world)
            if parts is not None:
                self.parts[fake.path] = parts
            else:
                points = ", ".join(f"{distance:.6g} for {images}" for images, distance in uncertainty.curve)
                known = f"; {title} by number of images: {points}" if points else ""
                lines.append(f"{fake.path}: no error bars: {uncertainty.withheld}{known}")
        if settings.influence and "fid" in numbers:
            with clock("influence"):
                harmful = influence_of(real, fake, numbers["fid"], title, features, world)
        if settings.report is not None:
            with_curve = settings.metric("fid") is not None and not settings.uncertainty
            with clock("exhibits"):
                exhibit = exhibit_of(real, fake, seen, with_curve, features, world)
        pair = ((real, one), (fake, other)) if fake is not real else ((real, one),)
        skipped = tuple(SkippedFile(each.path, bad.file, bad.reason) for each, its in pair for bad in its.skipped)
        comparison = Comparison(
            _set_result(real, contents[0]),
            _set_result(fake, contents[1]),
            {plan.labels.key(name): number for name, number in numbers.items()},
            tuple(map(self._run.console.shown, lines)),
            skipped,
            diagnosis,
            uncertainty,
            harmful,
            plan.labels,
        )
        return comparison, exhibit

    def _set_warnings(self, real: MeasuredSet, fake: MeasuredSet) -> list[str]:
        names, settings = (real.path, fake.path), self._plan.settings
        if fake is not real and fake.path == real.path:  # one path, cropped or sampled in two ways
            names = f"{real.path} as REAL", f"{fake.path} as FAKE"
        assert real.statistics is not None
        assert fake.statistics is not None
        sets = {names[0]: real.statistics, names[1]: fake.statistics}
        layers = {settings.layer_of(metric): None for metric in settings.chosen if metric.frechet}
        return [
            *self._plan.warnings,
            *set_warnings(sets, layers),
            *([f"{fake.path} is the same set as REAL: the values say nothing about a generator"] * (fake is real)),
            *pair_warnings(names[0], real.statistics, names[1], fake.statistics, frechet=bool(layers)),
        ]


def _inspected(measured: MeasuredSet, content: Content) -> SetInspection | None:
    assert measured.statistics is not None
    passed_over = None if content.images is None else content.images.passed_over
    return inspect_set(measured.path, measured.statistics.pictures, passed_over)


def _set_result(measured: MeasuredSet, content: Content) -> SetResult:
    statistics = measured.statistics
    assert statistics is not None
    return SetResult(
        measured.path,
        statistics.count,
        statistics.found,
        known_settings(statistics.config),
        statistics.framing,
        None if content.images is None else content.images.passed_over,
        facts_of(measured, content.reference, content.sha256),
    )


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
