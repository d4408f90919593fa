"""A small generator trained by Lightning under DDP; ModelCheckpoint keeps the epochs with the lowest FID.

    torchrun --nproc-per-node=2 scripts/train_lightning.py real/ --epochs 3 --num-samples 256

Every rank generates its share of the samples, all see one FID, and the checkpoints are those that it chose.
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


class ImageRecords(Dataset[torch.Tensor]):
    """The images of a folder as tensors of shape (3, SIDE, SIDE), values in 0..1."""

    def __init__(self, folder: str) -> None:
        self.files = sorted(
            file for file in Path(folder).rglob("*") if file.suffix.lower() in (".png", ".jpg", ".jpeg")
        )

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> torch.Tensor:
        picture = Image.open(self.files[index]).convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        pixels: torch.Tensor = pil_to_tensor(picture).float() / 255
        return pixels


class AutoEncoder(pl.LightningModule):  # type: ignore[misc]
    """A variational autoencoder (Kingma and Welling 2013) of a few layers; its decoder is the generator."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 256), nn.ReLU(), nn.Linear(256, 2 * LATENT)
        )
        self.decoder = nn.Sequential(nn.Linear(LATENT, 256), nn.ReLU(), nn.Linear(256, 3 * SIDE * SIDE), nn.Sigmoid())

    def generate(self, count: int, seed: int) -> torch.Tensor:
        """What FIDCallback asks for: ``count`` images, the same ones for the same seed on any rank."""
        noise = torch.randn(count, LATENT, generator=torch.Generator().manual_seed(seed))
        images: torch.Tensor = self.decoder(noise.to(self.device)).view(count, 3, SIDE, SIDE)
        return images

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        """The evidence lower bound."""
        mean, log_variance = self.encoder(batch).chunk(2, dim=1)
        latent = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        copy = self.decoder(latent).view_as(batch)
        divergence = 0.5 * (mean.square() + log_variance.exp() - log_variance - 1).sum(1).mean()
        error = nn.functional.mse_loss(copy, batch, reduction="sum") / len(batch)
        bound: torch.Tensor = 20 * error + divergence
        return bound

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=2e-3)


def main() -> None:
    """Trains, and prints the FID of the last epoch and the best checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("real", help="folder of real images: to train on, and to measure against")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--num-samples", type=int, default=2048, help="images generated for each FID")
    parser.add_argument("--feature", default="2048", help="dimensions of Inception, or file.py:factory")
    parser.add_argument("--checkpoints", default="checkpoints")
    parser.add_argument("--resume", help="a checkpoint to go on from")
    arguments = parser.parse_args()
    pictures = ImageRecords(arguments.real)
    if not len(pictures):
        parser.error(f"no .png or .jpg images in {arguments.real}")

    pl.seed_everything(0, verbose=False)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    feature = int(arguments.feature) if arguments.feature.isdecimal() else arguments.feature
    fid = FIDCallback("generate", arguments.real, num_samples=arguments.num_samples, feature=feature)
    best = ModelCheckpoint(
        arguments.checkpoints, filename="{epoch}-{fid:.4f}", monitor="fid", save_top_k=2, save_last=True
    )
    trainer = pl.Trainer(
        max_epochs=arguments.epochs,
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        num_nodes=ranks // int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        strategy="ddp" if ranks > 1 else "auto",
        callbacks=[fid, best, EarlyStopping("fid", patience=5)],
        logger=False,
        enable_progress_bar=False,
    )
    data = DataLoader(pictures, batch_size=16, shuffle=True)
    trainer.fit(AutoEncoder(), data, ckpt_path=arguments.resume)
    kept = Path(best.best_model_path).name
    print(f"rank {trainer.global_rank}: Fréchet distance {fid.fid!r}, best {kept}\n", end="", flush=True)


if __name__ == "__main__":
    main()
