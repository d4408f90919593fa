"""How long the ranks take to add up their moments: ``torchrun --nproc-per-node=2 bench_merge.py``. Prints JSON."""

from __future__ import annotations

import json
import statistics
import sys
import time

import torch

from fidtool.distributed.launch import discover_here
from fidtool.distributed.world import open_world
from fidtool.statistics.moments import ExactMoments

_ROUNDS = 5


def main(dims: int) -> None:
    """Merges sums of ``dims`` dimensions over the ranks, some times over."""
    with open_world(discover_here()) as world:
        seconds = []
        for _ in range(_ROUNDS):
            moments = ExactMoments(dims, 18)
            moments.add(torch.ones(8, dims))
            moments.flush()
            world.gather(None)  # all begin together
            started = time.perf_counter()
            moments.merge(world)
            seconds.append(time.perf_counter() - started)
        if world.rank == 0:
            print(json.dumps({"ranks": world.size, "seconds": statistics.median(seconds), "bytes": 8 * dims**2}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
