"""How work is spread: over the ranks of a run, and over the cores of one rank."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

from fidtool.distributed.world import World
from fidtool.features.device import available_cores
from fidtool.images.batches import deal

T = TypeVar("T")

_MAX_THREADS = 8


@contextlib.contextmanager
def using_threads(count: int) -> Iterator[None]:
    """``count`` intra-op threads of torch's for the length of a ``with`` block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def fair_threads(world: World) -> int:
    """This rank's share of the machine's cores. For exact arithmetic alone: elsewhere the count shows in the bits."""
    return max(1, available_cores() // world.launch.local_world_size)


def linear_algebra_threads() -> int:
    """Threads that the distance uses: by the machine, not by the launcher or the world size, which must not count."""
    return min(os.cpu_count() or 1, _MAX_THREADS)


def share_out(jobs: Sequence[Callable[[], T]], world: World) -> list[T]:
    """Does each job on one rank. A collective.

    Args:
        jobs: the same on every rank; the first go to rank zero, one, two, and so on around. Results are small and
            picklable.
        world: the ranks.

    Returns:
        The results, in the order of the jobs, on every rank.

    Raises:
        FidtoolError: a job failed, here or elsewhere.
    """
    mine: list[T] = []
    with world.together():
        for job in deal(jobs, world.rank, world.size):
            if world.must_stop():
                break
            mine.append(job())
    by_rank = [iter(theirs) for theirs in world.gather(mine)]
    return [next(by_rank[number % world.size]) for number in range(len(jobs))]
