"""Example: any metric over a whole validation set under Lightning DDP, with the value of a single
process.

Each validation step keeps the outputs of its batch. At the end of the epoch
`fidtool.training.gather_outputs` returns those of all samples on every rank, each sample once and
in the order of the data set, although Lightning's sampler repeats samples where the ranks do not
divide their number. Whatever is computed from them is the same on every rank, so ModelCheckpoint
and EarlyStopping can use it.

Train on ``classes/``, which contains one folder of images per class; it needs ``pip install
'fidtool[lightning]'``:

    torchrun --nproc-per-node=2 scripts/examples/validate_whole_set.py classes/ --validation 31

Each rank prints the values and the least likely sample, before and after the training, and the best
checkpoint:

    rank 0: 31 samples, loss 0.745124, accuracy 0.4516, least likely 1/00016.png
    rank 0: 31 samples, loss 0.027467, accuracy 1.0000, least likely 1/00004.png, 4 epochs,
        best epoch=2-val_loss=0.0271.ckpt
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, Subset
from torchvision import datasets, transforms

from fidtool.training import WithIndex, gather_outputs

SIDE = 32


class NamedImages(datasets.ImageFolder):  # type: ignore[misc]
    """Images of one folder per class, each with its label and its file name below the root."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, str]:
        image, label = super().__getitem__(index)
        return image, label, str(Path(self.samples[index][0]).relative_to(self.root))


class Classifier(pl.LightningModule):  # type: ignore[misc]
    """A small classifier. `summary` describes its last validation."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(3 * SIDE * SIDE, 64),
            nn.BatchNorm1d(64),
            nn.ReLU(),
            nn.Linear(64, classes),
        )
        self.summary = ""

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        """Return the cross entropy of a batch."""
        images, labels, _ = batch
        return F.cross_entropy(self.layers(images), labels)

    def on_validation_epoch_start(self) -> None:
        """Forget the outputs of an earlier validation."""
        self.index: list[torch.Tensor] = []
        self.logits: list[torch.Tensor] = []
        self.labels: list[torch.Tensor] = []
        self.names: list[str] = []

    def validation_step(self, batch: Any, _: int) -> None:
        """Keep the outputs of a batch."""
        index, (images, labels, names) = batch
        self.index.append(index)
        self.logits.append(self.layers(images))
        self.labels.append(labels)
        self.names.extend(names)

    def on_validation_epoch_end(self) -> None:
        """Compute the loss and the accuracy of the whole set on every rank."""
        logits, labels, names = gather_outputs(
            self.logits, self.labels, self.names, index=self.index
        )
        losses = F.cross_entropy(logits, labels, reduction="none")
        loss = losses.mean()
        accuracy = (logits.argmax(dim=1) == labels).float().mean()
        # The values are the same on every rank, and so is their maximum over the ranks.
        self.log_dict({"val_loss": loss, "val_accuracy": accuracy}, sync_dist=True, reduce_fx="max")
        hardest = names[int(losses.argmax())]
        self.summary = (
            f"{len(labels)} samples, loss {loss:.6f}, accuracy {accuracy:.4f}, least likely "
            f"{hardest}"
        )

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the Adam optimizer."""
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main() -> None:
    """Validate, train, and print what every rank has computed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("classes", help="folder that contains one folder of images per class")
    parser.add_argument(
        "--validation",
        type=int,
        default=31,
        help="number of images for validation, drawn at random",
    )
    parser.add_argument("--epochs", type=int, default=8, help="largest number of epochs")
    parser.add_argument("--checkpoints", default="checkpoints", help="folder for the checkpoints")
    arguments = parser.parse_args()
    pixels = transforms.Compose([transforms.Resize((SIDE, SIDE)), transforms.ToTensor()])
    data = NamedImages(arguments.classes, pixels)
    if not 0 < arguments.validation < len(data):
        parser.error(
            f"--validation must be from 1 to {len(data) - 1}, the number of images without one"
        )
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0)).tolist()
    held_out: Subset[Any] = Subset(data, order[: arguments.validation])
    training: Subset[Any] = Subset(data, order[arguments.validation :])

    pl.seed_everything(0, verbose=False)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    best = ModelCheckpoint(
        arguments.checkpoints, filename="{epoch}-{val_loss:.4f}", monitor="val_loss", mode="min"
    )
    trainer = pl.Trainer(
        max_epochs=arguments.epochs,
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        num_nodes=ranks // int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        strategy="ddp" if ranks > 1 else "auto",
        callbacks=[best, EarlyStopping("val_accuracy", mode="max", patience=3)],
        logger=False,
        enable_progress_bar=False,
    )
    model = Classifier(len(data.classes))
    validation = DataLoader(WithIndex(held_out), batch_size=8)
    trainer.validate(model, validation, verbose=False)
    print(f"rank {trainer.global_rank}: {model.summary}\n", end="", flush=True)
    trainer.fit(model, DataLoader(training, batch_size=8, shuffle=True, drop_last=True), validation)
    checkpoint = Path(best.best_model_path).name
    epochs = f"{trainer.current_epoch} epochs"
    print(
        f"rank {trainer.global_rank}: {model.summary}, {epochs}, best {checkpoint}\n",
        end="",
        flush=True,
    )


if __name__ == "__main__":
    main()
