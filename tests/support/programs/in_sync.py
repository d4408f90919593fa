"""Replicas of modules that differ between ranks in every way; an ArcFace loss that diverges, and one that does not."""

from __future__ import annotations

import contextlib
import sys
import warnings

import torch
import torch.distributed as dist
from common import fidtool, refused, say, statistics_of
from common import pictures as shared_pictures
from pytorch_metric_learning.losses import ArcFaceLoss
from torch import nn
from torch.nn.parallel import DistributedDataParallel

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


def check_differences(rank: int) -> None:
    """Check that every rank reports the same name, rank and difference."""
    assert_in_sync(Module())
    assert_in_sync(DistributedDataParallel(Module()))

    module = Module()
    if rank == 1:
        module.layer.weight.data[0, 0] += 0.25
    refused(OutOfSyncError, lambda: assert_in_sync(module), "Module", "layer.weight", "0.25", "rank 1", "rank 0's")
    module = Module()
    module.norm.running_mean += rank
    refused(OutOfSyncError, lambda: assert_in_sync(module), "norm.running_mean", "by 1 on rank 1, by 2 on rank 2")
    module = Module()
    if rank == 2:
        module.table[3] = 9
    refused(OutOfSyncError, lambda: assert_in_sync(module), "table", "by 6 on rank 2")
    module = Module()
    if rank == 2:
        module.table = torch.arange(5)
    refused(OutOfSyncError, lambda: assert_in_sync(module), "table has shape [4] on rank 0 and [5] on rank 2")
    module = Module().double() if rank == 1 else Module()
    refused(
        OutOfSyncError, lambda: assert_in_sync(module), "layer.weight has dtype float32 on rank 0 and float64 on rank 1"
    )
    module = Module()
    if rank == 1:
        module.extra = nn.Parameter(torch.ones(1))
        del module.layer
    message = "layer.weight is missing on rank 1", "extra is on rank 1 but not on rank 0"
    refused(OutOfSyncError, lambda: assert_in_sync(module), *message)
    module = Module()
    module.layer.weight.data[0, 0] = float("nan") if rank == 1 else 0.0
    refused(OutOfSyncError, lambda: assert_in_sync(module), "layer.weight", "by nan on rank 1")
    module = nn.Linear(2, 2) if rank else nn.Identity()  # type: ignore[assignment]
    refused(OutOfSyncError, lambda: assert_in_sync(module), "weight is on rank 1 but not on rank 0")
    dist.barrier()  # so that none of the waiting ranks is late
    if rank:
        refused(AbsentRanksError, lambda: assert_in_sync(module, timeout=3.0), "assert_in_sync()", "rank 0 of 3")
    dist.barrier()
    refused(fidtool.RunError, lambda: assert_in_sync(Module()), "rank 0 is in call number")
    assert_in_sync(Module())
    torch.manual_seed(rank)
    many = nn.Sequential(*[nn.Linear(2, 2) for _ in range(9)])
    refused(OutOfSyncError, lambda: assert_in_sync(many), "0.weight differs", "and 1 more")


def check_odd_tensors(rank: int) -> None:
    """Check tensors that cannot be subtracted directly: every rank still gets a message, immediately."""
    tables = {
        torch.eye(3).mul(1 + rank).to_sparse(): "1",
        torch.complex(torch.ones(2), torch.full((2,), float(rank))): "1",
        torch.tensor([2**60 + (rank == 1)]): "1",
        torch.tensor([float("inf"), 1.0 + (rank == 1)]): "1",
        torch.quantize_per_tensor(torch.ones(2) * rank, 0.1, 0, torch.quint8): "1",
        torch.tensor([-0.0 if rank == 1 else 0.0]): "the sign of a zero",
    }
    for table, delta in tables.items():
        module = nn.Module()
        module.register_buffer("table", table)
        refused(OutOfSyncError, lambda: assert_in_sync(module), "table differs", f"by {delta} on rank 1")  # noqa: B023
    nowhere = nn.Linear(2, 2, device="meta" if rank == 1 else "cpu")
    refused(OutOfSyncError, lambda: assert_in_sync(nowhere), "weight differs", "by an amount that cannot be computed")
    refused(OutOfSyncError, lambda: assert_in_sync(nn.LazyLinear(2) if rank else nn.Linear(3, 2)), "not initialized")
    for same in (nn.LazyLinear(2), nn.Linear(2, 2, device="meta"), nn.Identity()):
        assert_in_sync(same)


