"""Distribution of work over the ranks of a run and over the cores of a rank."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

import fidtool
from fidtool.cpus import available_threads, machine_cores
from fidtool.distributed.world import World
from fidtool.errors import InputError
from fidtool.images.batches import deal

T = TypeVar("T")

_MAX_THREADS = 8
"""Largest number of threads for linear algebra."""
_TRIAL_SECONDS = 5.0
_used: set[tuple[int, int]] = set()
"""Processes and their threads in which torch's threads were used."""


def require_threads() -> None:
    """Refuses a forked process whose parent had used torch's threads: they do not exist here, and are waited for.

    Whether that is the case is tried in a fork of this process, unless this process seems to have threads of its own.
    """
    caller = os.getpid(), threading.get_ident()
    if caller[0] != fidtool.importing_process and caller not in _used:
        inherited = any(other == caller[1] for _, other in _used)
        if (inherited or not _has_own_threads()) and not _can_use_threads():
            raise InputError(
                "this process was forked after its parent had used torch's threads, which a fork does not have, so "
                "that computations would wait for them forever:",
                "start it with multiprocessing.get_context('spawn')",
                "pass multiprocessing_context='spawn' to a DataLoader",
            )
    _used.add(caller)


def _has_own_threads() -> bool:
    with contextlib.suppress(OSError):  # only Linux has /proc
        return len(os.listdir("/proc/self/task")) > threading.active_count()
    return False


def _can_use_threads() -> bool:
    heard, told = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of exactly this
        child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(2 * round(_TRIAL_SECONDS))  # ends it if this process is killed before it can end it
            torch.set_num_threads(2)
            torch.ones(1 << 18, device="cpu").add_(1.0)
            os.write(told, b"+")
        os._exit(0)
    os.close(told)  # so that the end of the child is noticed
    try:
        return bool(select.select([heard], [], [], _TRIAL_SECONDS)[0] and os.read(heard, 1))
    finally:
        os.close(heard)
        os.kill(child, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)


@contextlib.contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Sets the number of torch's intra-op threads within a ``with`` block."""
    if count > 1:
        require_threads()
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def fair_threads(world: World) -> int:
    """Returns this rank's share of the machine's cores. For exact arithmetic only: other sums depend on it."""
    return available_threads(world.launch.local_world_size)


def linear_algebra_threads() -> int:
    """Returns the number of threads for the distance, on which its last digits depend.

    It depends on the machine, but not on world size, launcher or OMP_NUM_THREADS, which launchers set by world size.
    """
    return min(machine_cores(), _MAX_THREADS)


def share_out(jobs: Sequence[Callable[[], T]], world: World) -> list[T]:
    """Runs each job on one rank. A collective.

    Args:
        jobs: the same jobs on all ranks, which are assigned to the ranks in turn. Results must be small and picklable.
    """
    mine: list[T] = []
    with world.together():
        for job in deal(jobs, world.rank, world.size):
            if world.must_stop():
                break
            mine.append(job())
    by_rank = [iter(theirs) for theirs in world.gather(mine)]
    return [next(by_rank[number % world.size]) for number in range(len(jobs))]
