"""The values of the classes of REAL and a FAKE, or of their folders, and the warnings about them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fidtool.diagnose.balance import balance_warnings, listed
from fidtool.distances.error_bars import error_bars, fewest_images, interval
from fidtool.distances.exact import feature_settings
from fidtool.distances.sampling_bias import perfect_distance
from fidtool.errors import Alert, InputError
from fidtool.explanations import Classes, ClassResult, Interval
from fidtool.features.protocol import FEATURES
from fidtool.labels import Labels
from fidtool.metrics.registry import Requested
from fidtool.pipeline.plan import Plan
from fidtool.pipeline.run import RunContext
from fidtool.settings import Settings
from fidtool.statistics.set_statistics import LayerStatistics, MeasuredSet


@dataclass(frozen=True)
class ClassComparer:
    """Compares the classes of a FAKE with those of REAL. All ranks create and use it in the same way.

    Attributes:
        numbers: returns the values of some metrics by plain name, of REAL and a FAKE; to the other arguments it adds
            warnings and the values of single images. A collective.
    """

    run: RunContext
    plan: Plan
    real: MeasuredSet
    fake: MeasuredSet
    metrics: Sequence[Requested]
    numbers: Callable[[Sequence[Requested], MeasuredSet, MeasuredSet, list[str], dict[str, Any]], Mapping[str, float]]

    def compare(self, groups: Mapping[str, Sequence[NDArray[np.int64]]]) -> list[ClassResult]:
        """Returns the values of each class, from its rows in the features of both sets. A collective."""
        found, images = list[ClassResult](), sum(len(fake) for _, fake in groups.values())
        with self.run.console.processing(f"{self.fake.path} by class", images) as advance:
            for name, (real, fake) in groups.items():
                found.append(self._compare(ClassResult(name, len(real), len(fake)), real, fake))
                advance(len(fake))
        return found

    def _compare(self, found: ClassResult, real_rows: NDArray[np.int64], fake_rows: NDArray[np.int64]) -> ClassResult:
        reasons = {each.name: _why_left_out(each, self.plan.settings, found) for each in self.metrics}
        kept, key = [each for each in self.metrics if not reasons[each.name]], self.plan.labels.key
        found = replace(found, left_out={name: why for name, why in reasons.items() if why})
        if not kept:
            return found
        real, fake = self._part(self.real, real_rows, kept), self._part(self.fake, fake_rows, kept)
        numbers = {key(each): value for each, value in self.numbers(kept, real, fake, [], {}).items()}
        bars = self.run.world.only_on_rank_zero(lambda: self._bars(real, fake)) if key("fid") in numbers else None
        perfect, corrected = bars or (None, None)
        return replace(found, metrics=numbers, perfect=perfect, corrected=corrected)

    def _part(self, measured: MeasuredSet, rows: NDArray[np.int64], metrics: Sequence[Requested]) -> MeasuredSet:
        """Some images of a set with mean and covariance of their features on rank zero. A collective."""
        layers, ascending = {each.layer: None for each in metrics}, np.sort(rows)

        def statistics() -> dict[str, LayerStatistics]:
            found = {}
            for layer in layers:
                features = feature_settings(self.plan.definitions.get(layer), self.run.device.exact_sums)
                gaussian = features.gaussian(measured.features[layer], ascending, self.run.world)
                found[layer] = LayerStatistics(gaussian.mu, gaussian.sigma)
            return found

        return measured.of_rows(rows, self.run.world.only_on_rank_zero(statistics) or {})

    def _bars(self, real: MeasuredSet, fake: MeasuredSet) -> tuple[float, Interval | None]:
        """What a perfect generator would have, and the error bars of a class of many images. On rank zero."""
        target, rows = real.gaussian(FEATURES), fake.features[FEATURES]
        with self.run.clock("uncertainty"):
            perfect, bar = perfect_distance(target, len(rows)), None
            if self.plan.settings.uncertainty and len(rows) >= fewest_images(rows.shape[1]):
                features = feature_settings(self.plan.definitions.get(FEATURES), self.run.device.exact_sums)
                bar = Interval(*interval(error_bars(target, rows, features, self.run.world)[0]))
        return perfect, bar


def _why_left_out(asked: Requested, settings: Settings, found: ClassResult) -> str:
    """Why a metric is not computed for a class of few images; empty if it is."""
    if min(found.real, found.fake) < 2:
        return f"there are {found.real} images in REAL and {found.fake} in FAKE, but 2 are needed"
    images = min(found.real, found.fake) if asked.metric.real_features else found.fake
    try:
        asked.metric.check(replace(settings.facts(asked.layer), images=images, has=f"{found.name} has {images}"))
    except InputError as error:
        return error.stated
    return ""


def classes_of(found: Sequence[ClassResult], settings: Settings, labels: Labels) -> Classes | None:
    """Return all classes with mean and worst of each value; None if they are neither requested nor common to both."""
    if not settings.grouped_by and sum(bool(each.real and each.fake) for each in found) < 2:
        return None
    mean, worst, order = dict[str, float](), dict[str, tuple[str, float]](), [*found]
    for name, number in labels.numbers.items():
        key, sign = labels.key(name), -1.0 if number.better == "higher" else 1.0
        if values := {each.name: each.metrics[key] for each in found if key in each.metrics}:
            if not mean:
                order.sort(
                    key=lambda each: (not each.metrics, each.name not in values, -sign * values.get(each.name, 0.0))
                )
            mean[key] = math.fsum(values.values()) / len(values)
            if number.better:
                worst[key] = max(values.items(), key=lambda item: sign * item[1])
    return Classes("folder" if settings.per_folder else "class", tuple(order), mean, worst)


def class_warnings(path: str, found: Classes, settings: Settings, labels: Labels) -> list[Alert]:
    """Return warnings about the classes of the FAKE ``path``: their balance, and those of few images."""
    lines = list[str]()
    for name, lacking in (("REAL", "fake"), ("FAKE", "real")) if settings.grouped_by else ():
        if only := sorted(each.name for each in found.classes if not vars(each)[lacking]):
            lines.append(f"{found.counted(len(only))} only in {name}, without values: {listed(only)}")
    if found.kind == "class" and not lines:
        lines += balance_warnings({each.name: (each.real, each.fake) for each in found.classes})
    rated = (each for each in found.classes if each.perfect is not None)
    few = min(rated, key=lambda each: min(each.real, each.fake), default=None)
    if few and (images := min(few.real, few.fake)) < fewest_images(labels.dims_of("fid")):
        lines.append(
            f"values of a {found.kind} are of as few as {images} images: a Fréchet distance of so few is too high (a "
            f"perfect generator would have about {few.perfect:.3g} in {few.name}), has no error bars, and is only "
            "comparable with that of equal numbers of images"
        )
    return [Alert(f"{path}: {line}", "medium") for line in lines]
