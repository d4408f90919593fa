"""A whole run: from image sets to an evaluation, or to the statistics of one set."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fidtool.comparability import verify
from fidtool.diagnose.diagnosis import inspect_set, set_warnings
from fidtool.distances.jackknife import difference
from fidtool.distances.parallel import linear_algebra_threads
from fidtool.errors import InputError, on_every_rank, option
from fidtool.images.decode import DecodeOptions
from fidtool.images.framing import EXAMPLE, Crop
from fidtool.images.loader import Batch, ImageLookup, LoadOptions, load
from fidtool.pipeline.compare import Comparer, Exhibit
from fidtool.pipeline.measure import Measurer
from fidtool.pipeline.networks import RunNetworks
from fidtool.pipeline.opening import Opening, open_sets
from fidtool.pipeline.plan import Plan, choose, make_plan
from fidtool.pipeline.run import RunContext
from fidtool.pipeline.sets import Content, RequestedSet, SetPlan
from fidtool.results import Comparison, Difference, Evaluation, RunRecord
from fidtool.settings import Origin, Settings, changed_settings, versions
from fidtool.statistics.rows import RowStorage
from fidtool.statistics.set_statistics import MeasuredSet, Statistics
from fidtool.validation import declared


def _prepared(
    run: RunContext, requests: Sequence[RequestedSet], settings: Settings, evaluates: bool
) -> tuple[Plan, Measurer, Mapping[SetPlan, Content]]:
    """Opens the sets, builds the networks, and decides all that the run will do. A collective.

    Without ``evaluates``, there is one set, whose statistics are computed. Returns the plan, what measures the sets,
    and what they hold, which is empty on ranks other than zero.
    """
    opening: Opening | None = None

    def decide() -> tuple[Settings, bool]:
        nonlocal opening
        opened = open_sets(requests, settings, run.console, alone=not evaluates)
        opening = choose(opened, run.console, evaluates)
        return opening.settings, opening.images

    with run.clock("list"):
        chosen, images = run.world.on_rank_zero(decide)
    # Rank zero's default on all ranks: the plan must not depend on a rank's device.
    batch_size = run.world.broadcast(chosen.batch_size or run.device.default_batch_size)
    classifier = evaluates and chosen.metric("is") is not None
    networks = RunNetworks(run, chosen, batch_size, classifier, images)
    measured = networks.definitions or None
    plan = run.world.on_rank_zero(lambda: make_plan(cast(Opening, opening), measured, batch_size))
    contents = {} if opening is None else opening.contents
    return plan, Measurer(run, plan, requests, contents, networks), contents


def evaluate(
    run: RunContext, requests: Sequence[RequestedSet], settings: Settings, origin: Origin
) -> tuple[Evaluation, list[Exhibit | None], ImageLookup]:
    """Compute the metrics of each FAKE against REAL. A collective.

    The second and the third result are for a report, on rank zero.
    """
    plan, measurer, contents = _prepared(run, requests, settings, evaluates=True)
    comparer = Comparer(run, plan, contents, measurer.networks.weights)
    results: list[Comparison] = []
    exhibits: list[Exhibit | None] = []
    held: dict[SetPlan, MeasuredSet] = {}
    for position, planned in enumerate(plan.sets):
        # A set that occurs several times is measured once and held until its last occurrence.
        measured = held.pop(planned, None) or measurer.measure(planned)
        if planned in plan.sets[position + 1 :]:
            held[planned] = measured
        if position == 0:
            real = measured
            continue
        run.console.log(f"comparing {measured.path} with {real.path}")
        comparison, exhibit = comparer.compare(real, measured, planned)
        results.append(comparison)
        exhibits.append(exhibit)
        del measured  # so that only one FAKE's features are in memory at a time
    evaluation = run.world.on_rank_zero(lambda: _concluded(run, plan, comparer, results, measurer.work, origin))
    if plan.settings.preset is not None:
        verdicts = {f"{verdict.fake}: {verdict.line}": verdict for verdict in verify(evaluation)}
        evaluation = replace(evaluation, run=replace(evaluation.run, notes=(*evaluation.run.notes, *verdicts)))
        for line, verdict in verdicts.items():
            run.console.say(line, is_result=True, warns=verdict.comparable is False)
    for skipped in dict.fromkeys(skipped for result in results for skipped in result.skipped):
        run.console.warn(f"skipped {skipped.file}: {skipped.reason}")
    for line in dict.fromkeys([*evaluation.run.warnings, *(line for result in results for line in result.warnings)]):
        run.console.warn(line)
    images = [content.images for content in contents.values() if content.images is not None]
    spent = [each.path for each in plan.sets if each.holds == "stream"]
    return evaluation, exhibits, ImageLookup(images, spent, plan.settings.floats)


def compute_statistics(
    run: RunContext, requests: Sequence[RequestedSet], settings: Settings, sampled: bool, stored: int | None
) -> tuple[Statistics | None, NDArray[np.uint8] | None]:
    """Compute the statistics of a set of images, and take a sample of the images if ``sampled``. A collective.

    Both are None on ranks other than zero. ``stored`` is the size of the sample, see `_image_sample`.
    """
    plan, measurer, contents = _prepared(run, requests, settings, evaluates=False)
    (planned,) = plan.sets
    if planned.holds in ("statistics", "both"):
        raise on_every_rank(InputError(f"{planned.path} is already {planned.kind}:", "pass the images instead"))
    sample = run.world.only_on_rank_zero(lambda: _image_sample(plan, contents, stored) if sampled else None)
    statistics = measurer.measure(planned).statistics
    if statistics is None:
        return None, None
    for skipped in statistics.skipped:
        run.console.warn(f"skipped {skipped.file}: {skipped.reason}")
    inspection = inspect_set(planned.path, statistics.pictures)
    of_images = [] if inspection is None else inspection.warnings()
    for line in [*measurer.warnings, *set_warnings({planned.path: statistics}), *of_images]:
        run.console.warn(line)
    unrecorded = {name for name, each in declared(Settings).items() if not each.defines}
    config = {name: value for name, value in changed_settings(plan.settings).items() if name not in unrecorded}
    return replace(statistics, config=config), sample


def _image_sample(plan: Plan, contents: Mapping[SetPlan, Content], count: int | None) -> NDArray[np.uint8]:
    """Return a random sample of the only set's images as the network gets them, on rank zero, without skipped ones.

    ``count`` is their number; None is ADM's 10,000, or all if there are fewer. The result is a uint8 array of shape
    (n, height, width, 3), memory-mapped from an unnamed file if it is large.
    """
    (planned,), settings = plan.sets, plan.settings
    path, images = planned.path, contents[planned].images
    assert images is not None
    if count is not None and not 1 <= count <= len(images):
        raise InputError(f"--images asks for {count} images but {path} has {len(images)}")
    chosen = sorted(range(min(count or 10_000, len(images))), key=images.order.__getitem__)  # of a random order
    crop = None if images.framing is None else Crop.parse(images.framing)
    remedies, floats = ("fix or remove the file", f"pass {option('on_error', 'skip')}"), settings.floats
    options = DecodeOptions(
        settings.on_error == "skip", settings.max_pixels, crop=crop, floats=floats, remedies=remedies
    )
    shape: tuple[int, ...] = (0, 0, 3)
    storage, used = None, 0
    for batch in load(images, [Batch(each, [each]) for each in chosen], LoadOptions(options)):
        for pixels in batch.take_images(lambda pixels: pixels):
            shape = shape if storage else tuple(pixels.shape)
            storage = storage or RowStorage(len(chosen), pixels.numel(), np.uint8)
            if pixels.shape != shape:
                sizes = " and ".join(f"{each[1]}×{each[0]}" for each in (shape, pixels.shape))
                problem = f"arr_0 has images of one size, but {path} has {sizes} ({images.file(batch.number)}):"
                raise InputError(problem, f"pass {option('crop', EXAMPLE)}", setting="crop")
            storage.write(used, pixels.reshape(1, -1).numpy())
            used += 1
    rows = np.empty((0, 0), np.uint8) if storage is None else storage.array()
    return rows[:used].reshape(used, *shape)


def _concluded(
    run: RunContext, plan: Plan, comparer: Comparer, results: list[Comparison], work: dict[str, Any], origin: Origin
) -> Evaluation:
    """The evaluation, on rank zero; ``work`` are fields of its `RunRecord`."""
    settings, seconds = plan.settings, {**run.clock.phases, "total": time.perf_counter() - run.clock.started}
    extract = seconds.get("extract", 0.0)
    record = RunRecord(
        world_size=run.world.size,
        device=run.device.name,
        backend=run.world.backend,
        linear_algebra_threads=linear_algebra_threads(),
        seconds=seconds,
        extraction=dict(run.clock.parts),
        images_per_second=work["images_computed"] / extract if work.get("images_computed") else None,
        versions=versions(),
        config=changed_settings(settings),
        notes=tuple(map(run.console.shown, (*plan.notes, *comparer.notes))),
        **origin._asdict(),
        **work,
    )
    of_metrics: dict[str, dict[str, Any]] = {}
    for metric, source in ((each.metric, each.source) for each in settings.in_order):
        recorded = dict(metric.record(plan.definitions.get(settings.layer_of(metric))))
        if declared(type(metric)) or source:
            of_metrics[metric.name] = recorded | ({"source": source} if source else {})
    pairs = itertools.combinations(comparer.parts.items(), 2)
    return Evaluation(
        plan.definitions,
        tuple(results),
        record,
        settings.fail_above,
        settings.max_duplicates,
        of_metrics,
        tuple(Difference(one, other, difference(mine, its)) for (one, mine), (other, its) in pairs),
        settings.gated.numbers[0].name if settings.gated else "",
        {name: run.console.shown(reason) for name, reason in comparer.left_out.items()},
    )
