"""The values of the classes of REAL and a FAKE, or of their folders, and the warnings about
them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import partial
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from fidtool.diagnose.balance import balance_warnings
from fidtool.distances.error_bars import error_bars, fewest_images, interval
from fidtool.distances.sampling_bias import expected_distance
from fidtool.features.protocol import FEATURES
from fidtool.metrics.registry import RequestedMetric
from fidtool.names import format_count, shorten
from fidtool.result.explanations import Classes, ClassResult, Interval
from fidtool.run.compute import ComputedValues, MetricRunner
from fidtool.run.groups import Groups
from fidtool.run.plan import Plan
from fidtool.run.sets import SetPlan
from fidtool.statistics.set_statistics import LayerStatistics, MeasuredSet, Statistics


def _select_rows(
    measured: MeasuredSet, rows: NDArray[np.int64], runner: MetricRunner
) -> MeasuredSet:
    """Return some images of a set with mean and covariance of their features on rank 0. A
    collective.
    """
    features = {layer: vectors[rows] for layer, vectors in measured.features.items()}

    def compute_statistics() -> Statistics:
        layers = {}
        for layer, vectors in features.items():
            gaussian = runner.feature_settings(layer).gaussian(vectors, np.arange(len(rows)))
            layers[layer] = LayerStatistics(gaussian.mu, gaussian.sigma)
        order = measured.statistics.order
        return Statistics(layers, len(rows), order=None if order is None else order[rows])

    statistics = runner.run.world.only_on_rank_zero(compute_statistics)
    return MeasuredSet(measured.path, statistics or Statistics({}), features)


def compute_classes(
    groups: Groups,
    metrics: Sequence[RequestedMetric],
    real: MeasuredSet,
    fake: MeasuredSet,
    set_plan: SetPlan,
    computed: ComputedValues,
    runner: MetricRunner,
) -> list[ClassResult]:
    """Return each class with the values and error bars that its images suffice for, if requested.
    A collective.

    Args:
        set_plan: the plan of the FAKE.
        computed: its values. A class has the mean of those of its single images.
        runner: computes the metrics.
    """
    plan = runner.plan
    settings = plan.settings
    if not settings.grouped_by:
        return [
            ClassResult(name, len(rows_of_real), len(rows_of_fake))
            for name, (rows_of_real, rows_of_fake) in groups.items()
        ]
    of_sets = [
        requested
        for requested in metrics
        if plan.metric_values(requested)[0].key not in computed.of_images
    ]
    distance = plan.distance if settings.uncertainty else None
    total = sum(len(rows) for _, rows in groups.values())
    results = []
    with runner.run.console.show_progress(
        f"{fake.path} by {settings.grouped_by}", total
    ) as advance:
        for name, (rows_of_real, rows_of_fake) in groups.items():
            images = len(rows_of_fake)
            fewest = min(len(rows_of_real), images)
            numbers = {}
            corrected = None
            is_large = fewest >= (settings.min_class or 0)
            if images and is_large:
                for key, values in computed.of_images.items():
                    numbers[key] = math.fsum(values[rows_of_fake]) / images
            possible = []
            if fewest > 1 and is_large:
                possible = [
                    requested
                    for requested in of_sets
                    if settings.too_few_error(requested, fewest) is None
                ]
            if possible:
                part_of_real = _select_rows(real, rows_of_real, runner)
                part = _select_rows(fake, rows_of_fake, runner)
                numbers |= runner.compute(possible, part_of_real, part, set_plan).numbers
                if distance and images >= fewest_images(distance.features.dims):
                    corrected = runner.run.world.on_rank_zero(
                        partial(_correct_distance, part_of_real, part, runner)
                    )
            results.append(ClassResult(name, len(rows_of_real), images, numbers, corrected))
            advance(images)
    return results


def _correct_distance(real: MeasuredSet, fake: MeasuredSet, runner: MetricRunner) -> Interval:
    """The bias-corrected Fréchet distance of a class. On rank 0."""
    parts, _ = error_bars(
        real.gaussian(), fake.features[FEATURES], runner.feature_settings(FEATURES)
    )
    return Interval(*interval(parts))


def summarize_classes(results: Sequence[ClassResult], plan: Plan) -> Classes | None:
    """Return all classes with mean and worst of each value; None if they are neither requested nor
    common to both.
    """
    grouped_by = plan.settings.grouped_by
    if not grouped_by and sum(bool(result.real and result.fake) for result in results) < 2:
        return None
    mean: dict[str, float] = {}
    worst = {}
    order = [*results]
    for value in plan.values:
        key = value.key
        rated = [result for result in results if key in result.metrics]
        if not rated:
            continue
        sign = 1 if value.number.better == "higher" else -1
        rated.sort(key=lambda result: sign * result.metrics[key])
        if not mean:
            order = [*rated, *(result for result in results if key not in result.metrics)]
        mean[key] = math.fsum(result.metrics[key] for result in rated) / len(rated)
        if value.number.better:
            worst[key] = rated[0].name, rated[0].metrics[key]
    return Classes(grouped_by or "class", tuple(order), mean, worst, plan.settings.min_class)


def class_warnings(
    classes: Classes, real: MeasuredSet, names: Collection[str], plan: Plan
) -> list[str]:
    """Return warnings about few images, too few for some of the values, by key, or other shares
    than REAL's.
    """
    lines = []
    kind = classes.kind
    keys = {value.key for value in plan.values if value.key in names}
    missing = []
    left_out = {*classes.left_out}
    if plan.settings.grouped_by:
        lines += _one_sided_warnings(classes)
        for result in classes.classes:
            is_common = result.smaller > 0 and result.name not in left_out
            if is_common and not keys <= result.metrics.keys():
                missing.append(result.counted)
    if missing:
        lines.append(
            f"too few images for some values in {format_count(len(missing), kind)}: "
            f"{shorten(', '.join(missing))}"
        )
    elif kind == "class" and not lines:
        counts = {result.name: (result.real, result.fake) for result in classes.classes}
        lines += balance_warnings(counts)
    distance = plan.distance
    if distance is None:
        return lines
    rated = [result for result in classes.classes if distance.key in result.metrics]
    fewest = fewest_images(distance.features.dims)
    least = min(rated, key=attrgetter("smaller"), default=None)
    if least is None or least.smaller >= fewest:
        return lines
    about = expected_distance(real.gaussian(), least.fake, least.real)
    lines.append(
        f"the Fréchet distance is too high if a {kind} has as few as {least.real} real and "
        f"{least.fake} generated images ({least.name}): for so few samples from the whole of "
        f"REAL, a perfect generator would have about {about:.3g}; only compare it with distances "
        "for equal numbers of images"
    )
    if max(result.smaller for result in rated) > 2 * least.smaller:
        total = math.fsum(result.fake * result.metrics[distance.key] for result in rated)
        weighted = total / sum(result.fake for result in rated)
        lines.append(
            f"the mean Fréchet distance of {classes.mean[distance.key]:.5g} gives each "
            f"{kind} the same weight, although small ones have far too high distances: weighted by "
            f"the number of generated images, the mean is {weighted:.5g}"
        )
    return lines


def _one_sided_warnings(classes: Classes) -> list[str]:
    """Return which classes only REAL or only FAKE has."""
    in_real = [part.name for part in classes.classes if not part.fake]
    in_fake = [part.name for part in classes.classes if not part.real]
    return [
        f"{format_count(len(names), classes.kind)} {'is' if len(names) == 1 else 'are'} "
        f"only in {side}: "
        f"{shorten(', '.join(names))}"
        for side, names in (("REAL", in_real), ("FAKE", in_fake))
        if names
    ]
