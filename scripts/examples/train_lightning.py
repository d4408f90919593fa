"""Example: FID in a Lightning training run. ModelCheckpoint keeps the epochs with the lowest FID.

It trains a small variational autoencoder with DDP. After each epoch `fidtool.training.FIDCallback`
computes the FID of its decoder: every rank generates its share of the samples, and all ranks get
the same FID.

Run it on a folder of PNG or JPEG images; it needs ``pip install 'fidtool[lightning]'``:

    torchrun --nproc-per-node=2 scripts/examples/train_lightning.py real/ --epochs 3 --num-samples
    256

Continue from a checkpoint:

    torchrun --nproc-per-node=2 scripts/examples/train_lightning.py real/ --epochs 5 --num-samples
        256 \\ --resume checkpoints/last.ckpt

Each rank prints the FID of the last epoch and the best checkpoint:

    rank 0: Fréchet distance 1.1397720477701079, best epoch=1-distance=1.1398.ckpt
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms.functional import pil_to_tensor

from fidtool.training import FIDCallback

SIDE, LATENT = 32, 32


class ImageFolder(Dataset[torch.Tensor]):
    """Images of a folder as tensors of shape (3, SIDE, SIDE) with values in 0..1."""

    def __init__(self, folder: str) -> None:
        self.files = sorted(
            file
            for file in Path(folder).rglob("*")
            if file.suffix.lower() in (".png", ".jpg", ".jpeg")
        )

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> torch.Tensor:
        image = (
            Image.open(self.files[index])
            .convert("RGB")
            .resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        )
        pixels: torch.Tensor = pil_to_tensor(image).float() / 255
        return pixels


class AutoEncoder(pl.LightningModule):  # type: ignore[misc]
    """A small variational autoencoder (Kingma and Welling, 2013). Its decoder is the generator."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 256), nn.ReLU(), nn.Linear(256, 2 * LATENT)
        )
        self.decoder = nn.Sequential(
            nn.Linear(LATENT, 256), nn.ReLU(), nn.Linear(256, 3 * SIDE * SIDE), nn.Sigmoid()
        )

    def generate(self, count: int, seed: int) -> torch.Tensor:
        """Return ``count`` images for FIDCallback. The same seed gives the same images on any
        rank.
        """
        noise = torch.randn(count, LATENT, generator=torch.Generator().manual_seed(seed))
        images: torch.Tensor = self.decoder(noise.to(self.device)).view(count, 3, SIDE, SIDE)
        return images

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        """Return the negative evidence lower bound."""
        mean, log_variance = self.encoder(batch).chunk(2, dim=1)
        latent = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        reconstruction = self.decoder(latent).view_as(batch)
        divergence = 0.5 * (mean.square() + log_variance.exp() - log_variance - 1).sum(1).mean()
        error = nn.functional.mse_loss(reconstruction, batch, reduction="sum") / len(batch)
        bound: torch.Tensor = 20 * error + divergence
        return bound

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the Adam optimizer."""
        return torch.optim.Adam(self.parameters(), lr=2e-3)


def main() -> None:
    """Train, and print the FID of the last epoch and the best checkpoint."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("real", help="folder of real images, used for training and for the FID")
    parser.add_argument("--epochs", type=int, default=10, help="number of epochs")
    parser.add_argument(
        "--num-samples", type=int, default=2048, help="number of images to generate for each FID"
    )
    parser.add_argument("--feature", default="2048", help="Inception's dimensions, or FILE.py:NAME")
    parser.add_argument("--checkpoints", default="checkpoints", help="folder for the checkpoints")
    parser.add_argument("--resume", help="checkpoint from which to continue")
    arguments = parser.parse_args()
    images = ImageFolder(arguments.real)
    if not len(images):
        parser.error(f"no .png or .jpg images in {arguments.real}")

    pl.seed_everything(0, verbose=False)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    feature = int(arguments.feature) if arguments.feature.isdecimal() else arguments.feature
    fid = FIDCallback(
        "generate",
        arguments.real,
        num_samples=arguments.num_samples,
        name="distance",
        feature=feature,
    )
    best = ModelCheckpoint(
        arguments.checkpoints,
        filename="{epoch}-{distance:.4f}",
        monitor="distance",
        save_top_k=2,
        save_last=True,
    )
    trainer = pl.Trainer(
        max_epochs=arguments.epochs,
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        num_nodes=ranks // int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        strategy="ddp" if ranks > 1 else "auto",
        callbacks=[fid, best, EarlyStopping("distance", patience=5)],
        logger=False,
        enable_progress_bar=False,
    )
    data = DataLoader(images, batch_size=16, shuffle=True)
    trainer.fit(AutoEncoder(), data, ckpt_path=arguments.resume)
    checkpoint = Path(best.best_model_path).name
    print(
        f"rank {trainer.global_rank}: Fréchet distance {fid.frechet_distance!r}, best "
        f"{checkpoint}\n",
        end="",
        flush=True,
    )


if __name__ == "__main__":
    main()
