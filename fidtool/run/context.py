"""The context that the steps of one run share on one rank, and the start and end of a run."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from fidtool.distributed.launch import discover, single_process
from fidtool.distributed.world import World, open_world
from fidtool.errors import (
    FidtoolError,
    InputError,
    RunError,
    format_argument,
    mark_agreed,
    option,
    unwrap_program_errors,
)
from fidtool.features.device import Device, choose_device, deterministic_mode
from fidtool.run.sets import RequestedSet
from fidtool.settings.record import record_settings, versions
from fidtool.settings.settings import Settings
from fidtool.statistics.checkpoint import Checkpoint
from fidtool.statistics.moments import check_exact_products
from fidtool.system.console import Console
from fidtool.system.variables import check_variables

MIN_REPORTED_SECONDS = 30.0
"""Lost work is only reported if it took at least this long."""

# Held by the thread that has a run. Reentrant, because user code within a run may start another.
_running = threading.RLock()


class Clock:
    """Measures wall times by name, in any thread.

    Args:
        began: the zero of the timeline, of `time.perf_counter`; None is now.

    Attributes:
        started: when the clock was made.
        seconds: the sum of the times of each name.
        first, last: the seconds from ``began`` until the first time of each name, and the last one,
            had ended.
    """

    def __init__(self, began: float | None = None) -> None:
        self.started = time.perf_counter()
        self.began = self.started if began is None else began
        self.seconds = dict[str, float]()
        self.first = dict[str, float]()
        self.last = dict[str, float]()
        self._adding = threading.Lock()

    @contextlib.contextmanager
    def __call__(self, name: str, share: float = 1.0) -> Iterator[None]:
        """Add the time of the block, or a ``share`` of it where work overlaps."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, share * (time.perf_counter() - started))

    def add(self, name: str, seconds: float) -> None:
        """Add a time that ends now."""
        with self._adding:
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds
            self.last[name] = time.perf_counter() - self.began
            self.first.setdefault(name, self.last[name])


@dataclass
class FinishedWork:
    """The finished work of a run and where it is saved, for the message of an error that ends the
    run.

    Attributes:
        cached: sets whose statistics the run has put into the cache.
        unsaved_since: time since which a set's features are extracted, of `time.monotonic`.
    """

    checkpoint: Checkpoint | None = None
    cached: list[str] = field(default_factory=list)
    unsaved_since: float | None = None

    def advice(self) -> str:
        """How to continue after an error, for the end of its message; may be empty."""
        if self.checkpoint is not None and self.checkpoint.has_work:
            return (
                f"; finished work is saved in {self.checkpoint.folder}: run the same command "
                "again to resume"
            )
        text = ""
        lost = "no work"
        if self.cached:
            sets = self.cached[0]
            if len(self.cached) > 1:
                sets += f" and {len(self.cached) - 1} more"
            text = (
                f"; the statistics of {sets} are cached: run the same command again to reuse them"
            )
            lost = "no other work"
        since = self.unsaved_since  # the watchdog's thread may ask while the main thread works
        is_lost = since is not None and time.monotonic() - since >= MIN_REPORTED_SECONDS
        if self.checkpoint is None and is_lost:
            checkpoint = option("checkpoint", ...)
            text += f"; {lost} was saved: pass {checkpoint} to save finished work"
        return text


@dataclass(frozen=True)
class RunContext:
    """The context that the steps of one run share on one rank. No network may run within
    ``outside``.

    Attributes:
        clock: times each step of the run.
        busy: times parts of the work that overlap within a step.
        exits: what is undone when the run has ended.
    """

    world: World
    device: Device
    console: Console
    clock: Clock
    busy: Clock
    program_context: Callable[[], contextlib.AbstractContextManager[None]]
    finished: FinishedWork
    versions: dict[str, str]
    exits: contextlib.ExitStack


@contextlib.contextmanager
def open_run(
    requests: Sequence[RequestedSet],
    settings: Settings,
    console: Console,
    began: float | None = None,
) -> Iterator[RunContext]:
    """Context manager that joins the other ranks and checks that all were started in the same way.
    A collective.

    ``began`` is the zero of its timeline, see `Clock`.
    """
    clock = Clock(began)
    finished = FinishedWork()
    launch = single_process() if settings.alone else discover()
    if launch.hint and launch.rank == 0:
        console.warn(
            f"waiting for the other {launch.world_size - 1} tasks of the SLURM job; {launch.hint}"
        )

    def on_failure(error: FidtoolError, prints: bool) -> None:
        error.note += finished.advice()
        console.fail(error, prints)

    if not _running.acquire(blocking=False):
        raise RunError(
            "fidtool is already running in another thread, and torch's settings apply to all "
            "threads:",
            "start a run after the previous one has ended",
            "use a separate process for each run",
        )
    alone_in_program = launch.world_size == 1 and console.spelling is format_argument
    with unwrap_program_errors() if alone_in_program else contextlib.nullcontext():
        try:
            with (
                deterministic_mode(settings.precision == "tf32") as torch_state,
                contextlib.ExitStack() as exits,
                open_world(launch, settings.peer_timeout, settings.timeout, on_failure) as world,
            ):
                installed = versions()
                _check_same_start(world, requests, settings, installed)
                with world.together():
                    device = choose_device(settings.device, world.launch)
                    if settings.precision == "tf32":
                        check_tf32(device)
                    check_exact_products(device.torch_device)
                    check_variables()
                torch_state.apply(device.torch_device)
                yield RunContext(
                    world=world,
                    device=device,
                    console=console if world.rank == 0 else Console(spelling=console.spelling),
                    clock=clock,
                    busy=Clock(clock.began),
                    program_context=torch_state.suspend,
                    finished=finished,
                    versions=installed,
                    exits=exits,
                )
        except FidtoolError as error:
            if not error.printed:
                error.note += finished.advice()
            raise
        finally:
            _running.release()


def _check_same_start(
    world: World, requests: Sequence[RequestedSet], settings: Settings, installed: dict[str, str]
) -> None:
    """Raise an InputError if the ranks have different arguments or library versions. A collective.

    Each rank would otherwise follow its own plan, and some images would count twice and others not
    at all.
    """
    mine = {
        **record_settings(settings),
        **installed,
        "paths": [request.path for request in requests],
        "names": [request.name for request in requests],
        "report": settings.report is not None,
    }
    mine.pop("device", None)  # it may differ between ranks
    for request in requests:
        if request.data is not None:
            mine[f"the set {request.path}"] = getattr(request.data, "kind", "")
    first, *others = world.gather(mine)
    for rank, other in enumerate(others, 1):
        for name in {**first, **other}:
            if other.get(name) != first.get(name):
                raise mark_agreed(
                    InputError(
                        f"the ranks were started differently: {name} is {first.get(name)!r} on "
                        f"rank 0 and {other.get(name)!r} on rank {rank}",
                        "give every rank the same arguments and the same environment",
                    )
                )


def check_tf32(device: Device) -> None:
    """Raise an InputError unless the device is an NVIDIA GPU."""
    kind = device.torch_device.type
    if kind != "cuda":
        raise InputError(
            f"{option('precision', 'tf32')} needs an NVIDIA GPU, but this run uses {kind}:",
            "use fp32, bf16 or fp16",
        )
