"""FIDCallback before and after a callback that averages the weights: what each generates with, and
what is saved.

``lightning_averaging.py FOLDER``: every rank prints a line for each training.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from common import network, pictures, say, statistics_of
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint
from lightning_training import QUIET, SIZE

from fidtool.training import FIDCallback


class Model(pl.LightningModule):
    """Its images are the darker the larger its only weight is."""

    def __init__(self) -> None:
        super().__init__()
        self.darkness = torch.nn.Parameter(torch.tensor(4.0))
        self.generated_with = 0.0

    def generate(self, count: int, seed: int) -> torch.Tensor:
        self.generated_with = float(self.darkness)
        return pictures(count, seed % 2**32).float() / 255 / self.darkness

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        return self.darkness * batch.mean()

    def validation_step(self, batch: torch.Tensor, _: int) -> None:
        pass

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.25)


class OwnAveraging(pl.Callback):
    """As a program's own callback: for the validation the weight is 5."""

    def on_validation_epoch_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        self.kept = pl_module.darkness.data.clone()
        pl_module.darkness.data.fill_(5.0)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        pl_module.darkness.data.copy_(self.kept)


def run(folder: Path, averaging: pl.Callback, first: bool, validation: bool, weights: Any) -> None:
    fid = FIDCallback(
        "generate",
        statistics_of(pictures(40, 1)),
        num_samples=16,
        batch_size=4,
        name="fid",
        model_weights=weights,
        feature=network(),
        sync_timeout=900,
    )
    best = ModelCheckpoint(folder, monitor="fid", enable_version_counter=False)
    trainer = pl.Trainer(
        max_epochs=2,
        devices=SIZE,
        strategy="ddp" if SIZE > 1 else "auto",
        callbacks=[best, fid, averaging] if first else [averaging, fid, best],
        **QUIET,
    )
    data = torch.utils.data.DataLoader(torch.ones(4 * SIZE, 4), batch_size=1)
    model = Model()
    trainer.fit(model, data, data if validation else None)
    saved = torch.load(best.best_model_path, weights_only=True)
    assert best.best_model_score == fid.frechet_distance == trainer.callback_metrics["fid"]
    kept = saved["current_model_state" if weights == "raw" else "state_dict"]["darkness"]
    is_saved = model.generated_with == float(kept)
    kind, when = type(averaging).__name__, "validation" if validation else "training"
    say(
        f"{trainer.global_rank} {kind} {when} {weights}: {model.generated_with} {is_saved} "
        f"{fid.frechet_distance!r}"
    )


def main(folder: str) -> None:
    for validation, weights, first in itertools.product(
        (True, False), ("averaged", "raw"), (True, False)
    ):
        # Without a validation it is an average of epochs: the callback updates it after the
        # FIDCallback before it.
        of_steps = {"update_every_n_steps": 1 if validation else 0}
        of_epochs = {} if validation else {"update_starting_at_epoch": 0}
        averaging = EMAWeightAveraging(decay=0.5, **of_steps, **of_epochs)
        run(Path(folder), averaging, first, validation, weights)
    for first in (True, False):
        run(Path(folder), OwnAveraging(), first, True, "averaged")


if __name__ == "__main__":
    main(*sys.argv[1:])
