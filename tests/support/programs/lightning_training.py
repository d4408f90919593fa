"""Lightning with FIDCallback: one FID at any number of ranks, checkpoints, a rank that fails.

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
from lightning.pytorch.callbacks import ModelCheckpoint

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
    """``values``: with and without a validation; ``resume``; ``fail``; ``without`` FID."""
    runs: dict[str, list[dict[str, Any]]] = {
        "values": [{"validation": True}, {"validation": False}],
        "resume": [{"epochs": 2}, {"resume": str(Path(folder) / "last.ckpt")}, {}],
        "fail": [{}],
        "without": [{}, {"without": True}],
    }
    for settings in runs[case]:
        pl.seed_everything(1, verbose=False)
        say(described(run(folder, fail=case == "fail", **settings)))


def run(
    folder: str,
    fail: bool,
    epochs: int = 4,
    validation: bool = True,
    resume: str | None = None,
    without: bool = False,
) -> pl.Trainer:
    reference = statistics_of(pictures(40, 1))
    settings = {
        "num_samples": 50,
        "batch_size": 8,
        "name": "fid",
        "feature": network(),
        "sync_timeout": 900,
    }
    fid = FIDCallback("generate", reference, **settings)
    best = ModelCheckpoint(
        folder,
        "{epoch}-{fid:.6f}",
        monitor="fid",
        save_top_k=1,
        save_last=True,
        enable_version_counter=False,
    )
    callbacks: list[Any] = [ModelCheckpoint(folder)] if without else [fid, best]
    strategy = "ddp" if SIZE > 1 else "auto"
    trainer = pl.Trainer(
        max_epochs=epochs, devices=SIZE, strategy=strategy, callbacks=callbacks, **QUIET
    )
    data = torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=2)
    trainer.fit(Model(fail), data, data if validation else None, ckpt_path=resume)
    return trainer


def described(trainer: pl.Trainer) -> str:
    """Return the last value exactly, the saved checkpoints, the last epoch, and the training's
    random numbers.
    """
    noise = float(trainer.lightning_module.noise)
    value, kept = "none", "none"
    for fid in trainer.callbacks:
        if isinstance(fid, FIDCallback):
            assert fid.frechet_distance == float(trainer.callback_metrics["fid"])
            value, kept = (
                fid.frechet_distance.hex(),
                Path(trainer.checkpoint_callback.best_model_path).name,
            )
    return f"{trainer.global_rank} run: {value} {kept} {trainer.current_epoch} {noise:.6f}"


if __name__ == "__main__":
    main(*sys.argv[1:])
