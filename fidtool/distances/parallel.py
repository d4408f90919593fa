"""Distribution of work over the ranks of a run and over the cores of a rank."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

from fidtool.cpus import available_threads, machine_cores
from fidtool.distributed.world import World
from fidtool.images.batches import deal

T = TypeVar("T")

_MAX_THREADS = 8
"""Largest number of threads for linear algebra."""


@contextlib.contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Sets the number of torch's intra-op threads within a ``with`` block."""
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
