"""How a run is put together: open the sets, choose and build networks, plan, measure, compare,
conclude.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fidtool.diagnose.diagnosis import warnings_about
from fidtool.distances.error_bars import difference
from fidtool.distances.parallel import linear_algebra_threads
from fidtool.errors import InputError, mark_agreed, option
from fidtool.features.device import nvidia_capability
from fidtool.reading.lookup import ImageLookup
from fidtool.result.changes import split_by_fake
from fidtool.result.evaluation import Comparison, Evaluation
from fidtool.result.explanations import Difference, Interval, NotComputed
from fidtool.run.advice import suggest_precision
from fidtool.run.compare import Comparer
from fidtool.run.compute import MetricRunner
from fidtool.run.context import RunContext, open_run
from fidtool.run.extract import read_sample
from fidtool.run.gates import check_gates
from fidtool.run.heldout import HeldoutComparer
from fidtool.run.measure import Measurer
from fidtool.run.networks import RunNetworks
from fidtool.run.opening import OpenedInputs, open_sets
from fidtool.run.plan import Plan, make_plan, select_computable
from fidtool.run.probe import Probe, make_probe
from fidtool.run.sets import HELDOUT, Contents, RequestedSet, SetContent, name_sets
from fidtool.settings.record import Origin, RunRecord, changed_settings, settings_of_set
from fidtool.settings.settings import Settings
from fidtool.sources.memory import Images
from fidtool.statistics.file import load_statistics
from fidtool.statistics.set_statistics import AbsentStatistics, MeasuredSet, Statistics
from fidtool.system.console import Console
from fidtool.system.local_files import StrPath
from fidtool.validation import find_settings

Sources = Sequence[tuple[object, str]]
"""Sets as a caller passes them, each with a default name for it."""


def evaluate(
    sources: Sources,
    settings: Settings,
    console: Console,
    origin: Origin,
    check: Callable[[Sequence[object]], None] = lambda _: None,
    began: float | None = None,
) -> tuple[Evaluation, ImageLookup | None]:
    """Compare the FAKEs with REAL, for `fidtool.compute` and the command line. A collective.

    Args:
        sources: REAL and the FAKEs, each with a default name for it. The held-out set is in the
            settings.
        check: called on rank 0 before any work is done, with the paths of what the run reads.
        began: when the process started, of `time.perf_counter`; None if this call is what the
            timeline begins with.

    Returns:
        The evaluation and, on rank 0, what reads images of the run again for a page; None on the
        other ranks.
    """
    if settings.heldout is not None:
        sources = [*sources, (settings.heldout, "heldout")]
    requests = name_sets(*sources)
    if settings.heldout is not None:
        settings = replace(settings, heldout=requests[-1].path)
    read: list[object] = [request.path for request in requests if request.data is None]
    read += [
        settings.network.weights,
        settings.labels,
        settings.labels_fake,
        settings.captions,
        settings.fail_worse_than,
    ]
    with open_run(requests, settings, console, began) as run:
        if run.world.size > 1:
            _refuse_shards(requests, settings)
        run.world.on_rank_zero(lambda: check(read))
        plan, measurer, contents = _prepare(run, requests, settings)
        measurer.open_checkpoint()
        runner = MetricRunner(
            run, plan, contents, measurer.networks.weights, measurer.pairs.recorded
        )
        comparer = Comparer(runner)
        held = {}
        for set_plan in plan.distinct:
            if HELDOUT in set_plan.roles:
                held[set_plan] = measurer.measure(set_plan)
                comparer.heldout = HeldoutComparer(runner, held[set_plan])
        comparisons = {}
        first, *fakes = plan.sets
        real: MeasuredSet | None = None
        for set_plan in dict.fromkeys(fakes):
            real, fake = measurer.measure_pair(first, set_plan, real, held.pop(set_plan, None))
            run.console.log(f"comparing {fake.path} with {real.path}")
            comparisons[set_plan] = comparer.compare(real, fake, set_plan)
            del fake  # so that only one FAKE's features are in memory at a time
        results = [comparisons[set_plan] for set_plan in fakes]
        evaluation = run.world.on_rank_zero(
            lambda: _build_evaluation(run, plan, comparer, results, measurer, origin)
        )
        if run.world.rank:
            return evaluation, None
        images = [content.images for content in contents.values() if content.images is not None]
        spent = [set_plan.path for set_plan in plan.sets if set_plan.holds == "stream"]
        settings = plan.settings
        return evaluation, ImageLookup(images, spent, settings.floats, settings.timeout)


def _refuse_shards(requests: Sequence[RequestedSet], settings: Settings) -> None:
    """Refuse labels and captions, which are in one order of the images, of iterables that yield
    different images on each rank. On all ranks.
    """
    real, *fakes = requests
    if settings.heldout is not None:
        fakes.pop()
    ordered = [(real, "labels")]
    for fake in fakes:
        ordered += [(fake, "labels_fake"), (fake, "captions")]
    for request, setting in ordered:
        is_sharded = isinstance(request.data, Images) and request.data.sharded
        if is_sharded and getattr(settings, setting) is not None:
            raise mark_agreed(
                InputError(
                    f"{option(setting)} is in the order of the images, but each rank has different "
                    f"images of {request.name}:",
                    "pass an iterable of all images on each rank, with sharded=False",
                    "run one process",
                )
            )


def _prepare(
    run: RunContext,
    requests: Sequence[RequestedSet],
    settings: Settings,
    alone: bool = False,
    before: Statistics | None = None,
) -> tuple[Plan, Measurer, Contents]:
    """Open the sets, build the networks, and decide all that the run will do. A collective.

    A set that is ``alone`` is not compared. Only rank 0 knows what the sets hold, and the
    statistics that the set had ``before``.
    """
    world = run.world
    with run.clock("list"):
        opened = world.only_on_rank_zero(
            lambda: select_computable(
                open_sets(requests, settings, run.console, alone), run.console
            )
        )
        opening = cast(OpenedInputs, opened)  # it is only used on rank 0
        chosen, images = world.on_rank_zero(lambda: (opening.settings, opening.images))
    # Rank 0's default on all ranks: the plan must not depend on a rank's device.
    batch_size = world.broadcast(chosen.batch_size or run.device.default_batch_size)
    classifier = not alone and any(
        requested.metric.classifier for requested in chosen.selected_metrics
    )
    probe = Probe()
    if world.rank == 0:
        probe = make_probe(run, opening, requests, batch_size, before)
    networks = RunNetworks(run, chosen, batch_size, classifier, images, settings.networks, probe)
    plan = world.on_rank_zero(lambda: make_plan(opening, networks.definitions, batch_size))
    contents = dict.fromkeys(plan.distinct, SetContent()) if opened is None else opened.contents
    return plan, Measurer(run, plan, requests, contents, networks), contents


def _build_evaluation(
    run: RunContext,
    plan: Plan,
    comparer: Comparer,
    results: Sequence[Comparison],
    measurer: Measurer,
    origin: Origin,
) -> Evaluation:
    """The evaluation, of which the warnings are printed. On rank 0."""
    settings = plan.settings
    gated = ""
    if settings.fail_above is not None:
        keys = (value.key for value in plan.values if value.number.name == settings.gated_value)
        gated = next(keys, "")
    evaluation = Evaluation(
        definitions=plan.definitions,
        results=tuple(results),
        run=_build_record(run, plan, comparer, measurer, origin),
        settings=_settings_of_metrics(plan, comparer),
        differences=tuple(_compare_fakes(comparer)),
        gated=gated,
        not_computed=tuple(_merge_not_computed(run, (*plan.left_out, *comparer.left_out))),
    )
    judged = []
    for result, alone, baseline in zip(
        results, split_by_fake(evaluation), plan.baselines, strict=True
    ):
        judged.append(replace(result, missed=tuple(check_gates(alone, settings, baseline))))
    evaluation = replace(evaluation, results=tuple(judged))
    evaluation = _verify(run, evaluation)
    skipped = itertools.chain.from_iterable(result.skipped for result in results)
    for bad_file in dict.fromkeys(skipped):
        run.console.warn(f"skipped {bad_file.file}: {bad_file.reason}")
    for warning in evaluation.alerts:
        run.console.warn(str(warning))
    return evaluation


def _build_record(
    run: RunContext, plan: Plan, comparer: Comparer, measurer: Measurer, origin: Origin
) -> RunRecord:
    settings = plan.settings
    networks = measurer.networks
    counts = measurer.counts
    computed = counts["images_computed"]
    decodes = networks.definitions or measurer.pairs.metrics
    seconds = {**run.clock.seconds, "total": time.perf_counter() - run.clock.started}
    advice = suggest_precision(
        nvidia_capability(run.device.torch_device),
        settings.precision,
        {definition.extractor for definition in networks.definitions.values()},
        seconds,
        run.busy.seconds,
    )
    return RunRecord(
        world_size=run.world.size,
        device=run.device.name,
        backend=run.world.backend,
        precision=settings.precision if networks.definitions else "",
        kernels=networks.kernels if networks.definitions else "",
        batch_size=plan.batch_size if decodes else 0,
        num_workers=measurer.num_workers if decodes else 0,
        images_computed=computed,
        forward_passes=counts["forward_passes"],
        images_resumed=counts["images_resumed"],
        cached=tuple(measurer.cached),
        probe=networks.probe,
        linear_algebra_threads=linear_algebra_threads(),
        seconds=seconds,
        timeline=_timeline(run),
        extraction=run.busy.seconds,
        images_per_second=computed / seconds["extract"] if computed else None,
        versions=run.versions,
        config=changed_settings(settings),
        warnings=tuple(warning.shown(run.console.render) for warning in measurer.warnings),
        notes=tuple(map(run.console.render, (*plan.notes, *networks.notes, *comparer.notes))),
        advice=run.console.render(advice),
        **origin._asdict(),
    )


def _timeline(run: RunContext) -> dict[str, float]:
    """The steps of the run that have ended, in this order, each with its time, see `RunRecord`."""
    clock = run.clock
    ends = dict(clock.last)
    if clock.started > clock.began:
        ends["import"] = clock.started - clock.began
    if "moments" in run.busy.first:
        ends["first_batch"] = run.busy.first["moments"]
    ends["end"] = time.perf_counter() - clock.began
    return dict(sorted(ends.items(), key=itemgetter(1)))


def _settings_of_metrics(plan: Plan, comparer: Comparer) -> dict[str, dict[str, Any]]:
    """Return what determines the values of each metric besides the features, by its name."""
    settings = {}
    for requested in plan.settings.selected_metrics:
        if requested.network_name:
            continue
        recorded = {
            **requested.metric.record(plan.definitions.get(requested.layer)),
            **comparer.runner.recorded.get(requested.name, {}),
        }
        if requested.source:
            recorded["source"] = requested.source
        if recorded or find_settings(type(requested.metric)):
            settings[requested.name] = recorded
    return settings


def _compare_fakes(comparer: Comparer) -> Iterator[Difference]:
    """Yield the differences of all pairs of FAKEs that have error bars, in the order of the
    arguments.
    """
    for key, parts in comparer.parts.items():
        for first, second in itertools.combinations(parts, 2):
            yield Difference(first, second, Interval(*difference(parts[first], parts[second])), key)


def _merge_not_computed(run: RunContext, left_out: Sequence[NotComputed]) -> Iterable[NotComputed]:
    """Return the metrics that could not be computed, each once with all reasons."""
    metrics: dict[str, NotComputed] = {}
    for missing in dict.fromkeys(left_out):
        reason = run.console.render(missing.reason)
        if missing.metric in metrics:
            reason = f"{metrics[missing.metric].reason}; {reason}"
        metrics[missing.metric] = replace(missing, reason=reason)
    return metrics.values()


def _verify(run: RunContext, evaluation: Evaluation) -> Evaluation:
    """Return the evaluation with notes on whether its values are comparable with those of its
    preset, and where comparable ones lie among published values.
    """
    from fidtool.result.verify import find_expected_preset, verify  # few runs need it

    if find_expected_preset(evaluation) is None:
        return evaluation
    record = evaluation.run
    notes = dict[str, None]()
    for verdict in verify(evaluation):
        lines = [verdict.line] if "preset" in record.config else []
        if verdict.standing is not None:
            lines.append(verdict.standing.line)
        for line in lines:
            named = f"{verdict.fake}: {line}"
            if named not in notes:
                run.console.say(named, is_result=True, warns=verdict.comparable is False)
            notes[named] = None
    return replace(evaluation, run=replace(record, notes=(*record.notes, *notes)))


def measure_statistics(
    sources: Sources,
    settings: Settings,
    console: Console,
    check: Callable[[], None] = lambda: None,
    sampled: bool = False,
    stored: int | None = None,
    known: StrPath | Statistics | None = None,
    part: str | None = None,
    since: StrPath | Statistics | None = None,
) -> tuple[Statistics, NDArray[np.uint8] | None]:
    """Compute the statistics of a set, for `fidtool.compute_statistics` and the command line. A
    collective.

    Args:
        check: called on rank 0 before any work is done.
        sampled: whether to return a sample of ``stored`` images as well, see
            `fidtool.run.extract.read_sample`.
        known, part, since: see `compute_statistics`; those of rank 0 are used.

    Returns:
        The statistics, which are absent on ranks other than rank 0, and the sample, which is None
            there.
    """
    requests = name_sets(*sources)
    with open_run(requests, settings, console) as run:
        world = run.world
        world.on_rank_zero(check)
        given = known if since is None else since
        before = world.only_on_rank_zero(lambda: None if given is None else load_statistics(given))
        part, completes, grows = world.broadcast((part, known is not None, since is not None))
        if grows and (part is not None or completes):
            raise mark_agreed(
                InputError(
                    "adding new images, computing a part and adding networks cannot be combined:",
                    "use separate commands",
                )
            )
        plan, measurer, contents = _prepare(run, requests, settings, True, before)
        (set_plan,) = plan.sets
        if set_plan.holds == "stream" and (part is not None or completes or grows):
            raise mark_agreed(
                InputError(
                    f"{set_plan.path} is an iterable, whose images have no names and cannot be "
                    "read again:",
                    "pass a sequence of images",
                )
            )
        sample = None
        if sampled:
            images = contents[set_plan].images
            sample = world.only_on_rank_zero(lambda: read_sample(images, plan.settings, stored))
        config = settings_of_set(plan.settings)
        if part is not None:
            measurer.restrict_to_part(set_plan, part)
        if grows:
            name = "since" if isinstance(since, Statistics) else str(since)
            statistics = measurer.measure_new(set_plan, name, before or Statistics({}), config)
        else:
            measurer.open_checkpoint()
            if completes:
                statistics = measurer.add_layers(set_plan, before or Statistics({}))
            else:
                statistics = measurer.measure(set_plan).statistics
        if world.rank:
            return AbsentStatistics(), None
        statistics = replace(statistics, config=config)
        for warning in [*measurer.warnings, *warnings_about(set_plan.path, statistics)]:
            run.console.warn(str(warning))
        return statistics, sample
