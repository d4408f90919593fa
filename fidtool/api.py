"""Python API: the commands of the command line as functions, and how a run is put together."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeAlias, cast, get_type_hints, overload

import numpy as np
from numpy.typing import NDArray

from fidtool.console import Console
from fidtool.diagnose.diagnosis import Checkup, warnings_about
from fidtool.distances.error_bars import difference
from fidtool.distances.parallel import fork_safe, linear_algebra_threads
from fidtool.errors import InputError, on_every_rank, warn_program
from fidtool.explanations import Difference, Interval, NotComputed
from fidtool.history import per_fake
from fidtool.images.loader import ImageLookup
from fidtool.metrics.registry import METRIC_SETTINGS
from fidtool.names import suggestion
from fidtool.pipeline.check import check as check_images
from fidtool.pipeline.compare import Comparer
from fidtool.pipeline.extract import image_sample
from fidtool.pipeline.gates import missed_gates
from fidtool.pipeline.heldout import HeldoutComparer
from fidtool.pipeline.measure import Measurer
from fidtool.pipeline.networks import RunNetworks
from fidtool.pipeline.opening import Opening, open_sets
from fidtool.pipeline.plan import Plan, choose, make_plan
from fidtool.pipeline.run import RunContext, open_run
from fidtool.pipeline.sets import Content, RequestedSet, SetPlan, named_sets
from fidtool.presets import with_preset
from fidtool.record import Origin, RunRecord, changed_settings, origin_of, stored_settings
from fidtool.report.loggers import check_loggers, log_values
from fidtool.report.text import alerts_of
from fidtool.results import Comparison, Evaluation
from fidtool.settings import CheckSettings, Settings, StatisticsSettings
from fidtool.sources.memory import Images, several
from fidtool.statistics.set_statistics import MeasuredSet, Statistics
from fidtool.statistics.statistics_file import statistics_in
from fidtool.validation import declared

PathOrURL = str | os.PathLike[str]
Source: TypeAlias = "PathOrURL | Images | Sequence[Any] | Iterable[Any] | Callable[..., Any] | Statistics"
"""A path or URL; images in memory, or a function that generates them, see `fidtool.Images`; or statistics."""

_Fakes: TypeAlias = "Source | Sequence[PathOrURL | Images | Statistics]"
_Known: TypeAlias = "PathOrURL | Statistics | None"
Sources = Sequence[tuple[object, str]]
P = ParamSpec("P")
_DEFAULTS = Settings()


class _Compute(Protocol[P]):
    def __call__(self, real: Source, fake: _Fakes, *args: P.args, **settings: P.kwargs) -> Evaluation: ...


class _ComputeStatistics(Protocol[P]):
    def __call__(
        self,
        images: Source,
        known: _Known = None,
        part: str | None = None,
        since: _Known = None,
        *args: P.args,
        **settings: P.kwargs,
    ) -> Statistics | None: ...


class _Check(Protocol[P]):
    def __call__(
        self, images: Source, against: Source | None = None, *args: P.args, **settings: P.kwargs
    ) -> Checkup: ...


class _Decorator(Protocol[P]):
    @overload
    def __call__(self, function: Callable[[Source, _Fakes, Settings], Evaluation]) -> _Compute[P]: ...
    @overload
    def __call__(
        self, function: Callable[[Source, _Known, str | None, _Known, Settings], Statistics | None]
    ) -> _ComputeStatistics[P]: ...
    @overload
    def __call__(self, function: Callable[[Source, Source | None, Settings], Checkup]) -> _Check[P]: ...


def _with_keywords_of(kind: Callable[P, CheckSettings]) -> _Decorator[P]:
    """Decorator that replaces a function's last argument, a `Settings`, by the fields of ``kind`` as keywords.

    Type checkers see the keywords through the protocols above, and `inspect.signature` through ``__signature__``. The
    docstring gets a description of each keyword.
    """
    types, settings = get_type_hints(kind), declared(cast(Any, kind))

    def decorated(function: Callable[..., Any]) -> Any:
        function = fork_safe(function)
        original = inspect.signature(function)
        *sets, _ = original.parameters.values()
        keywords = [
            each.replace(annotation=inspect.formatannotation(types[each.name]))
            for each in inspect.signature(kind).parameters.values()
            if each.name in settings
        ]
        signature = original.replace(parameters=[*sets, *keywords])

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            try:
                given = signature.bind(*args, **kwargs).arguments
            except TypeError as error:
                raise TypeError(f"{function.__name__}() {error}{_meant(kwargs, signature.parameters)}") from None
            chosen = with_preset({name: given.pop(name) for name in settings if name in given})
            return function(**given, settings=Settings(**chosen))

        called.__signature__ = signature  # type: ignore[attr-defined]
        lines = [f"        {name}: {each.described}" for name, each in settings.items()]
        called.__doc__ = "\n".join([f"{function.__doc__}", "    Settings:", *lines, ""])
        return called

    return decorated


def _meant(keywords: Mapping[str, Any], known: Collection[str]) -> str:
    """Returns what to write instead of unknown keywords: a metric with a setting, or similar keywords."""
    for kind, each in (METRIC_SETTINGS[name] for name in keywords if name in METRIC_SETTINGS and "metrics" in known):
        return f"; write metrics=[fidtool.{kind.__name__}({each.name}=...)]"
    for name in (name for name in keywords if name not in known):
        if name in (declared(Settings)["precision"].choices or ()):
            return f"; write precision={name!r}"
        for setting, each in declared(Settings).items():
            if each.kind is bool and name == f"no_{each.flag.strip('-').replace('-', '_')}":
                return f"; write {setting}=False"
    return "".join(suggestion(name, known, 0.75) for name in keywords if name not in known)


@_with_keywords_of(Settings)
def compute(real: Source, fake: Source | Sequence[PathOrURL | Images | Statistics], settings: Settings) -> Evaluation:
    """Computes FID, or the metrics in ``metrics``, of one or several sets of generated images against real images.

    Under torchrun or SLURM, or with RANK and WORLD_SIZE set, this is a collective: all ranks call it with the same
    arguments, and all return the same evaluation.

    Args:
        real: path or URL of images (a folder, archive, array, table or list) or of a statistics file (.npz); or images
            in memory (a list, array, ``Dataset`` or iterable), see `fidtool.Images`; or `fidtool.Statistics`.
        fake: the same, or a list of sets to evaluate against the same ``real``, which is then processed once: paths, or
            any sets with `fidtool.Images`, `fidtool.Statistics` or a function among them. A list of arrays is one set.
            Or a function that generates ``num_fake`` images, see `fidtool.Images`. The setting ``heldout`` is such a
            set as well, but no iterable and no function.

    Returns:
        The evaluation: ``.fid`` for one FAKE, ``.results`` for several, ``.to_dict()`` for the content of the JSON. A
        different network or layer has a ``.frechet_distance`` instead of a FID, see `fidtool.labels`. Warnings are in
        ``.results[i].warnings`` and ``.run.warnings``, and rank zero issues each as a `FidtoolWarning`, as it does for
        a metric that is left out and a value that is not comparable with those of ``preset``. If a report or plot
        cannot be written at the end, a `RuntimeWarning` is issued.

    Raises:
        fidtool.InputError: if the input cannot be evaluated; the message says why and what to do.
        fidtool.RunError: if the run failed.
        fidtool.StoppedError: if another rank received a signal to stop.
    """
    fakes = several(fake, Statistics)
    if not fakes:
        raise InputError("there is no FAKE to compare with REAL")
    sources = [(real, "real"), *((each, "fake") for each in fakes)]
    with _warning(Console(report=settings.progress)) as console:
        evaluation, files = evaluated(sources, settings, console, origin_of(sys.argv[0]))
    for file, write in (files or {}).items():
        try:
            write(file)
        except Exception as error:  # so that the evaluation is not lost
            reason = (isinstance(error, OSError) and error.strerror) or repr(error)
            warn_program(f"{file} could not be written: {reason}", RuntimeWarning)
    if files is not None:
        log_values(evaluation.results, settings, lambda line: warn_program(line, RuntimeWarning))
    return evaluation


def evaluated(
    sources: Sources,
    settings: Settings,
    console: Console,
    origin: Origin,
    check: Callable[[Sequence[object]], None] = lambda _: None,
) -> tuple[Evaluation, Mapping[Path, Callable[[Path], object]] | None]:
    """Compares the FAKEs with REAL, for `compute` and the command line. A collective.

    Args:
        sources: REAL and the FAKEs, each with a default name for it. The held-out set is in the settings.
        check: called on rank zero before any work is done, with the paths of what the run reads.

    Returns:
        The evaluation and, on rank zero, the files of report, plot and history, each with the function that writes it.
    """
    sets = named_sets(*sources, *([] if settings.heldout is None else [(settings.heldout, "heldout")]))
    settings = settings if settings.heldout is None else replace(settings, heldout=sets[-1].path)
    kinds = ("report", "plot", "history", "pairs_output")
    shown = {each: Path(file) for each in kinds if (file := vars(settings)[each]) is not None}
    read: list[object] = [each.path for each in sets if each.given is None]
    read += [settings.network.weights, settings.labels, settings.captions, settings.fail_worse_than]

    def check_files() -> None:
        check(read)
        if shown:
            from fidtool.report.html import check_shown

            check_shown(shown, read)
        check_loggers(settings.log)

    with open_run(sets, settings, console) as run:
        run.world.on_rank_zero(check_files)
        plan, measurer, contents = _prepared(run, sets, settings)
        measurer.open_checkpoint()
        held, third = dict[SetPlan, MeasuredSet](), None
        for planned in (each for each in plan.needs if each.heldout):
            held[planned] = measurer.measure(planned)
            third = HeldoutComparer(run, plan, held[planned])
        comparer = Comparer(run, plan, contents, measurer.networks.weights, third, measurer.pairs.recorded)
        results: list[Comparison] = []
        first, *fakes = plan.sets
        real: MeasuredSet | None = None
        for position, planned in enumerate(fakes, 1):
            # A set that occurs several times is measured once and held until its last occurrence.
            real, measured = measurer.measure_both(first, planned, real, held.pop(planned, None))
            if planned in fakes[position:]:
                held[planned] = measured
            run.console.log(f"comparing {measured.path} with {real.path}")
            results.append(comparer.compare(real, measured, planned))
            del measured  # so that only one FAKE's features are in memory at a time
        evaluation = run.world.on_rank_zero(lambda: _concluded(run, plan, comparer, results, measurer, origin))
        images = [content.images for content in contents.values() if content.images is not None]
        spent = [each.path for each in plan.sets if each.holds == "stream"]
        lookup = ImageLookup(images, spent, plan.settings.floats)

        def write(setting: str, file: Path) -> None:
            from fidtool.report.html import write_shown

            write_shown(evaluation, lookup, setting, file, console.spelling)

        files = {file: functools.partial(write, each) for each, file in shown.items()}
        return evaluation, files if run.world.rank == 0 else None


def _prepared(
    run: RunContext, requests: Sequence[RequestedSet], settings: Settings, alone: bool = False
) -> tuple[Plan, Measurer, Mapping[SetPlan, Content]]:
    """Opens the sets, builds the networks, and decides all that the run will do. A collective.

    A set that is ``alone`` is not compared. Only rank zero knows what the sets hold.
    """
    with run.clock("list"):
        opened = run.world.only_on_rank_zero(
            lambda: choose(open_sets(requests, settings, run.console, alone), run.console)
        )
        opening = cast(Opening, opened)  # it is only used on rank zero
        chosen, images = run.world.on_rank_zero(lambda: (opening.settings, opening.images))
    # Rank zero's default on all ranks: the plan must not depend on a rank's device.
    batch_size = run.world.broadcast(chosen.batch_size or run.device.default_batch_size)
    classifier = not alone and any(each.metric.classifier for each in chosen.chosen)
    networks = RunNetworks(run, chosen, batch_size, classifier, images, settings.networks)
    plan = run.world.on_rank_zero(lambda: make_plan(opening, networks.definitions or None, batch_size))
    contents = dict.fromkeys(plan.needs, Content()) if opened is None else opened.contents
    return plan, Measurer(run, plan, requests, contents, networks), contents


def _concluded(
    run: RunContext,
    plan: Plan,
    comparer: Comparer,
    results: list[Comparison],
    measurer: Measurer,
    origin: Origin,
) -> Evaluation:
    """The evaluation, of which the warnings are printed. On rank zero."""
    gated = next((value for value in plan.values if value.number.name == plan.settings.first_frechet), None)
    settings, seconds = plan.settings, {**run.clock.seconds, "total": time.perf_counter() - run.clock.started}
    networks, computed = measurer.networks, measurer.counts["images_computed"]
    decodes = networks.definitions or measurer.pairs.metrics
    record = RunRecord(
        world_size=run.world.size,
        device=run.device.name,
        backend=run.world.backend,
        precision=settings.precision if networks.definitions else "",
        kernels=networks.kernels if networks.definitions else "",
        batch_size=plan.batch_size if decodes else 0,
        num_workers=measurer.num_workers if decodes else 0,
        images_computed=computed,
        forward_passes=measurer.counts["forward_passes"],
        images_resumed=measurer.counts["images_resumed"],
        cached=tuple(measurer.cached),
        probe=networks.probe,
        linear_algebra_threads=linear_algebra_threads(),
        seconds=seconds,
        extraction=run.busy.seconds,
        images_per_second=computed / seconds["extract"] if computed else None,
        versions=run.versions,
        config=changed_settings(settings),
        warnings=tuple(map(run.console.shown, measurer.warnings)),
        notes=tuple(map(run.console.shown, (*plan.notes, *comparer.notes))),
        **origin._asdict(),
    )
    of_metrics: dict[str, dict[str, Any]] = {}
    for each in (each for each in settings.chosen if not each.further):
        recorded = {**each.metric.record(plan.definitions.get(each.layer)), **comparer.recorded.get(each.name, {})}
        if declared(type(each.metric)) or recorded or each.source:
            of_metrics[each.name] = recorded | ({"source": each.source} if each.source else {})
    pairs = ((key, *pair) for key, of in comparer.parts.items() for pair in itertools.combinations(of.items(), 2))
    not_computed = dict[str, NotComputed]()
    for lacking in dict.fromkeys((*plan.left_out, *comparer.left_out)):
        known, reason = not_computed.get(lacking.metric), run.console.shown(lacking.reason)
        not_computed[lacking.metric] = replace(lacking, reason=f"{known.reason}; {reason}" if known else reason)
    evaluation = Evaluation(
        definitions=plan.definitions,
        results=tuple(results),
        run=record,
        settings=of_metrics,
        differences=tuple(
            Difference(one, other, Interval(*difference(mine, its)), key) for key, (one, mine), (other, its) in pairs
        ),
        gated=gated.key if gated and settings.fail_above is not None else "",
        not_computed=tuple(not_computed.values()),
    )
    alone = zip(results, per_fake(evaluation), plan.baselines, strict=True)
    judged = (replace(each, missed=tuple(missed_gates(one, settings, before))) for each, one, before in alone)
    evaluation = replace(evaluation, results=tuple(judged))
    if settings.preset is not None:
        from fidtool.comparability import verify  # few runs need it

        verdicts = {f"{verdict.fake}: {verdict.line}": verdict for verdict in verify(evaluation)}
        evaluation = replace(evaluation, run=replace(evaluation.run, notes=(*evaluation.run.notes, *verdicts)))
        for line, verdict in verdicts.items():
            run.console.say(line, is_result=True, warns=verdict.comparable is False)
    for skipped in dict.fromkeys(skipped for result in evaluation.results for skipped in result.skipped):
        run.console.warn(f"skipped {skipped.file}: {skipped.reason}")
    for line in alerts_of(evaluation):
        run.console.warn(line)
    return evaluation


@_with_keywords_of(StatisticsSettings)
def compute_statistics(
    images: Source,
    known: PathOrURL | Statistics | None = None,
    part: str | None = None,
    since: PathOrURL | Statistics | None = None,
    settings: Settings = _DEFAULTS,
) -> Statistics | None:
    """Computes the mean and covariance of the features of a set of images, which ``fidtool stats`` writes to a file.

    A collective like `compute`.

    Args:
        images: as ``real`` of `compute`.
        known: statistics of the same images, or their file: only networks that they lack are computed.
        part: computes only a part of the images, such as ``"3/16"``, for `fidtool.merge_statistics`.
        since: earlier statistics of the set with the same settings, or their file: only images that are new go through
            the networks.

    Returns:
        On rank zero the statistics, with ``mu`` of shape (dims,) and ``sigma`` of shape (dims, dims), both float64, and
        their provenance; None on the other ranks.

    Raises:
        fidtool.InputError, fidtool.RunError: see `compute`.
    """
    with _warning(Console(report=settings.progress)) as console:
        statistics, _ = statistics_of([(images, "images")], settings, console, known=known, part=part, since=since)
    return statistics


def statistics_of(
    sources: Sources,
    settings: Settings,
    console: Console,
    check: Callable[[], None] = lambda: None,
    sampled: bool = False,
    stored: int | None = None,
    known: PathOrURL | Statistics | None = None,
    part: str | None = None,
    since: PathOrURL | Statistics | None = None,
) -> tuple[Statistics | None, NDArray[np.uint8] | None]:
    """Computes the statistics of a set, for `compute_statistics` and the command line. A collective.

    Args:
        check: called on rank zero before any work is done.
        sampled: whether to return a sample of ``stored`` images as well, see `fidtool.pipeline.extract.image_sample`.
        known, part, since: see `compute_statistics`; those of rank zero are used.

    Returns:
        The statistics and the sample; both are None on ranks other than zero.
    """
    sets = named_sets(*sources)
    with open_run(sets, settings, console) as run:
        run.world.on_rank_zero(check)
        given = known if since is None else since
        before = run.world.only_on_rank_zero(lambda: None if given is None else statistics_in(given))
        part, completes, grows = run.world.broadcast((part, known is not None, since is not None))
        if grows and (part is not None or completes):
            raise on_every_rank(InputError("new images, parts and networks cannot be combined:", "use two commands"))
        plan, measurer, contents = _prepared(run, sets, settings, alone=True)
        (planned,) = plan.sets
        if completes and planned.holds == "stream":
            raise on_every_rank(InputError(f"statistics of {planned.path}, an iterable, cannot be completed"))
        sample = None
        if sampled:
            images = contents[planned].images
            sample = run.world.only_on_rank_zero(lambda: image_sample(planned.path, images, plan.settings, stored))
        config = stored_settings(plan.settings)
        if part is not None:
            measurer.take_part(planned, part)
        if grows:
            name = "since" if isinstance(since, Statistics) else str(since)
            statistics = measurer.measure_new(planned, name, before or Statistics({}), config)
        else:
            measurer.open_checkpoint()
            statistics = measurer.measure(planned, before).statistics
        if run.world.rank:
            return None, None
        statistics = replace(statistics, config=config)
        for line in [*measurer.warnings, *warnings_about(planned.path, statistics)]:
            run.console.warn(line)
        return statistics, sample


@_with_keywords_of(CheckSettings)
def check(images: Source, against: Source | None = None, settings: Settings = _DEFAULTS) -> Checkup:
    """Inspects a set of images for problems, without a network.

    A collective like `compute`.

    Args:
        images: as ``real`` of `compute`, but not an iterable.
        against: real images, or a statistics file written by fidtool, to compare ``images`` with; None inspects only
            ``images``.

    Returns:
        The findings: ``.images`` and ``.against`` (each a `fidtool.diagnose.diagnosis.Health` with ``findings``),
        ``.between`` and ``.to_dict()``; the same on every rank.

    Raises:
        fidtool.InputError, fidtool.RunError: see `compute`.
    """
    sources = [(images, "images"), *([] if against is None else [(against, "real")])]
    with _warning(Console(report=settings.progress)) as console:
        return checked(sources, settings, console)


def checked(sources: Sources, settings: Settings, console: Console, strict: bool = False) -> Checkup:
    """Inspects a set, alone or against another, for `check` and the command line. A collective."""
    sets = named_sets(*sources)
    with open_run(sets, settings, console) as run:
        return check_images(run, sets, settings, strict)


@contextlib.contextmanager
def _warning(console: Console) -> Iterator[Console]:
    """Context manager that issues a run's warnings at its end, when no rank waits for one that raises them."""
    yield console
    for line in console.warned:
        warn_program(line)
