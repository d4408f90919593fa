"""Lightning with FIDCallback: one FID at any number of ranks, schedules, checkpoints, a rank that fails.

``lightning_training.py CASE FOLDER``: see `main`; every rank prints what its callbacks decided.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from common import network, pictures, say, statistics_of
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from fidtool.training import FIDCallback

SIZE = int(os.environ.get("WORLD_SIZE", "1"))
QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


class Model(pl.LightningModule):
    """Its samples depend only on the epoch, so that any number of ranks trains the same model."""

    def __init__(self, fail: bool = False) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.register_buffer("age", torch.zeros((), dtype=torch.int64))
        self.fail = fail

    def generate(self, count: int, seed: int) -> torch.Tensor:
        assert not self.training
        assert not torch.is_grad_enabled()
        if self.fail and self.global_rank == SIZE - 1:
            raise ValueError("no memory left for samples")
        brightness = (4, 3, 2, 1)[int(self.age) % 4]
        return pictures(count, seed % 2**32).float() / 255 / brightness

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        return self.layer(batch).sum()

    def validation_step(self, batch: torch.Tensor, _: int) -> None:
        assert not self.training

    def on_train_epoch_start(self) -> None:
        self.age += 1
        self.noise = torch.rand(())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def main(case: str, folder: str) -> None:
    """``values``: with and without a validation; ``every-two``; ``resume``; ``stop``; ``fail``; ``without`` FID."""
    pl.seed_everything(1, verbose=False)
    every = 2 if case == "every-two" else 1
    epochs = {"resume": 2, "stop": 9}.get(case, 4)
    for validation in (True, False) if case == "values" else (True,):
        say(described(run(folder, case, every, epochs, validation, None)))
    if case == "resume":
        say(described(run(folder, case, every, 4, True, str(Path(folder) / "last.ckpt"))))


def run(folder: str, case: str, every: int, epochs: int, validation: bool, resume: str | None) -> pl.Trainer:
    fid = FIDCallback(
        "generate",
        statistics_of(pictures(40, 1)),
        num_samples=50,
        batch_size=8,
        feature=network(),
        every_n_epochs=every,
        sync_timeout=900,
    )
    best = ModelCheckpoint(
        folder,
        "{epoch}-{fid:.6f}",
        monitor="fid",
        every_n_epochs=every,
        save_top_k=1,
        save_last=True,
        enable_version_counter=False,
    )
    callbacks: list[Any] = [fid, best]
    if case == "without":
        callbacks = [ModelCheckpoint(folder)]
    if case == "stop":
        callbacks.insert(0, EarlyStopping("fid", patience=1))
    strategy = "ddp" if SIZE > 1 else "auto"
    trainer = pl.Trainer(max_epochs=epochs, devices=SIZE, strategy=strategy, callbacks=callbacks, **QUIET)
    data = torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=2)
    model = Model(fail=case == "fail")
    trainer.fit(model, data, data if validation else None, ckpt_path=resume)
    return trainer


def described(trainer: pl.Trainer) -> str:
    """Return the last value exactly, the saved checkpoints, the last epoch, and the training's random numbers."""
    noise = float(trainer.lightning_module.noise)
    value, kept = "none", "none"
    for fid in trainer.callbacks:
        if isinstance(fid, FIDCallback):
            assert fid.fid == float(trainer.callback_metrics["fid"])
            value, kept = fid.fid.hex(), Path(trainer.checkpoint_callback.best_model_path).name
    return f"{trainer.global_rank} run: {value} {kept} {trainer.current_epoch} {noise:.6f}"


if __name__ == "__main__":
    main(*sys.argv[1:])
