"""What the steps of one run share on one rank."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fidtool.clock import Clock
from fidtool.console import Console
from fidtool.distributed.launch import discover_here
from fidtool.distributed.watchdog import Deadlines
from fidtool.distributed.world import World, open_world
from fidtool.errors import FidtoolError, InputError, on_every_rank
from fidtool.features.device import Device, choose_device
from fidtool.features.protocol import protocol_named
from fidtool.features.torch_state import repeatable
from fidtool.record import recorded
from fidtool.settings import Settings
from fidtool.sources.memory import Images
from fidtool.versions import versions

_at_work = threading.RLock()
"""Held by the thread that runs; a program's own code may start a run inside one."""


@dataclass
class Session:
    """What the steps of one run share on one rank.

    Attributes:
        world: the ranks.
        device: this rank's device.
        config: settings of the run.
        console: rank zero's voice, mute on the others.
        clock: takes the phases' times.
        given: the sets that are in no file, by the names under which they go.
        outside: a context in which a program's own code runs under its own settings; no network may compute meanwhile.
        kept: what to tell the user of finished work, should the run fail.
    """

    world: World
    device: Device
    config: Settings
    console: Console
    clock: Clock
    given: Mapping[str, Images]
    outside: Callable[[], contextlib.AbstractContextManager[None]]
    kept: Callable[[], str] = str


@contextlib.contextmanager
def open_session(
    paths: Sequence[str],
    config: Settings,
    console: Console,
    before: Callable[[], None] | None,
    given: Mapping[str, Images] | None = None,
) -> Iterator[Session]:
    """Meets the other ranks, and refuses those that were started otherwise. A collective, for the length of a ``with``.

    Args:
        paths: the sets, as given.
        config: settings.
        console: rank zero's voice.
        before: a check that rank zero makes before any work.
        given: those of the sets that are in no file.

    Raises:
        InputError: the ranks were not started alike, or the check failed.
    """
    clock = Clock()
    launch = discover_here()
    if launch.hint and launch.rank == 0:
        console.warn(f"waiting for the other {launch.world_size - 1} tasks of the SLURM job; {launch.hint}")
    if config.protocol is not None:
        protocol_named(config.protocol)
    deadlines = Deadlines(config.peer_timeout, config.timeout)
    session: list[Session] = []

    def tell(error: FidtoolError, aloud: bool) -> None:
        if console.fail is not None:
            console.fail(error.noted(session[0].kept() if session else ""), aloud)

    with (
        _with_what_is_kept(session, console),
        _one_thread(),
        repeatable(config.precision == "tf32") as strictness,
        open_world(launch, deadlines, tell if console.fail else None) as world,
    ):
        launch = world.launch
        voice = console if world.rank == 0 else Console()
        _agree_on_the_run(world, paths, config, given or {})
        with world.together():
            device = choose_device(config.device, launch)
            _check_precision(config.precision, device)
        strictness.use(device.torch_device)
        world.use_nccl(device.use_nccl)
        world.on_rank_zero(before or _nothing)
        if device.shared:
            voice.say(f"{launch.local_world_size} ranks share a GPU here: statistics travel over gloo, not NCCL")
        session.append(Session(world, device, config, voice, clock, given or {}, strictness.paused))
        try:
            yield session[0]
        finally:
            session[0].given = {}  # what a program has open in its iterable does not wait for the garbage collector


@contextlib.contextmanager
def _with_what_is_kept(session: Sequence[Session], console: Console) -> Iterator[None]:
    """Says it at the end of the exception that a program gets, as the command line does at the end of its line."""
    try:
        yield
    except FidtoolError as error:
        words = session[0].kept() if session and console.fail is None else ""
        if not words:
            raise
        raise error.noted(words) from error.__cause__


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Refuses a second run beside one in another thread: each would change torch's settings under the other."""
    if not _at_work.acquire(blocking=False):
        raise InputError(
            "another thread of this process is in fidtool, and torch's settings are those of all threads: begin a run "
            "when the one before has ended, or give each a process of its own"
        )
    try:
        yield
    finally:
        _at_work.release()


def _agree_on_the_run(world: World, paths: Sequence[str], config: Settings, given: Mapping[str, Images]) -> None:
    """Refuses ranks that were started to do different things, or with different libraries. A collective.

    Each would deal itself images by its own plan: some would count twice and others not at all.
    """
    kinds = {f"the set {name}": images.kind for name, images in given.items()}
    # Each rank may have a device of its own.
    free = {"device": None, "report": config.exhibits}
    mine = {**recorded(config), **versions(), "paths": list(paths), **kinds, **free}
    first, *others = world.gather(mine)
    for rank, other in enumerate(others, 1):
        for name in {**first, **other}:
            if other.get(name) != first.get(name):
                message = f"{name} is {first.get(name)!r} on rank 0 and {other.get(name)!r} on rank {rank}"
                advice = "give every rank the same arguments and the same environment"
                raise on_every_rank(InputError(f"the ranks were not started alike: {message}; {advice}"))


def _check_precision(precision: str, device: Device) -> None:
    if precision == "tf32" and device.torch_device.type != "cuda":
        raise InputError(
            f"--precision tf32 is a mode of NVIDIA GPUs and this run is on {device.torch_device.type}: "
            "take fp32, bf16 or fp16"
        )


def _nothing() -> None:
    """No check of the caller's."""
