"""Replicas of modules that differ between ranks in every way; an ArcFace loss that diverges, and
one that does not.
"""

from __future__ import annotations

import contextlib

import torch
import torch.distributed as dist
from common import fidtool, refused, say, statistics_of
from common import pictures as shared_pictures
from pytorch_metric_learning.losses import ArcFaceLoss
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fidtool.distributed.world import World
from fidtool.training import (
    AbsentRanksError,
    FrechetLoss,
    OutOfSyncError,
    assert_in_sync,
    gather_with_grad,
    group,
    wrap_trainable,
)

STEPS, BATCH = 5, 6


class Module(nn.Module):
    """Parameters and buffers, including one that is not in the state_dict."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Linear(3, 2)
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("table", torch.arange(4), persistent=False)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.norm(self.layer(values))  # type: ignore[no-any-return]


def check_differences(rank: int) -> None:
    """Check that every rank reports the same name, rank and difference; also for tensors that
    cannot be subtracted.
    """
    assert_in_sync(Module())
    assert_in_sync(DistributedDataParallel(Module()))
    modules = [Module() for _ in range(6)]
    modules[1].norm.running_mean += rank
    if rank == 1:
        modules[0].layer.weight.data[0, 0] += 0.25
        modules[2].table = torch.arange(5)
        modules[3].double()
        modules[4].extra = nn.Parameter(torch.ones(1))
        del modules[4].layer
        modules[5].layer.weight.data[0, 0] = float("nan")
    for module in modules:
        refused(OutOfSyncError, lambda: assert_in_sync(module))  # noqa: B023
    for table in (
        torch.tensor([2**60 + (rank == 1)]),
        torch.tensor([float("inf"), 1.0 + (rank == 1)]),
        torch.tensor([-0.0 if rank == 1 else 0.0]),
    ):
        modules[0].table = table
        refused(OutOfSyncError, lambda: assert_in_sync(modules[0]))
    refused(
        OutOfSyncError,
        lambda: assert_in_sync(nn.Linear(2, 2, device="meta" if rank == 1 else "cpu")),
    )
    refused(OutOfSyncError, lambda: assert_in_sync(nn.LazyLinear(2) if rank else nn.Linear(3, 2)))
    normed = DistributedDataParallel(Module())
    normed(torch.full((4, 3), float(rank)))
    refused(
        OutOfSyncError, lambda: assert_in_sync(normed), "only at the start of the next forward pass"
    )
    for same in (nn.LazyLinear(2), nn.Linear(2, 2, device="meta"), nn.Identity()):
        assert_in_sync(same)
    dist.barrier()  # so that none of the waiting ranks is late
    if rank:
        refused(AbsentRanksError, lambda: assert_in_sync(Module(), timeout=3.0))
    dist.barrier()
    refused(fidtool.RunError, lambda: assert_in_sync(Module()), "rank 0 is at call number")
    assert_in_sync(Module())


def fail_together(world: World, rank: int) -> None:
    with world.together():
        raise fidtool.RunError(f"rank {rank} has no image")


def check_lost(rank: int) -> None:
    """Check a rank that is absent from the transfer after the rendezvous: the others raise and
    create a new group. Called first, because the connections keep the timeout they were made with.
    """
    group.TRANSPORT_SECONDS = 5.0
    ranks = group.ranks_of()
    ranks.exchange("transfer", {}, 10, "")
    with ranks.world("transfer") as world:
        assert world.gather(rank) == [0, 1, 2]
        # Not the last to fail.
        refused(fidtool.RunError, lambda: fail_together(world, rank), "rank 0 has no image")
    ranks.exchange("transfer", {}, 10, "")
    if rank:
        with contextlib.suppress(fidtool.RunError), ranks.world("transfer") as world:
            world.gather(rank)
            raise AssertionError("rank 0 was not there")
    group.TRANSPORT_SECONDS = 300.0
    dist.barrier()
    assert_in_sync(nn.Linear(2, 2, bias=False, device="meta"))
    assert gather_with_grad(torch.tensor([rank])).tolist() == [0, 1, 2]


def embeddings_of(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the joined batch of one step, which consists of all ranks' shares."""
    generator = torch.Generator().manual_seed(step)
    count = dist.get_world_size() * BATCH
    return torch.randn(count, 8, generator=generator), torch.randint(
        0, 4, (count,), generator=generator
    )


