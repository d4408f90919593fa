"""What people reported of other tools, with those tools and with fidtool: ``situations.py
SITUATION``, on any ranks.

Shares of a batch or a set are unequal, and the last rank has nothing. Each check compares with a
single process, and prints what the other tool gives.
"""

from __future__ import annotations

import os
import sys
import warnings
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torchmetrics
from common import fidtool, network, pictures, refused, say
from pytorch_metric_learning.losses import ArcFaceLoss
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchmetrics.image.fid import FrechetInceptionDistance as TheirFID
from torchmetrics.utilities import dim_zero_cat

from fidtool.training import (
    AbsentRanksError,
    FrechetInceptionDistance,
    OutOfSyncError,
    assert_in_sync,
    assert_optimized,
    dist_sync_fn,
    gather_outputs,
    gather_with_grad,
    wrap_trainable,
)

RANK, SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
ROWS = torch.randn(13, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
LABELS = torch.arange(13) % 4
SHARES = {1: [13], 2: [13, 0], 3: [9, 4, 0]}


class Features(nn.Module):
    """The small network as torchmetrics takes it: bytes to features."""

    num_features = 16

    def __init__(self) -> None:
        super().__init__()
        self.network = network().module

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.network((images.float() - 127.5) / 127.5).mean((2, 3))


def own(values: torch.Tensor, shares: list[int]) -> torch.Tensor:
    return values.split(shares)[RANK]


def pair_loss(rows: torch.Tensor) -> torch.Tensor:
    """Return a loss of all pairs of rows."""
    return (rows @ rows.T).tanh().mean() + rows.square().mean()


class PairLoss(torchmetrics.Metric):
    """A metric that is used as a loss, as in torchmetrics' issue 2745."""

    full_state_update = False

    def __init__(self, **options: Any) -> None:
        super().__init__(dist_sync_on_step=True, **options)
        self.add_state("rows", [], dist_reduce_fx="cat")

    def update(self, rows: torch.Tensor) -> None:
        self.rows.append(rows)

    def compute(self) -> torch.Tensor:
        return pair_loss(dim_zero_cat(self.rows))


def encoder() -> nn.Module:
    torch.manual_seed(2)
    return nn.Linear(8, 8, dtype=torch.float64)


def gradient(model: nn.Module, loss: torch.Tensor) -> torch.Tensor:
    model.zero_grad()
    loss.backward()
    weight = model.get_parameter(
        "module.weight" if isinstance(model, DistributedDataParallel) else "weight"
    )
    assert weight.grad is not None
    return weight.grad.clone()


def hang_elsewhere() -> None:
    """torchmetrics' FID on rank zero only never ends; here the process group ends it."""
    metric = TheirFID(Features(), normalize=False)
    for real in (True, False):
        metric.update(pictures(20, 1 + real), real=real)
    if RANK == 0:
        metric.compute()
    dist.barrier()


def hang() -> None:
    """The same, and a rank that has nothing and one that has no new images since the last value."""
    alone = FrechetInceptionDistance(network(), name="alone", sync_timeout=2)
    if RANK == 0:
        refused(AbsentRanksError, alone.compute, "waiting for rank", "outside `if rank == 0`")
    dist.barrier()
    metric, whole = (
        FrechetInceptionDistance(network()),
        FrechetInceptionDistance(network(), name="whole", sync_on_compute=False),
    )
    for epoch in range(2):
        for real in (True, False):
            images = pictures(13, 10 + 2 * epoch + real)
            shares = SHARES[SIZE] if epoch == 0 else [13, *[0] * (SIZE - 1)]
            metric.update(own(images, shares), real=real)
            whole.update(images, real=real)
        value = metric.compute()
        assert float(value) == float(whole.compute())
        say(f"{RANK} FID of epoch {epoch}: {float(value).hex()}")


def loss() -> None:
    """A metric as a loss under DDP: torchmetrics' gradient is a fraction of the right one."""
    reference = encoder()
    expected = gradient(reference, pair_loss(reference(ROWS)))
    shares = [9, 4] if SIZE == 2 else [6, 5, 2]
    model = DistributedDataParallel(encoder())
    theirs = gradient(model, PairLoss()(model(own(ROWS, shares))))
    say(f"{RANK} torchmetrics: {float(theirs.norm() / expected.norm()):.3f} of the gradient")
    for uneven in (shares, SHARES[SIZE]):
        rows = model(own(ROWS, uneven))
        torch.testing.assert_close(
            gradient(model, pair_loss(gather_with_grad(rows))), expected, rtol=1e-12, atol=1e-15
        )
        metric = PairLoss(dist_sync_fn=dist_sync_fn)
        value = metric(model(own(ROWS, uneven)))
        torch.testing.assert_close(gradient(model, value), expected, rtol=1e-12, atol=1e-15)
        metric.reset()
    say(f"{RANK} fidtool: 1.000 of the gradient")


def validation() -> None:
    """A mean over batches and ranks, with repeated samples, is not that of the set."""
    import lightning.pytorch as pl
    from torch.utils.data import DataLoader, TensorDataset

    from fidtool.training import WithIndex

    losses = torch.arange(31.0) ** 2

    class Model(pl.LightningModule):
        def validation_step(self, batch: Any, _: int) -> None:
            index, (values,) = batch
            self.log("theirs", values.mean(), sync_dist=True)
            self.index.append(index)
            self.values.append(values)

        def on_validation_epoch_start(self) -> None:
            self.index, self.values = [], []

        def on_validation_epoch_end(self) -> None:
            (values,) = gather_outputs(self.values, index=self.index)
            assert torch.equal(values, losses)
            self.log("ours", values.mean(), sync_dist=True, reduce_fx="max")

    quiet: dict[str, Any] = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = pl.Trainer(accelerator="cpu", devices=SIZE, strategy="ddp", **quiet)
    (logged,) = trainer.validate(
        Model(), DataLoader(WithIndex(TensorDataset(losses)), 4), verbose=False
    )
    assert logged["ours"] == float(losses.mean())
    say(f"{RANK} Lightning: {logged['theirs']:.3f} in place of {float(losses.mean()):.3f}")


def seeds() -> None:
    """A generator whose ranks share a seed: torchmetrics says nothing."""
    real = pictures(60, 1)
    for kind in ("shared", "own"):
        theirs, ours = TheirFID(Features()), FrechetInceptionDistance(network())
        for metric in (theirs, ours):
            metric.update(own(real, [60, *[0] * (SIZE - 1)]), real=True)
        for number in range(RANK, 60, SIZE):
            seed = number // SIZE if kind == "shared" else fidtool.sample_seed(0, number) % 2**32
            for metric in (theirs, ours):
                metric.update(pictures(1, seed), real=False)
        values = f"torchmetrics {float(theirs.compute()):.4f}, fidtool {float(ours.compute()):.4f}"
        assert ours.result is not None
        warned = [line for line in map(str, ours.result.warnings) if "fidtool.sample_seed" in line]
        say(f"{RANK} {kind} seeds: {values}, warnings {len(warned)}")


def parameters() -> None:
    """ArcFace's W: not wrapped it drifts apart; wrapped, with the joined batch, training is that of
    one process.
    """

    def trained(model: nn.Module, loss: nn.Module, joined: bool) -> None:
        optimizer = torch.optim.SGD([*model.parameters(), *loss.parameters()], lr=0.5)
        assert_optimized(loss, optimizer)
        for _ in range(5):
            optimizer.zero_grad()
            rows, labels = own(ROWS, SHARES[SIZE]), own(LABELS, SHARES[SIZE])
            if joined:
                embeddings, labels = gather_with_grad(model(rows)), gather_with_grad(labels)
            else:
                embeddings = model(rows) if len(rows) else model(ROWS[:1])
                labels = labels if len(rows) else LABELS[:1]
            loss(embeddings, labels).backward()
            optimizer.step()

    def arcface() -> nn.Module:
        torch.manual_seed(3)
        return ArcFaceLoss(num_classes=4, embedding_size=8).double()

    model, loss = DistributedDataParallel(encoder()), arcface()
    trained(model, loss, joined=False)
    refused(OutOfSyncError, lambda: assert_in_sync(loss), "W differs")
    model, loss = DistributedDataParallel(encoder()), wrap_trainable(arcface())
    trained(model, loss, joined=True)
    assert_in_sync(loss)
    assert_in_sync(model)
    single, alone = encoder(), arcface()
    optimizer = torch.optim.SGD([*single.parameters(), *alone.parameters()], lr=0.5)
    for _ in range(5):
        optimizer.zero_grad()
        alone(single(ROWS), LABELS).backward()
        optimizer.step()
    for ours, one in ((model, single), (loss, alone)):
        for mine, expected in zip(ours.parameters(), one.parameters(), strict=True):
            torch.testing.assert_close(mine, expected, rtol=1e-12, atol=1e-14)
    say(f"{RANK} parameters: those of one process")


SITUATIONS = {
    function.__name__: function
    for function in (hang_elsewhere, hang, loss, validation, seeds, parameters)
}


def main(situation: str) -> None:
    warnings.simplefilter("ignore")
    dist.init_process_group(
        "gloo", timeout=timedelta(seconds=8 if situation == "hang_elsewhere" else 300)
    )
    SITUATIONS[situation]()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
