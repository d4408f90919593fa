"""The pipeline as one function: sources, statistics, distance, doubts."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

from fidtool.agreement import common_definition
from fidtool.clock import Clock
from fidtool.config import Config
from fidtool.console import Console
from fidtool.diagnose import pair_warnings, set_warnings
from fidtool.distributed.deadlines import Deadlines
from fidtool.distributed.launch import discover_here
from fidtool.distributed.world import World, open_world
from fidtool.errors import FidtoolError, InputError, on_every_rank
from fidtool.features.device import Device, choose_device, strict_fp32
from fidtool.features.protocol import Definition, protocol_named
from fidtool.images.source import ImageFolder
from fidtool.measure import Measurer, versions
from fidtool.metrics.frechet import frechet_distance, linear_algebra_threads
from fidtool.results import Comparison, Evaluation, RunRecord, SkippedFile
from fidtool.sources import open_source
from fidtool.statistics.store import Statistics


@dataclass
class _Session:
    """What the steps of one run share on one rank."""

    world: World
    device: Device
    config: Config
    console: Console
    clock: Clock
    kept: Callable[[], str]
    """What to tell the user of finished work, should the run fail."""


@contextlib.contextmanager
def _session(
    paths: Sequence[str], config: Config, console: Console, before: Callable[[], None] | None
) -> Iterator[_Session]:
    clock = Clock()
    launch = discover_here()
    if launch.doubt and launch.rank == 0:
        console.warn(f"waiting for the other {launch.world_size - 1} tasks of the SLURM job; {launch.doubt}")
    if config.protocol is not None:
        protocol_named(config.protocol)
    deadlines = Deadlines(config.peer_timeout, config.timeout)
    session: list[_Session] = []

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
        session.append(_Session(world, device, config, voice, clock, str))
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
    """Computes the FID of each FAKE against REAL.

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
        world, paths = session.world, [real, *fakes]
        sources = _Sources(session, paths)
        measurer = sources.measurer(session)
        definition, mismatches = world.on_rank_zero(lambda: sources.agree(measurer, config))
        statistics = sources.statistics(measurer)
        with session.clock("distance"):
            results = world.on_rank_zero(lambda: _compare(paths, statistics, mismatches))
        record = world.on_rank_zero(lambda: _record(session, measurer))
        evaluation = Evaluation(definition, results, record, config.fail_above)
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
        sources = _Sources(session, [path])
        measurer = sources.measurer(session)
        if measurer is None:
            raise on_every_rank(InputError(f"{path} is a statistics file already; give a folder of images"))
        (statistics,) = sources.statistics(measurer)
        if statistics is not None:
            for skipped in skipped_files(path, statistics):
                session.console.warn(f"skipped {skipped.file}: {skipped.reason}")
            for line in [*measurer.warnings, *set_warnings(path, statistics)]:
                session.console.warn(line)
        return statistics


class _Sources:
    """REAL and the FAKEs, opened. Rank zero holds them; the others know which are folders. Made by a collective."""

    def __init__(self, session: _Session, paths: Sequence[str]) -> None:
        self._paths = paths
        self._opened: dict[str, ImageFolder | Statistics] = {}
        with session.clock("list"):
            self._is_folder: dict[str, bool] = session.world.on_rank_zero(lambda: self._open(session.config))

    def _open(self, config: Config) -> dict[str, bool]:
        """Opens every path; statistics files come first, so that a bad one is refused before a long listing."""
        for path in sorted(dict.fromkeys(self._paths), key=lambda path: not path.lower().endswith(".npz")):
            source = open_source(path, config.recursive)
            if path in self._paths[1:]:
                _check_expected(config.expect, path, source)
            self._opened[path] = source.draw(config.num, config.seed) if isinstance(source, ImageFolder) else source
        return {path: isinstance(self._opened[path], ImageFolder) for path in self._paths}

    def measurer(self, session: _Session) -> Measurer | None:
        """What measures the folders, if there are any. A collective."""
        if not any(self._is_folder.values()):
            return None
        measurer = Measurer(session.world, session.device, session.config, session.console, session.clock)
        session.kept = measurer.kept
        paths = [path for path in dict.fromkeys(self._paths) if self._is_folder[path]]
        folders = (self._opened.get(path) for path in paths)
        measurer.open_checkpoint([folder for folder in folders if isinstance(folder, ImageFolder)])
        return measurer

    def agree(self, measurer: Measurer | None, config: Config) -> tuple[Definition | None, list[str]]:
        """See `common_definition`. On rank zero alone."""
        files = {path: source for path, source in self._opened.items() if isinstance(source, Statistics)}
        definition, doubts = common_definition(files, measurer.definition if measurer else None, config)
        if measurer is None and (config.extractor != "inception" or config.weights is not None):
            doubts.append("--extractor and --weights have no effect: statistics files alone are compared")
        if measurer is None and config.checkpoint is not None:
            doubts.append("--checkpoint has no effect: statistics files alone are compared")
        if config.num is not None:
            doubts += [f"{path} is a statistics file: --num does not apply to it" for path in files]
        return definition, doubts

    def statistics(self, measurer: Measurer | None) -> list[Statistics | None]:
        """Statistics for each path on rank zero, None on the others. A collective.

        A path given twice is measured once.
        """
        known: dict[str, Statistics | None] = {}
        folders = itertools.count()
        for path in dict.fromkeys(self._paths):
            source = self._opened.get(path)
            if self._is_folder[path] and measurer is not None:
                known[path] = measurer.statistics(next(folders), source if isinstance(source, ImageFolder) else None)
            else:
                known[path] = source if isinstance(source, Statistics) else None
        return [known[path] for path in self._paths]


def _check_expected(expect: int | None, path: str, source: ImageFolder | Statistics) -> None:
    count = source.found if isinstance(source, ImageFolder) else source.count
    if expect is not None and count != expect:
        found = "an unknown number of" if count is None else count
        raise InputError(f"--expect asks for {expect} images but {path} has {found}")


def _compare(
    paths: Sequence[str], statistics: Sequence[Statistics | None], mismatches: Sequence[str]
) -> tuple[Comparison, ...]:
    """The distances, on rank zero, with everything doubtful about each."""
    real, *fakes = (entry for entry in statistics if entry is not None)
    real_warnings = set_warnings(paths[0], real)
    results = []
    for path, fake in zip(paths[1:], fakes, strict=True):
        try:
            distance = frechet_distance(real.mu, real.sigma, fake.mu, fake.sigma, count1=real.count, count2=fake.count)
        except FidtoolError as error:
            raise type(error)(f"{paths[0]} (first) against {path} (second): {error}") from None
        warnings = [
            *mismatches,
            *real_warnings,
            *(set_warnings(path, fake) if path != paths[0] else []),
            *pair_warnings(paths[0], real, path, fake),
        ]
        skipped = skipped_files(paths[0], real) + (skipped_files(path, fake) if path != paths[0] else ())
        results.append(Comparison(paths[0], path, distance, real.count, fake.count, tuple(warnings), skipped))
    return tuple(results)


def skipped_files(path: str, statistics: Statistics) -> tuple[SkippedFile, ...]:
    """The files of a set that were left out."""
    return tuple(SkippedFile(path, bad.file, bad.reason) for bad in statistics.skipped)


def _record(session: _Session, measurer: Measurer | None) -> RunRecord:
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
        probe=measurer.probe if measurer else None,
        linear_algebra_threads=linear_algebra_threads(),
        seconds=seconds,
        images_per_second=computed / extract if computed else None,
        versions=versions(),
        warnings=tuple(measurer.warnings) if measurer else (),
    )
