"""The pipeline as one function: sources, statistics, distance, doubts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial

from fidtool.clock import Clock
from fidtool.config import Config
from fidtool.console import Console
from fidtool.diagnose.diagnosis import Diagnosis, look, set_lines
from fidtool.diagnose.doubts import pair_warnings, set_warnings
from fidtool.distributed.deadlines import Deadlines
from fidtool.distributed.launch import discover_here
from fidtool.distributed.world import World, open_world
from fidtool.errors import FidtoolError, InputError, on_every_rank
from fidtool.examination import Examination
from fidtool.features.device import choose_device, strict_fp32
from fidtool.features.protocol import FEATURES, SPATIAL, protocol_named
from fidtool.features.weights import Weights, load_weights
from fidtool.measure import Measurer, versions
from fidtool.metrics.frechet import linear_algebra_threads
from fidtool.metrics.needs import settings_of
from fidtool.results import Comparison, Evaluation, RunRecord, SkippedFile
from fidtool.scores import Scorer, Scores
from fidtool.session import Session
from fidtool.sets import Sets
from fidtool.statistics.measured import MeasuredSet
from fidtool.statistics.store import Statistics


@contextlib.contextmanager
def _session(
    paths: Sequence[str], config: Config, console: Console, before: Callable[[], None] | None
) -> Iterator[Session]:
    clock = Clock()
    launch = discover_here()
    if launch.doubt and launch.rank == 0:
        console.warn(f"waiting for the other {launch.world_size - 1} tasks of the SLURM job; {launch.doubt}")
    if config.protocol is not None:
        protocol_named(config.protocol)
    deadlines = Deadlines(config.peer_timeout, config.timeout)
    session: list[Session] = []

    def tell(error: FidtoolError, aloud: bool) -> None:
        if console.fail is not None:
            console.fail(error.noted(session[0].kept() if session else ""), aloud)

    with strict_fp32(), open_world(launch, deadlines, tell if console.fail else None) as world:
        launch = world.launch
        voice = console if world.rank == 0 else Console()
        _agree_on_the_run(world, paths, config)
        with world.together():
            device = choose_device(config.device, launch)
        world.use_nccl(device.use_nccl)
        world.on_rank_zero(before or _nothing)
        if device.shared:
            voice.say(f"{launch.local_world_size} ranks share a GPU here: statistics travel over gloo, not NCCL")
        session.append(Session(world, device, config, voice, clock))
        yield session[0]


def _agree_on_the_run(world: World, paths: Sequence[str], config: Config) -> None:
    """Refuses ranks that were started to do different things, or with different libraries. A collective.

    Each would deal itself images by its own plan: some would count twice and others not at all.
    """
    mine = {**asdict(config), **versions(), "paths": list(paths), "device": None}
    first, *others = world.gather(mine)
    for rank, other in enumerate(others, 1):
        for name in first:
            if other.get(name) != first[name]:
                message = f"{name} is {first[name]!r} on rank 0 and {other.get(name)!r} on rank {rank}"
                advice = "give every rank the same arguments and the same environment"
                raise on_every_rank(InputError(f"the ranks were not started alike: {message}; {advice}"))


def _nothing() -> None:
    """No check of the caller's."""


def evaluate(
    real: str,
    fakes: Sequence[str],
    config: Config,
    console: Console | None = None,
    before: Callable[[], None] | None = None,
) -> Evaluation:
    """Computes the FID, and what else ``config.metrics`` asks for, of each FAKE against REAL.

    Under torchrun, SLURM or variables set by hand this is a collective: every rank calls it with the same arguments
    and every rank returns the same evaluation.

    Args:
        real: folder of images or statistics file.
        fakes: one or more of the same.
        config: settings.
        console: where rank zero speaks; default nowhere (the warnings are in the result).
        before: a check that rank zero makes before any work; its error ends the run on every rank.

    Raises:
        InputError: what was given cannot be evaluated; the message says why and what to do.
        RunError: the run failed.
    """
    if not fakes:
        raise InputError("there is no FAKE to compare with REAL")
    with _session([real, *fakes], config, console or Console(), before) as session:
        world = session.world
        sets = Sets(session, [real, *fakes])
        measurer = sets.measurer(session)
        definitions, mismatches = world.on_rank_zero(lambda: sets.agree(measurer))
        weights = partial(_classifier, measurer, session)
        scorer = Scorer(world, session.device, config, session.clock, definitions, weights)
        examination = Examination(session, sets, measurer, definitions[FEATURES])
        results = tuple(_compared(world, scorer, examination, sets.measured(measurer), mismatches))
        record = world.on_rank_zero(lambda: _record(session, measurer))
        gates = config.fail_above, config.max_duplicates
        evaluation = Evaluation(definitions, results, record, *gates, settings_of(config, definitions))
        for skipped in dict.fromkeys(skipped for result in results for skipped in result.skipped):
            session.console.warn(f"skipped {skipped.file}: {skipped.reason}")
        for line in dict.fromkeys([*record.warnings, *(line for result in results for line in result.warnings)]):
            session.console.warn(line)
        return evaluation


