"""The values of the classes of REAL and a FAKE, or of their folders, and the warnings about
them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fidtool.diagnose.balance import balance_warnings
from fidtool.distances.error_bars import error_bars, fewest_images, interval
from fidtool.distances.sampling_bias import perfect_distance
from fidtool.features.protocol import FEATURES
from fidtool.metrics.registry import Requested
from fidtool.names import shortened
from fidtool.result.explanations import Classes, ClassResult, Interval
from fidtool.run.compute import Computed, MetricRunner
from fidtool.run.groups import Groups
from fidtool.run.plan import Plan
from fidtool.run.sets import SetPlan
from fidtool.statistics.set_statistics import LayerStatistics, MeasuredSet, Statistics


def _part_of(measured: MeasuredSet, rows: NDArray[np.int64], runner: MetricRunner) -> MeasuredSet:
    """Returns some images of a set with mean and covariance of their features on rank zero. A
    collective.
    """
    features = {layer: every[rows] for layer, every in measured.features.items()}

    def statistics() -> Statistics:
        layers = {}
        for layer, own in features.items():
            gaussian = runner.features(layer).gaussian(own, np.arange(len(rows)))
            layers[layer] = LayerStatistics(gaussian.mu, gaussian.sigma)
        order = measured.statistics.order
        return Statistics(layers, len(rows), order=None if order is None else order[rows])

    found = runner.run.world.only_on_rank_zero(statistics)
    return MeasuredSet(measured.path, found or Statistics({}), features)


def values_of_classes(
    groups: Groups,
    metrics: Sequence[Requested],
    real: MeasuredSet,
    fake: MeasuredSet,
    planned: SetPlan,
    computed: Computed,
    runner: MetricRunner,
) -> list[ClassResult]:
    """Returns each class with the values and error bars that its images suffice for, if requested.
    A collective.

    Args:
        planned: the plan of the FAKE.
        computed: its values. A class has the mean of those of its single images.
        runner: computes the metrics.
    """
    plan, run, results = runner.plan, runner.run, list[ClassResult]()
    if not plan.settings.grouped_by:
        return [ClassResult(name, len(one), len(other)) for name, (one, other) in groups.items()]
    of_sets = [asked for asked in metrics if plan.values_of(asked)[0].key not in computed.of_images]
    distance = plan.distance if plan.settings.uncertainty else None
    images = sum(len(rows) for _, rows in groups.values())
    with run.console.processing(f"{fake.path} by {plan.settings.grouped_by}", images) as advance:
        for name, (one, other) in groups.items():
            result = ClassResult(name, len(one), len(other))
            if len(other):
                means = {
                    key: math.fsum(values[other]) / len(other)
                    for key, values in computed.of_images.items()
                }
                result = replace(result, metrics=means)
            fewest = min(len(one), len(other))
            kept = [
                asked
                for asked in of_sets
                if fewest > 1 and plan.settings.too_few(asked, fewest) is None
            ]
            if kept:
                usual, generated = _part_of(real, one, runner), _part_of(fake, other, runner)
                values = runner.compute(kept, usual, generated, planned).numbers
                result = replace(result, metrics={**result.metrics, **values})
                if distance and len(other) >= fewest_images(distance.features.dims):
                    corrected = run.world.on_rank_zero(
                        partial(_corrected, usual, generated, runner)
                    )
                    result = replace(result, corrected=corrected)
            results.append(result)
            advance(len(other))
    return results


def _corrected(real: MeasuredSet, fake: MeasuredSet, runner: MetricRunner) -> Interval:
    """The bias-corrected Fréchet distance of a class. On rank zero."""
    parts, _ = error_bars(real.gaussian(), fake.features[FEATURES], runner.features(FEATURES))
    return Interval(*interval(parts))


def classes_of(found: Sequence[ClassResult], plan: Plan) -> Classes | None:
    """Returns all classes with mean and worst of each value; None if they are neither requested nor
    common to both.
    """
    if not plan.settings.grouped_by and sum(bool(each.real and each.fake) for each in found) < 2:
        return None
    mean, worst, order = dict[str, float](), dict[str, tuple[str, float]](), [*found]
    for value in plan.values:
        key, sign = value.key, 1.0 if value.number.better == "higher" else -1.0
        if rated := sorted(
            (each for each in found if key in each.metrics),
            key=lambda each: sign * each.metrics[key],
        ):
            order = (
                order if mean else [*rated, *(each for each in found if key not in each.metrics)]
            )
            mean[key] = math.fsum(each.metrics[key] for each in rated) / len(rated)
            if value.number.better:
                worst[key] = rated[0].name, rated[0].metrics[key]
    return Classes(plan.settings.grouped_by or "class", tuple(order), mean, worst)


def class_warnings(
    found: Classes, real: MeasuredSet, names: Collection[str], plan: Plan
) -> list[str]:
    """Returns warnings about few images, too few for some of the values, by key, or other shares
    than REAL's.
    """
    lines, asked = list[str](), plan.settings.grouped_by
    keys = {value.key for value in plan.values if value.key in names}
    if lacking := [each for each in found.classes if asked and not keys <= each.metrics.keys()]:
        few = shortened(
            ", ".join(f"{each.name} ({each.real} in REAL, {each.fake} in FAKE)" for each in lacking)
        )
        lines.append(
            f"too few images for all values of a {found.kind} in {len(lacking)} of them: {few}"
        )
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
            f"the Fréchet distance of a {found.kind} of as few as {sizes} ({least.name}) is too "
            f"high: a perfect generator of all of REAL would have about {about}; compare it only "
            "with that of equal numbers of images"
        )
        if max(min(each.real, each.fake) for each in rated) > 2 * min(least.real, least.fake):
            weighted = math.fsum(each.fake * each.metrics[fid] for each in rated) / sum(
                each.fake for each in rated
            )
            lines.append(
                f"the mean Fréchet distance of {found.mean[fid]:.5g} counts each {found.kind} the "
                "same, also small ones with far too high distances: weighted by generated "
                f"images, the mean is {weighted:.5g}"
            )
    return lines
