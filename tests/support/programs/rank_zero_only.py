"""A common mistake: one rank computes the value, and the others go on to a collective of torch."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from common import fidtool, network, pictures, refused

from fidtool.training import AbsentRanksError, FrechetInceptionDistance


def main(recover: bool) -> None:
    """With ``recover``, rank zero catches the error, the ranks go on, and it fails later for
    another reason.
    """
    dist.init_process_group("gloo")
    metric = FrechetInceptionDistance(network(), sync_timeout=2)
    metric.update(pictures(4, 1), real=True)
    metric.update(pictures(4, 2), real=False)
    if os.environ["RANK"] == "0":
        if not recover:
            metric.compute()
        refused(AbsentRanksError, metric.compute, "waiting for rank 1")
    if recover:
        dist.barrier()
        refused(fidtool.RunError, metric.compute, "rank 1 missed a call")
        metric.compute()
        if os.environ["RANK"] == "0":
            raise SystemExit("another failure")
    dist.all_reduce(torch.ones(1))


if __name__ == "__main__":
    main(sys.argv[1:] == ["recover"])
