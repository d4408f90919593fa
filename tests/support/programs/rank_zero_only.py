"""A common mistake: one rank computes the value, and the others go on to a collective of torch."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from common import network, pictures

from fidtool.training import FrechetInceptionDistance


def main() -> None:
    dist.init_process_group("gloo")
    metric = FrechetInceptionDistance(network(), sync_timeout=2)
    metric.update(pictures(4, 1), real=True)
    metric.update(pictures(4, 2), real=False)
    if os.environ["RANK"] == "0":
        metric.compute()
    dist.all_reduce(torch.ones(1))


if __name__ == "__main__":
    main()
