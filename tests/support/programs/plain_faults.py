"""A training program in plain torch with common mistakes in computing FID, with torchmetrics or with fidtool.

``plain_faults.py LIBRARY CASE``: ``rank-zero`` computes on rank zero only; ``local`` does so with sync_on_compute off;
``unequal`` gives rank 1 no new images before the second compute. Each rank prints ``done`` if training continued.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from common import metric_of, pictures, say
from torch.nn.parallel import DistributedDataParallel

from fidtool.training import AbsentRanksError


def train(model: DistributedDataParallel) -> None:
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()


def main(library: str, case: str) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    settings: dict[str, Any] = {"sync_on_compute": False} if case == "local" else {}
    if library != "torchmetrics" and case == "rank-zero":
        settings["sync_timeout"] = 3.0  # in the other cases all ranks eventually call it
    metric = metric_of(library, **settings)
    train(model)
    metric.update(pictures(20, 10 + rank), real=True)
    metric.update(pictures(20, 20 + rank), real=False)
    say(f"at the fault {rank}, {time.time()}")
    if case == "unequal":
        say(f"first {rank} {float(metric.compute()):.6f}")
        if rank == 0:
            metric.update(pictures(20, 30), real=False)
        say(f"second {rank} {float(metric.compute()):.6f}")
    elif rank == 0:
        started = time.monotonic()
        try:
            say(f"value {rank} {float(metric.compute()):.6f}")
        except AbsentRanksError as error:
            say(f"refused {rank} after {time.monotonic() - started:.1f} s: {error}")
    train(model)
    say(f"done {rank}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
