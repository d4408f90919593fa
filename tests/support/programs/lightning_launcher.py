"""A Trainer that starts its ranks itself, as is usual: ``python lightning_launcher.py REAL FEATURE``."""

from __future__ import annotations

import sys

import lightning.pytorch as pl
import torch

import fidtool
from fidtool.training import FIDCallback


class Model(pl.LightningModule):
    """A model that generates noise with a fixed brightness."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def generate(self, count: int, seed: int) -> torch.Tensor:
        return torch.rand(count, 3, 16, 16, generator=torch.Generator().manual_seed(seed))

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        return self.layer(batch).sum()

    def on_fit_end(self) -> None:
        assert fidtool.rank_seed(0) == fidtool.rank_seed(0, self.global_rank)
        print(
            f"{self.global_rank} of {self.trainer.world_size}: {float(self.trainer.callback_metrics['fid']).hex()}\n",
            end="",
        )

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


if __name__ == "__main__":
    first = FIDCallback("generate", sys.argv[1], feature=sys.argv[2], num_samples=40, batch_size=8)
    second = FIDCallback("generate", sys.argv[1], feature=sys.argv[2], num_samples=20, name="fid20")
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        callbacks=[first, second],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data = torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=2)
    trainer.fit(Model(), data)
    trainer.fit_loop.max_epochs = 2
    first.fid = None
    trainer.fit(Model(), data)
    assert first.fid is not None, "the FID of a second training is computed as well"
