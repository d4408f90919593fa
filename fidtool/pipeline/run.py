"""What the steps of one run share on one rank, and how a run begins and ends."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fidtool.console import Console
from fidtool.distributed.launch import discover_here
from fidtool.distributed.watchdog import Deadlines
from fidtool.distributed.world import World, open_world
from fidtool.errors import FidtoolError, InputError, on_every_rank, option
from fidtool.features.device import Device, choose_device
from fidtool.features.protocol import protocol_named
from fidtool.features.torch_state import repeatable
from fidtool.record import recorded, versions
from fidtool.settings import Settings
from fidtool.sources.memory import Images
from fidtool.statistics.cache import limit_bytes
from fidtool.statistics.checkpoint import Checkpoint
from fidtool.statistics.feature_buffer import memory_bytes

WORTH_TELLING_SECONDS = 30.0
"""The loss of less work than this is not mentioned."""

_running = threading.RLock()
"""Held by the thread that runs; a program's own code may start a run inside one."""


class Clock:
    """Wall time of the phases of a run, and of what overlaps within one, in seconds."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._phases: dict[str, float] = {}
        self._parts: dict[str, float] = {}
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self._phases[phase] = self._phases.get(phase, 0.0) + time.perf_counter() - started

    @contextlib.contextmanager
    def busy(self, part: str, share: float = 1.0) -> Iterator[None]:
        """Times work that overlaps with other work, in any thread: this ``share`` of the time counts."""
        started = time.perf_counter()
        try:
            yield
        finally:
            with self._lock:
                self._parts[part] = self._parts.get(part, 0.0) + share * (time.perf_counter() - started)

    def phases(self) -> dict[str, float]:
        """Seconds by phase so far, and ``total`` since the clock was made."""
        return {**self._phases, "total": time.perf_counter() - self._started}

    def parts(self) -> dict[str, float]:
        """Seconds by part; parts overlap."""
        with self._lock:
            return dict(self._parts)


class FinishedWork:
    """The work that a run has done and where it is saved, for the message of an error that ends the run.

    Attributes:
        folder: the checkpoint's, as it was given; None where there is none.
        checkpoint: what saves finished work there.
    """

    def __init__(self) -> None:
        self.folder: str | None = None
        self.checkpoint: Checkpoint | None = None
        self._cached: list[str] = []
        self._seconds: dict[str, float] = {}  # by set, of those that are not in the cache
        self._began: float | None = None

    @contextlib.contextmanager
    def in_progress(self, path: str) -> Iterator[None]:
        """For the time in which a set goes through the networks."""
        self._began = time.monotonic()
        try:
            yield
        finally:
            self._seconds[path] = time.monotonic() - self._began
            self._began = None

    def cached(self, path: str) -> None:
        """Notes that the statistics of a set are in the cache."""
        self._seconds.pop(path, None)
        self._cached.append(path)

    def advice(self) -> str:
        """How to continue after an error, for the end of its message; empty where there is nothing to say."""
        if self.checkpoint is not None and self.checkpoint.has_work:
            return f"; finished work is kept in {self.folder}: the same command goes on from there"
        rest, words = "nothing is kept", ""
        if self._cached:
            first, *others = self._cached
            sets = f"{first} and {len(others)} more" if others else first
            words = f"; the statistics of {sets} are in the cache: the same command goes on from there"
            rest = "of the rest nothing is kept"
        if self._lost_seconds() >= WORTH_TELLING_SECONDS:
            words += f"; {rest}: " + (
                f"{option('checkpoint', ...)} would have kept what was finished"
                if self.checkpoint is None
                else f"{self.folder} could not be written, or no part was finished"
            )
        return words

    def _lost_seconds(self) -> float:
        began = self._began  # the watchdog's thread may ask while the main thread works
        return sum(self._seconds.values()) + (0.0 if began is None else time.monotonic() - began)


@dataclass(frozen=True)
class RunContext:
    """What the steps of one run share on one rank.

    Attributes:
        world: the ranks.
        device: this rank's device.
        settings: of the run.
        console: rank zero's output on stderr, silent on the other ranks.
        clock: takes the times of the phases.
        in_memory: the sets that are in no file, by the names under which they go.
        outside: a context in which a program's own code runs under its own settings of torch; no network may compute
            meanwhile.
        finished: the work that an error would lose, or not.
    """

    world: World
    device: Device
    settings: Settings
    console: Console
    clock: Clock
    in_memory: dict[str, Images]
    outside: Callable[[], contextlib.AbstractContextManager[None]]
    finished: FinishedWork


@contextlib.contextmanager
def open_run(
    paths: Sequence[str], settings: Settings, console: Console, in_memory: Mapping[str, Images] | None = None
) -> Iterator[RunContext]:
    """Meets the other ranks, and refuses those that were started differently. A collective, for a ``with`` block.

    Args:
        paths: the sets, as given.
        settings: of the run.
        console: output of rank zero on stderr.
        in_memory: those of the sets that are in no file.

    Raises:
        InputError: the ranks were started differently, or there is no such device.
        RunError: a rank was lost, or did not come.
    """
    clock, finished, sets = Clock(), FinishedWork(), dict(in_memory or {})
    launch = discover_here()
    if launch.hint and launch.rank == 0:
        console.warn(f"waiting for the other {launch.world_size - 1} tasks of the SLURM job; {launch.hint}")
    if settings.protocol is not None:
        protocol_named(settings.protocol)
    deadlines = Deadlines(settings.peer_timeout, settings.timeout)
    on_failure = console.fail

    def report(error: FidtoolError, aloud: bool) -> None:
        if on_failure is not None:
            on_failure(error.noted(finished.advice()), aloud)

    try:
        with (
            _one_thread(),
            repeatable(settings.precision == "tf32") as torch_state,
            open_world(launch, deadlines, report if on_failure else None) as world,
        ):
            _check_same_start(world, paths, settings, sets)
            with world.together():
                device = choose_device(settings.device, world.launch)
                _check_precision(settings.precision, device)
                limit_bytes(), memory_bytes()  # reports an invalid environment variable before any work is done
            torch_state.use(device.torch_device)
            world.use_nccl(device.use_nccl)
            heard = console if world.rank == 0 else Console()
            if device.shared:
                ranks = world.launch.local_world_size
                heard.say(f"{ranks} ranks share a GPU here: statistics travel over gloo, not NCCL")
            try:
                yield RunContext(world, device, settings, heard, clock, sets, torch_state.paused, finished)
            finally:
                sets.clear()  # what a program has open in its iterable does not wait for the garbage collector
    except FidtoolError as error:
        # A program reads at the end of its exception what the command line has at the end of its line.
        advice = "" if on_failure is not None else finished.advice()
        if not advice:
            raise
        raise error.noted(advice) from error.__cause__


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Refuses a second run beside one in another thread: each would change torch's settings under the other."""
    if not _running.acquire(blocking=False):
        raise InputError(
            "another thread of this process is in fidtool, and torch's settings are those of all threads:",
            "begin a run when the one before has ended",
            "give each a process of its own",
        )
    try:
        yield
    finally:
        _running.release()


def _check_same_start(world: World, paths: Sequence[str], settings: Settings, in_memory: Mapping[str, Images]) -> None:
    """Refuses ranks that were started to do different things, or with different libraries. A collective.

    Each would deal itself images by its own plan: some would count twice and others not at all.
    """
    kinds = {f"the set {name}": images.kind for name, images in in_memory.items()}
    # Each rank may have a device of its own.
    free = {"device": None, "report": settings.exhibits}
    mine = {**recorded(settings), **versions(), "paths": list(paths), **kinds, **free}
    first, *others = world.gather(mine)
    for rank, other in enumerate(others, 1):
        for name in {**first, **other}:
            if other.get(name) != first.get(name):
                values = f"{name} is {first.get(name)!r} on rank 0 and {other.get(name)!r} on rank {rank}"
                remedy = "give every rank the same arguments and the same environment"
                raise on_every_rank(InputError(f"the ranks were not started alike: {values}", remedy))


def _check_precision(precision: str, device: Device) -> None:
    if precision == "tf32" and device.torch_device.type != "cuda":
        raise InputError(
            f"{option('precision', 'tf32')} is a mode of NVIDIA GPUs and this run is on {device.torch_device.type}:",
            "take fp32, bf16 or fp16",
            setting="precision",
        )
