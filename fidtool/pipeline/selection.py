"""Which of the metrics that ``all`` selects a run computes, and settings of metrics that depend on the sets' sizes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from fidtool.errors import InputError, RunError
from fidtool.features.protocol import FEATURES
from fidtool.metrics.metric import Metric
from fidtool.metrics.registry import in_order
from fidtool.pipeline.agreement import require_layer
from fidtool.pipeline.needs import ImageCount, SetNeeds, check_count, smallest_set
from fidtool.settings import Settings
from fidtool.statistics.set_statistics import Statistics


@dataclass(frozen=True)
class Sets:
    """What is known about the sets of a run before any image is processed. On rank zero."""

    files: Mapping[str, Statistics]
    counts: Mapping[str, ImageCount]
    reals: Collection[str]
    fakes: Collection[str]
    images: bool
    beside: Collection[str] = ()


@dataclass(frozen=True)
class Selection:
    """The settings, what to say and the reason for each metric left out, and one sentence for each setting adapted.

    What to say has the remedies as well.
    """

    settings: Settings
    left_out: Mapping[str, tuple[str, str]]
    adapted: tuple[str, ...]


def select(settings: Settings, sets: Sets, say: Callable[[str], None], fit: bool = True) -> Selection:
    """Omit those metrics of ``all`` that cannot be computed, and those whose weights cannot be obtained.

    With ``fit``, the others are adapted to the number of images. A run's only metric is not omitted.
    """
    chosen: list[Metric] = []
    adapted: list[str] = []
    left_out = {}
    for metric in in_order(settings.chosen):
        fitted, warning = _fitted(metric, sets) if fit and sets.reals else (metric, "")
        if by := settings.selects_if_possible(metric):
            try:
                _check(fitted, settings, sets)
            except InputError as error:
                left_out[metric.name] = f"{by} omits '{metric.name}': {error.problem}", error.problem
                continue
        elif len(settings.chosen) > 1 and sets.reals and _has_work(metric, settings, sets):
            try:
                metric.obtain(settings.network.weights, say)
            except RunError as error:
                if not chosen and metric is in_order(settings.chosen)[-1]:
                    raise
                left_out[metric.name] = f"'{metric.name}' is not computed: {error.text}", error.problem
                continue
        chosen.append(fitted)
        adapted += [warning] if warning else []
    order = [metric.name for metric in settings.chosen]
    chosen.sort(key=lambda metric: order.index(metric.name))
    if tuple(chosen) != settings.chosen:
        settings = replace(settings, metrics=tuple(chosen))
    return Selection(settings, left_out, tuple(adapted))


def _fitted(metric: Metric, sets: Sets) -> tuple[Metric, str]:
    found = smallest_set(metric, sets.counts, sets.fakes)
    if found is None:
        return metric, ""
    path, count = found
    changed, warning = metric.fitted(count.certain, f"{path} has {count}")
    return (replace(metric, **changed), warning) if changed else (metric, "")  # type: ignore[type-var]


def _check(metric: Metric, settings: Settings, sets: Sets) -> None:
    metric.check_network(settings.network.extractor, settings.dims)
    layer = settings.layer_of(metric)
    parts = {}
    for path, file in sets.files.items():
        if path in sets.beside:
            continue
        needed = (metric.real_features and path in sets.reals) or (metric.fake_features and path in sets.fakes)
        needs = SetNeeds(features=frozenset({layer} if needed else ()))
        parts[path] = require_layer(path, file, layer, f"features of {metric.numbers[0].title}", needs)
    if parts and not sets.images:
        path, part = next(iter(parts.items()))
        stated = (each.definition for each in parts.values() if each.definition is not None)
        metric.check_features(next(stated, None), part.dims, path)
    if sets.reals or metric.network() is not None:
        metric.check_available(settings.network.weights, sets.images and _has_work(metric, settings, sets))
    if sets.reals:
        check_count(metric, sets.counts, sets.fakes)


def _has_work(metric: Metric, settings: Settings, sets: Sets) -> bool:
    """Whether images go through the metric's own network, if it has one."""
    return metric.network() is None or (sets.images and settings.layer_of(metric) != FEATURES)