def check_lost(rank: int) -> None:
    """Check a rank that is absent from the transfer after the rendezvous: the others raise and create a new group."""
    ranks = group.ranks_of()
    ranks.exchange("transfer", {}, 10, "")
    with ranks.world("transfer") as world:
        assert world.gather(rank) == [0, 1, 2]
    group._TRANSPORT_SECONDS = 2.0
    ranks._gloo = None
    ranks.exchange("transfer", {}, 10, "")
    if rank:
        with contextlib.suppress(fidtool.RunError), ranks.world("transfer") as world:
            world.gather(rank)
            raise AssertionError("rank 0 was not there")
    group._TRANSPORT_SECONDS = 300.0
    dist.barrier()
    assert_in_sync(nn.Linear(2, 2, bias=False, device="meta"))
    assert gather_with_grad(torch.tensor([rank])).tolist() == [0, 1, 2]


def embeddings_of(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the joined batch of one step, which consists of all ranks' shares."""
    generator = torch.Generator().manual_seed(step)
    count = dist.get_world_size() * BATCH
    return torch.randn(count, 8, generator=generator), torch.randint(0, 4, (count,), generator=generator)


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
    """Check that an unwrapped W is reported, and that a wrapped one equals that of a single process on every rank."""
    loose = arcface()
    assert_in_sync(loose)
    trained(loose, whole=False)
    refused(OutOfSyncError, lambda: assert_in_sync(loose), "ArcFaceLoss", "W differs from rank 0's", "rank 1", "rank 2")
    wrapped = wrap_trainable(arcface())
    together = trained(wrapped, whole=False)
    assert_in_sync(wrapped)
    every = [torch.zeros_like(together) for _ in range(dist.get_world_size())]
    dist.all_gather(every, together)
    assert all(torch.equal(each, together) for each in every)
    single = trained(arcface(), whole=True)
    # In float32 the ranks' means are averaged in a different order than the joined batch's, in each of five steps.
    torch.testing.assert_close(together, single, rtol=1e-5, atol=1e-6)
    assert (single - arcface().W.detach()).abs().max() > 0.1, "training has changed W"


def check_loss(rank: int) -> None:
    """Check that only an unwrapped projection warns, and that a step of a wrapped one is that of the joined batch."""
    real = statistics_of(shared_pictures(60, 1))
    generator = torch.Generator().manual_seed(4)
    features = torch.randn(3 * dist.get_world_size(), 16, generator=generator, dtype=torch.float64) * 0.3
    share = features[rank * 3 : rank * 3 + 3]

    def made() -> tuple[nn.Linear, FrechetLoss]:
        torch.manual_seed(5)
        return nn.Linear(16, 16).double(), FrechetLoss(real, projection=nn.Linear(16, 6)).double()

    encoder, loss = made()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loss(encoder(share)).backward()
        loss(encoder(share))
    texts = [str(warning.message) for warning in caught if issubclass(warning.category, fidtool.FidtoolWarning)]
    assert len(texts) == 1
    assert "not wrapped in DistributedDataParallel" in texts[0]

    encoder, loss = made()
    ddp, wrapped = DistributedDataParallel(encoder), wrap_trainable(loss)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        value = wrapped(ddp(share))
    value.backward()
    alone_encoder, alone = made()
    alone_of_all = FrechetLoss(real)
    alone.group = dist.new_group([rank], use_local_synchronization=True)
    wanted = alone(alone_encoder(features))
    wanted.backward()
    torch.testing.assert_close(value, wanted, rtol=1e-9, atol=0)
    for ours, theirs in ((encoder, alone_encoder), (loss, alone)):
        for module in (ours, theirs):
            torch.optim.SGD(module.parameters(), lr=0.1).step()
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            # Float64's rounding through a singular value decomposition; entries near zero have no relative error.
            torch.testing.assert_close(mine.grad, other.grad, rtol=1e-8, atol=1e-12)
            torch.testing.assert_close(mine, other, rtol=1e-9, atol=0)
    bad = torch.zeros(2, 16 if rank else 5, dtype=torch.float64)
    kind = fidtool.RunError if rank else fidtool.InputError
    refused(kind, lambda: alone_of_all(bad), "tensor of shape (n, 16), not torch.float64 of shape (2, 5)")
    queued = FrechetLoss(real, queue=8)
    broken = share.clone()
    broken[0, 0] = float("inf") if rank else 0.0
    assert bool(queued(broken).isnan())
    assert bool(queued(share).isfinite()), "a step with infinite features does not affect the next one"
    assert int(queued.queued) == min(8, 3 * dist.get_world_size())
    assert_in_sync(queued)


def main(*checks: str) -> None:
    dist.init_process_group("gloo")
    for check in checks:
        globals()[f"check_{check}"](dist.get_rank())
        say(f"{check} {dist.get_rank()} done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
