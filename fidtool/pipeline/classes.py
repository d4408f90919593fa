"""The values of the classes of REAL and a FAKE, or of their folders, and the warnings about them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fidtool.diagnose.balance import balance_warnings, listed
from fidtool.distances.error_bars import error_bars, fewest_images, interval
from fidtool.distances.exact import FeatureSettings, feature_settings
from fidtool.distances.sampling_bias import perfect_distance
from fidtool.errors import Alert, InputError
from fidtool.explanations import Classes, ClassResult, ClassSummary, Interval
from fidtool.labels import Labels
from fidtool.metrics.metric import FeatureSet
from fidtool.metrics.registry import Requested
from fidtool.names import counted
from fidtool.pipeline.groups import Group
from fidtool.pipeline.plan import Plan, check_count
from fidtool.pipeline.run import RunContext
from fidtool.pipeline.sets import SetPlan
from fidtool.settings import Settings
from fidtool.statistics.moments import Gaussian
from fidtool.statistics.set_statistics import MeasuredSet


class MetricInput(NamedTuple):
    """A metric of a run, and the sets that it is computed of."""

    asked: Requested
    real: FeatureSet
    fake: FeatureSet


@dataclass(frozen=True)
class ClassComparer:
    """Compares each group of a FAKE with that of REAL. All ranks create and use it in the same way.

    Attributes:
        sets, measured: REAL and the FAKE.
        inputs: the metrics, of all images.
        numbers: computes their values from such inputs; to the other arguments it adds warnings and values of images.
    """

    run: RunContext
    plan: Plan
    sets: tuple[SetPlan, SetPlan]
    measured: tuple[MeasuredSet, MeasuredSet]
    inputs: Sequence[MetricInput]
    numbers: Callable[[Sequence[MetricInput], list[str], dict[str, Any]], dict[str, float]]

    def compare(self, groups: Sequence[Group]) -> list[ClassResult]:
        """Returns the values of each group. A collective."""
        label, images = f"{self.measured[1].path} by class", sum(len(each.fake) for each in groups)
        with self.run.console.processing(label, images) as advance:
            return [self._values(group, advance) for group in groups]

    def _values(self, group: Group, advance: Callable[[int], None]) -> ClassResult:
        left_out = {each.asked.name: self._why_left_out(each.asked, group) for each in self.inputs}
        inputs = [each for each in self.inputs if not left_out[each.asked.name]]
        gaussians = {layer: self._gaussians(layer, group) for layer in {each.asked.layer: None for each in inputs}}
        parts = []
        for asked, real, fake in inputs:
            one, other = gaussians[asked.layer]
            parts.append(MetricInput(asked, real.of_rows(group.real, one), fake.of_rows(group.fake, other)))
        numbers, key = self.numbers(parts, [], {}), self.plan.labels.key
        bars = self.run.world.only_on_rank_zero(lambda: self._bars(parts, group)) or ({}, {})
        advance(len(group.fake))
        return ClassResult(
            group.name,
            len(group.real),
            len(group.fake),
            {key(name): value for name, value in numbers.items()},
            *bars,
            {name: reason for name, reason in left_out.items() if reason},
        )

    def _why_left_out(self, asked: Requested, group: Group) -> str:
        """Why a metric is not computed for a group of few images; empty if it is."""
        counts = len(group.real), len(group.fake)
        if min(counts) < 2:
            return f"REAL has {counted(counts[0], 'image')} and FAKE {counts[1]}, but both need at least 2"
        parts = [
            replace(each, path=f"{group.name} in {each.path}", count=count, holds="stream", fake=role)
            for each, count, role in zip(self.sets, counts, (False, True), strict=True)
        ]
        try:
            check_count(asked.metric, self.plan.settings, parts)
        except InputError as error:
            return error.stated
        return ""

    def _gaussians(self, layer: str, group: Group) -> list[Gaussian | None]:
        """Mean and covariance of a group in both sets, on rank zero. A collective."""
        features, world = self._features(layer), self.run.world
        pairs = zip(self.measured, (np.sort(group.real), np.sort(group.fake)), strict=True)
        return [
            world.only_on_rank_zero(partial(features.gaussian, each.features[layer], rows, world))
            for each, rows in pairs
        ]

    def _features(self, layer: str) -> FeatureSettings:
        return feature_settings(self.plan.definitions.get(layer), self.run.device.exact_sums)

    def _bars(self, inputs: Sequence[MetricInput], group: Group) -> tuple[dict[str, float], dict[str, Interval]]:
        """What a perfect generator would have in each network, and the error bars of large groups. On rank zero."""
        perfect, corrected = dict[str, float](), dict[str, Interval]()
        real, fake = self.measured
        for asked, of_real, _ in inputs:
            if asked.metric.name != "fid" or of_real.gaussian is None:
                continue
            key, rows = self.plan.labels.key(asked.name), fake.features[asked.layer]
            with self.run.clock("uncertainty"):
                perfect[key] = perfect_distance(of_real.gaussian, len(group.fake))
                many = self.plan.settings.uncertainty and len(group.fake) >= fewest_images(rows.shape[1])
                if many and fake is not real:
                    parts, _ = error_bars(
                        of_real.gaussian, rows[group.fake], self._features(asked.layer), self.run.world
                    )
                    corrected[key] = Interval(*interval(parts))
        return perfect, corrected


def classes_of(
    found: Sequence[ClassResult], settings: Settings, labels: Labels, dependent: Collection[str]
) -> Classes | None:
    """Return all classes with mean and worst of each value; None if they are neither requested nor common to both.

    The ``dependent`` values, by their keys in the JSON, are of images that are no independent samples: they have no
    error bars.
    """
    if not settings.grouped_by and sum(bool(each.real and each.fake) for each in found) < 2:
        return None
    order = [
        replace(each, corrected={k: bar for k, bar in each.corrected.items() if k not in dependent}) for each in found
    ]
    summary = dict[str, ClassSummary]()
    for name, number in labels.numbers.items():
        values = {each.name: value for each in found if (value := each.metrics.get(labels.key(name))) is not None}
        if not values:
            continue
        sign = {"lower": 1.0, "higher": -1.0, "": 0.0}[number.better]
        worst = max(values, key=lambda each: sign * values[each]) if sign else ""
        summary[labels.key(name)] = ClassSummary(
            math.fsum(values.values()) / len(values), len(values), values[worst] if worst else None, worst
        )
        if len(summary) == 1:
            order.sort(key=lambda each: (each.name not in values, -sign * values.get(each.name, 0.0)))
    return Classes("folder" if settings.per_folder else "class", tuple(order), summary)


def class_warnings(path: str, classes: Classes, settings: Settings, labels: Labels) -> list[Alert]:
    """Return warnings about the classes of the FAKE ``path``."""
    alerts = list[Alert]()
    for name, lacking in (("REAL", "fake"), ("FAKE", "real")) if settings.grouped_by else ():
        if only := sorted(each.name for each in classes.classes if not vars(each)[lacking]):
            number = counted(len(only), classes.kind, "classes" if classes.kind == "class" else "")
            alerts.append(Alert(f"{path}: {number} only in {name}, without values: {listed(only)}", "medium"))
    if classes.kind == "class" and not alerts:
        alerts += balance_warnings(path, {each.name: (each.real, each.fake) for each in classes.classes})
    rated = [each for each in classes.classes if each.perfect]
    smallest = min(rated, key=lambda each: min(each.real, each.fake), default=None)
    if smallest and (images := min(smallest.real, smallest.fake)) < fewest_images(labels.dims_of("fid")):
        perfect = f"a perfect generator would have about {max(smallest.perfect.values()):.3g} in {smallest.name}"
        text = (
            f"the values of each {classes.kind} are of as few as {images} images: a Fréchet distance of so few is too "
            f"high ({perfect}), has no error bars, and is only comparable with one of equal numbers of images"
        )
        alerts.append(Alert(f"{path}: {text}", "medium"))
    return alerts
