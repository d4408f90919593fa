"""The values of the classes of REAL and a FAKE, or of their folders, and the warnings about them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fidtool.diagnose.balance import balance_warnings
from fidtool.distances.error_bars import error_bars, fewest_images, interval
from fidtool.distances.exact import feature_settings
from fidtool.distances.sampling_bias import perfect_distance
from fidtool.features.protocol import FEATURES
from fidtool.metrics.registry import Requested
from fidtool.names import shortened
from fidtool.pipeline.compute import MetricRunner
from fidtool.pipeline.groups import Groups
from fidtool.pipeline.plan import Plan
from fidtool.pipeline.run import RunContext
from fidtool.pipeline.sets import SetPlan
from fidtool.result.explanations import Classes, ClassResult, Interval
from fidtool.statistics.set_statistics import LayerStatistics, MeasuredSet


def part_of(measured: MeasuredSet, rows: NDArray[np.int64], plan: Plan, run: RunContext) -> MeasuredSet:
    """Returns some images of a set with mean and covariance of their features on rank zero. A collective."""
    known, features = measured.statistics, {layer: each[rows] for layer, each in measured.features.items()}

    def layers() -> dict[str, LayerStatistics]:
        found = {}
        for layer, each in features.items():
            exact = feature_settings(plan.definitions.get(layer), run.device.torch_device, run.world)
            gaussian = exact.gaussian(each, np.arange(len(rows)))
            found[layer] = LayerStatistics(gaussian.mu, gaussian.sigma)
        return found

    of_layers, order = run.world.only_on_rank_zero(layers) or {}, known.order
    order = None if order is None else order[rows]
    statistics = replace(known, layers=of_layers, count=len(rows), order=order, pictures=None)
    return MeasuredSet(measured.path, statistics, features)


def values_of_classes(
    groups: Groups,
    metrics: Sequence[Requested],
    real: MeasuredSet,
    fake: MeasuredSet,
    planned: SetPlan,
    of_images: Mapping[str, NDArray[np.float64]],
    runner: MetricRunner,
) -> list[ClassResult]:
    """Returns each class with the values and error bars that its images suffice for, if requested. A collective.

    Args:
        planned: the plan of the FAKE.
        of_images: values of its single images, of which a class has the mean.
        runner: computes the metrics.
    """
    plan, run = runner.plan, runner.run
    if not plan.settings.grouped_by:
        return [ClassResult(name, len(one), len(other)) for name, (one, other) in groups.items()]
    results, of_sets = list[ClassResult](), [each for each in metrics if plan.values_of(each)[0].key not in of_images]
    distance = plan.distance
    images = sum(len(rows) for _, rows in groups.values())
    with run.console.processing(f"{fake.path} by {plan.settings.grouped_by}", images) as advance:
        for name, (one, other) in groups.items():
            found = {each: math.fsum(single[other]) / len(other) for each, single in of_images.items() if len(other)}
            bar = None
            fewest = min(len(one), len(other))
            kept = [each for each in of_sets if fewest > 1 and plan.settings.too_few(each, fewest) is None]
            if kept:
                parts = part_of(real, one, plan, run), part_of(fake, other, plan, run)
                found |= runner.compute(kept, *parts, planned).numbers
                if distance and plan.settings.uncertainty and len(other) >= fewest_images(distance.features.dims):
                    bar = _corrected(*parts, plan, run)
            results.append(ClassResult(name, len(one), len(other), found, bar))
            advance(len(other))
    return results


def _corrected(real: MeasuredSet, fake: MeasuredSet, plan: Plan, run: RunContext) -> Interval:
    """The bias-corrected Fréchet distance of a class. A collective."""
    exact = feature_settings(plan.definitions.get(FEATURES), run.device.torch_device, run.world)
    rows = fake.features[FEATURES]
    return run.world.on_rank_zero(lambda: Interval(*interval(error_bars(real.gaussian(), rows, exact)[0])))


def classes_of(found: Sequence[ClassResult], plan: Plan) -> Classes | None:
    """Returns all classes with mean and worst of each value; None if they are neither requested nor common to both."""
    if not plan.settings.grouped_by and sum(bool(each.real and each.fake) for each in found) < 2:
        return None
    mean, worst, order = dict[str, float](), dict[str, tuple[str, float]](), [*found]
    for value in plan.values:
        key, sign = value.key, 1.0 if value.number.better == "higher" else -1.0
        if rated := sorted((each for each in found if key in each.metrics), key=lambda each: sign * each.metrics[key]):
            order = order if mean else [*rated, *(each for each in found if key not in each.metrics)]
            mean[key] = math.fsum(each.metrics[key] for each in rated) / len(rated)
            if value.number.better:
                worst[key] = rated[0].name, rated[0].metrics[key]
    return Classes(plan.settings.grouped_by or "class", tuple(order), mean, worst)


def class_warnings(found: Classes, real: MeasuredSet, names: Collection[str], plan: Plan) -> list[str]:
    """Returns warnings about few images, too few for some of the values, by key, or other shares than REAL's."""
    lines, asked = list[str](), plan.settings.grouped_by
    keys = {value.key for value in plan.values if value.key in names}
    if lacking := [each for each in found.classes if asked and not keys <= each.metrics.keys()]:
        few = shortened(", ".join(f"{each.name} ({each.real} in REAL, {each.fake} in FAKE)" for each in lacking))
        lines.append(f"too few images for all values of a {found.kind} in {len(lacking)} of them: {few}")
    elif found.kind == "class":
        lines += balance_warnings({each.name: (each.real, each.fake) for each in found.classes})
    distance = plan.distance
    if distance is None:
        return lines
    fid = distance.key
    rated = [each for each in found.classes if fid in each.metrics]
    least = min(rated, key=lambda each: min(each.real, each.fake), default=None)
    if least is not None and min(least.real, least.fake) < fewest_images(distance.features.dims):
        sizes = f"{least.real} real and {least.fake} generated images"
        about = f"{perfect_distance(real.gaussian(), least.fake, least.real):.3g}"
        lines.append(
            f"the Fréchet distance of a {found.kind} of as few as {sizes} ({least.name}) is too high: a perfect "
            f"generator of all of REAL would have about {about}; compare it only with that of equal numbers of images"
        )
        if max(min(each.real, each.fake) for each in rated) > 2 * min(least.real, least.fake):
            weighted = math.fsum(each.fake * each.metrics[fid] for each in rated) / sum(each.fake for each in rated)
            lines.append(
                f"the mean Fréchet distance of {found.mean[fid]:.5g} counts each {found.kind} the same, also small "
                f"ones with far too high distances: weighted by generated images, the mean is {weighted:.5g}"
            )
    return lines
