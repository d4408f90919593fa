"""A Lightning training with common mistakes in computing or logging FID, with torchmetrics or with fidtool.

``lightning_faults.py LIBRARY CASE``: ``validation-end`` computes in a hook under @rank_zero_only; ``global-zero`` logs
under ``if trainer.is_global_zero``; ``early-stopping`` logs the value that EarlyStopping monitors with
rank_zero_only=True. With ``callback`` instead of a library, FIDCallback computes the FID and the model logs nothing.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import lightning.pytorch as pl
import torch
from common import metric_of, network, pictures, say, statistics_of
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.utilities import rank_zero_only
from lightning_training import QUIET

from fidtool.training import AbsentRanksError, FIDCallback


class Model(pl.LightningModule):
    """Trains a minimal model, whose samples get worse from epoch to epoch."""

    def __init__(self, library: str, case: str) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.library, self.case = library, case
        if library != "callback":
            self.fid = metric_of(library, **({} if library == "torchmetrics" else {"sync_timeout": 3.0}))

    def generate(self, count: int, seed: int) -> torch.Tensor:
        return pictures(count, seed % 2**32) // (self.current_epoch + 1)

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        return self.layer(batch).sum()

    def validation_step(self, batch: torch.Tensor, index: int) -> None:
        if self.library != "callback":
            self.fid.update(pictures(8, index), real=True)
            self.fid.update(self.generate(8, 10 + index + 100 * self.global_rank), real=False)

    def on_validation_epoch_end(self) -> None:
        say(f"at the fault {self.global_rank}, {time.time()}")
        if self.library == "callback" or self.case == "validation-end":
            return
        value = self.fid.compute()
        self.fid.reset()
        if self.case == "global-zero":
            if self.trainer.is_global_zero:
                self.log("fid", value, sync_dist=True)
        elif self.trainer.is_global_zero:
            self.log("fid", value, rank_zero_only=True)

    def on_validation_end(self) -> None:
        if self.library != "callback" and self.case == "validation-end":
            self.on_rank_zero()

    @rank_zero_only
    def on_rank_zero(self) -> None:
        try:
            say(f"value {float(self.fid.compute()):.6f}")
        except AbsentRanksError as error:
            say(f"refused: {error}")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def main(library: str, case: str) -> None:
    """Train for three epochs, or fewer if EarlyStopping ends the training."""
    callbacks: list[Any] = [EarlyStopping("fid", patience=0, strict=False)] if case == "early-stopping" else []
    if library == "callback":
        reference = statistics_of(pictures(40, 1))
        callbacks.append(
            FIDCallback("generate", reference, num_samples=40, batch_size=8, feature=network(), sync_timeout=900.0)
        )
    settings = {"enable_checkpointing": False, "num_sanity_val_steps": 0, **QUIET}
    trainer = pl.Trainer(max_epochs=3, devices=2, strategy="ddp", callbacks=callbacks, **settings)
    data = torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=2)
    trainer.fit(Model(library, case), data, data)
    value = trainer.callback_metrics.get("fid")
    say(f"done {trainer.global_rank} after {trainer.current_epoch} epochs with {value}")


if __name__ == "__main__":
    main(*sys.argv[1:])