def trained(loss: nn.Module, whole: bool) -> torch.Tensor:
    """Return ArcFace's W after some steps, on this rank's share or on the joined batch."""
    optimizer = torch.optim.SGD(loss.parameters(), lr=0.5)
    rank = dist.get_rank()
    for step in range(STEPS):
        embeddings, labels = embeddings_of(step)
        share = slice(None) if whole else slice(rank * BATCH, (rank + 1) * BATCH)
        optimizer.zero_grad()
        loss(embeddings[share], labels[share]).backward()
        optimizer.step()
    return getattr(loss, "module", loss).W.detach()


def arcface() -> ArcFaceLoss:
    """Return a loss whose W is initially the same on every rank."""
    torch.manual_seed(3)
    return ArcFaceLoss(num_classes=4, embedding_size=8)


def check_drift(rank: int) -> None:
    """Check that an unwrapped W is reported, and that a wrapped one equals that of a single process
    on every rank.
    """
    loose = arcface()
    assert_in_sync(loose)
    trained(loose, whole=False)
    refused(OutOfSyncError, lambda: assert_in_sync(loose))
    wrapped = wrap_trainable(arcface())
    together = trained(wrapped, whole=False)
    assert_in_sync(wrapped)
    every = [torch.zeros_like(together) for _ in range(dist.get_world_size())]
    dist.all_gather(every, together)
    assert all(torch.equal(weights, together) for weights in every)
    single = trained(arcface(), whole=True)
    # In float32 the ranks' means are averaged in a different order than the joined batch's, in each
    # of five steps.
    torch.testing.assert_close(together, single, rtol=1e-5, atol=1e-6)
    assert (single - arcface().W.detach()).abs().max() > 0.1, "training has changed W"


def check_loss(rank: int) -> None:
    """Check that the gradients of a wrapped projection are those of the joined batch."""
    real = statistics_of(shared_pictures(60, 1))
    generator = torch.Generator().manual_seed(4)
    features = (
        torch.randn(3 * dist.get_world_size(), 16, generator=generator, dtype=torch.float64) * 0.3
    )
    share = features[rank * 3 : rank * 3 + 3]

    def made() -> tuple[nn.Linear, FrechetLoss]:
        torch.manual_seed(5)
        return nn.Linear(16, 16).double(), FrechetLoss(real, projection=nn.Linear(16, 6)).double()

    encoder, loss = made()
    ddp, wrapped = DistributedDataParallel(encoder), wrap_trainable(loss)
    value = wrapped(ddp(share))
    value.backward()
    alone_encoder, alone = made()
    alone.group = dist.new_group([rank], use_local_synchronization=True)
    wanted = alone(alone_encoder(features))
    wanted.backward()
    torch.testing.assert_close(value, wanted, rtol=1e-9, atol=0)
    for ours, theirs in ((encoder, alone_encoder), (loss, alone)):
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            # Float64's rounding through a singular value decomposition; entries near zero have no
            # relative error.
            torch.testing.assert_close(mine.grad, other.grad, rtol=1e-8, atol=1e-12)
    bad = torch.zeros(2, 16 if rank else 5, dtype=torch.float64)
    kind = fidtool.RunError if rank else fidtool.InputError
    refused(
        kind,
        lambda: FrechetLoss(real)(bad),
        "tensor of shape (n, 16), not torch.float64 of shape (2, 5)",
    )


def main() -> None:
    dist.init_process_group("gloo")
    for check in (check_lost, check_differences, check_drift, check_loss):
        check(dist.get_rank())
        say(f"{check.__name__} {dist.get_rank()} done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