def statistics_of(
    path: str, config: Config, console: Console | None = None, before: Callable[[], None] | None = None
) -> Statistics | None:
    """Computes the statistics of a folder of images. A collective like `evaluate`.

    Returns:
        The statistics on rank zero, None on the other ranks.

    Raises:
        InputError, RunError: see `evaluate`.
    """
    with _session([path], config, console or Console(), before) as session:
        sets = Sets(session, [path], real=False)
        measurer = sets.measurer(session)
        if measurer is None:
            raise on_every_rank(InputError(f"{path} is a statistics file already; give a folder of images"))
        statistics = next(sets.measured(measurer)).statistics
        if statistics is not None:
            for skipped in skipped_files(path, statistics):
                session.console.warn(f"skipped {skipped.file}: {skipped.reason}")
            seen = look(path, statistics.pictures)
            for line in [
                *measurer.warnings,
                *set_warnings(path, statistics),
                *([] if seen is None else set_lines(seen)),
            ]:
                session.console.warn(line)
        return statistics


def _compared(
    world: World,
    scorer: Scorer,
    examination: Examination,
    measured: Iterator[MeasuredSet],
    mismatches: Sequence[str],
) -> Iterator[Comparison]:
    """Each FAKE's comparison, before the next is measured: of many, the features of one alone are kept at a time."""
    real = next(measured)
    for fake in measured:
        scores = scorer.compare(real, fake)
        diagnosis = examination.of(real, fake, scores)
        yield world.on_rank_zero(partial(_comparison, real, fake, scores, diagnosis, mismatches))
        del fake  # before the next one is measured


def _comparison(
    real: MeasuredSet, fake: MeasuredSet, scores: Scores, diagnosis: Diagnosis | None, mismatches: Sequence[str]
) -> Comparison:
    """The scores with everything doubtful about them, on rank zero."""
    assert real.statistics is not None
    assert fake.statistics is not None
    other = fake.path != real.path
    compared = {FEATURES: {"fid", "fid_infinity"}, SPATIAL: {"sfid"}}
    gaussians = [layer for layer, distances in compared.items() if distances & set(scores)]
    warnings = [
        *mismatches,
        *set_warnings(real.path, real.statistics, gaussians),
        *(set_warnings(fake.path, fake.statistics, gaussians) if other else []),
        *pair_warnings(real.path, real.statistics, fake.path, fake.statistics),
        *(() if diagnosis is None else diagnosis.lines),
    ]
    skipped = skipped_files(real.path, real.statistics)
    skipped += skipped_files(fake.path, fake.statistics) if other else ()
    counts = real.statistics.count, fake.statistics.count
    return Comparison(real.path, fake.path, scores, *counts, tuple(warnings), skipped, diagnosis)


def skipped_files(path: str, statistics: Statistics) -> tuple[SkippedFile, ...]:
    """The files of a set that were left out."""
    return tuple(SkippedFile(path, bad.file, bad.reason) for bad in statistics.skipped)


def _classifier(measurer: Measurer | None, session: Session) -> Weights:
    """Inception's weights with the classifier, for statistics files that keep features too. On rank zero."""
    known = measurer.assembly.weights if measurer else None
    return known or load_weights(session.config.weights, session.console.say, classifier=True)


def _record(session: Session, measurer: Measurer | None) -> RunRecord:
    seconds = session.clock.snapshot()
    extract = seconds.get("extract", 0.0)
    computed = measurer.images_computed if measurer else 0
    return RunRecord(
        world_size=session.world.size,
        device=session.device.name,
        backend=session.world.backend,
        precision=session.config.precision,
        batch_size=measurer.batch_size if measurer else 0,
        num_workers=measurer.num_workers if measurer else 0,
        images_computed=computed,
        forward_passes=measurer.forward_passes if measurer else 0,
        images_resumed=measurer.images_resumed if measurer else 0,
        cached=tuple(measurer.cached) if measurer else (),
        probe=measurer.assembly.probe if measurer else None,
        linear_algebra_threads=linear_algebra_threads(),
        seconds=seconds,
        images_per_second=computed / extract if computed else None,
        versions=versions(),
        warnings=tuple(measurer.warnings) if measurer else (),
    )
