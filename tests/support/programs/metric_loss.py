"""A custom torchmetrics Metric as the loss of a DDP training: is its gradient that of the joined batch?

``metric_loss.py LIBRARY SIZES``: gathered by torchmetrics or by fidtool; SIZES such as 3,5,0,2 are the ranks' batches.
Prints the ratio of the parameters' gradient to that of a single process on the joined batch, and its largest error.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
import torchmetrics
from common import say
from torch.nn.parallel import DistributedDataParallel

from fidtool.training import dist_sync_fn


class Spread(torchmetrics.Metric):
    """Spread of the embeddings: a loss of the whole batch that is not a sum over its samples."""

    full_state_update = True

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.add_state("embeddings", [], dist_reduce_fx="cat")
        self.add_state("total", torch.zeros(()), dist_reduce_fx="sum")

    def update(self, embeddings: torch.Tensor) -> None:
        self.embeddings.append(embeddings)
        self.total = self.total + embeddings.square().sum()

    def compute(self) -> torch.Tensor:
        every = torch.cat(self.embeddings) if isinstance(self.embeddings, list) else self.embeddings
        gram = every @ every.T
        return gram.exp().mean().log() + 0.1 * self.total


def main(library: str, sizes: str) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    counts = [int(size) for size in sizes.split(",")]
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 4)
    joined = torch.randn(sum(counts), 6)
    own = joined.split(counts)[rank]

    single = Spread()
    single(model(joined)).backward()
    wanted = model.weight.grad.clone()
    model.zero_grad()

    ddp = DistributedDataParallel(model)
    metric = Spread(dist_sync_on_step=True, **({} if library == "torchmetrics" else {"dist_sync_fn": dist_sync_fn}))
    loss = metric(ddp(own))
    say(f"graph {rank} {loss.requires_grad}")
    loss.backward()
    ratio = (model.weight.grad * wanted).sum() / wanted.square().sum()
    error = (model.weight.grad - wanted).abs().max() / wanted.abs().max()
    say(f"gradient {rank} ratio {ratio:.6f} error {error:.2e}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
