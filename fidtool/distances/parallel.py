"""Distribution of work over the ranks of a run and over the cores of a rank."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch

from fidtool.distributed.launch import available_threads, machine_cores
from fidtool.distributed.world import World

P = ParamSpec("P")
T = TypeVar("T")

# Largest number of threads for linear algebra.
_MAX_THREADS = 8
# Flag of a Linux process that has executed no program since it was forked, see `proc_pid_stat(5)`.
_FORKED = 0x40
# Name of the threads of `_process_thread`.
_THREAD = "fidtool-fork"
# How often the waiting thread runs the signal handlers of the program: not every signal interrupts
# its wait.
_WAKING_SECONDS = 1.0
# How long a call that a signal handler of the program ended is awaited.
_UNWINDING_SECONDS = 10.0


@functools.lru_cache
def _is_fork(process: int) -> bool:
    with contextlib.suppress(OSError):  # only Linux has /proc
        flags = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[6]
        return bool(int(flags) & _FORKED)
    return False


@functools.lru_cache
def _process_thread(process: int) -> ThreadPoolExecutor:
    """A thread that lives as long as its process: a fork while OpenMP's threads end would find
    MKL's lock locked.
    """
    return ThreadPoolExecutor(1, _THREAD)


def fork_safe(function: Callable[P, T]) -> Callable[P, T]:
    """Decorator that calls the function in a thread of its own if the process is a fork.

    OpenMP gives that thread workers. Those of the forking thread do not exist in a fork, where
    torch's next large operation in that thread would wait for them forever.
    """

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        if not _is_fork(os.getpid()) or threading.current_thread().name.startswith(_THREAD):
            return function(*args, **kwargs)
        # Each thread has its own current device and stream.
        stream = torch.cuda.current_stream() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
        threads = list[int]()

        def call() -> T:
            threads.append(threading.get_ident())
            with torch.cuda.stream(stream) if stream else contextlib.nullcontext():
                return function(*args, **kwargs)

        future = _process_thread(os.getpid()).submit(call)
        try:
            while not future.done():
                wait_for([future], _WAKING_SECONDS)
            return future.result()
        except BaseException as error:
            # What a signal handler of the program raises in this thread ends the call, as in a
            # process that is no fork. The interpreter would wait for the call at its exit.
            future.cancel()
            if threads and not future.done():
                thread = ctypes.c_ulong(threads[0])
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(type(error)))
                wait_for([future], _UNWINDING_SECONDS)
            raise

    return called


@contextlib.contextmanager
def set_threads(count: int) -> Iterator[None]:
    """Set the number of torch's intra-op threads within a ``with`` block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def fair_threads(world: World) -> int:
    """Return this rank's share of the machine's cores. For exact arithmetic only: other sums
    depend on it.
    """
    return available_threads(world.launch.local_world_size)


def linear_algebra_threads() -> int:
    """Return the number of threads for the distance, on which its last digits depend.

    It depends on the machine, but not on world size, launcher or OMP_NUM_THREADS, which launchers
    set by world size.
    """
    return min(machine_cores(), _MAX_THREADS)


def share_out(jobs: Sequence[Callable[[], T]], world: World) -> list[T]:
    """Run each job on one rank with one torch thread, so that its bits do not depend on the ranks.
    A collective.

    All ranks have the same jobs, which are assigned to them in turn. Results must be small and
    picklable.
    """
    mine: list[T] = []
    with world.together(), set_threads(1):
        for job in jobs[world.rank :: world.size]:
            world.check_stop()
            mine.append(job())
    by_rank = [iter(theirs) for theirs in world.gather(mine)]
    return [next(by_rank[number % world.size]) for number in range(len(jobs))]
