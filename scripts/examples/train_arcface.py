"""An encoder for a domain of your own, trained with ArcFace under DDP, then used by fidtool in Inception's place.

    torchrun --nproc-per-node=2 scripts/train_arcface.py classes/ --output encoder.pt
    ENCODER=encoder.pt fidtool compute real/ fake/ --extractor scripts/train_arcface.py:network

``classes/`` holds a folder of images for each class. ArcFace's class centres W are parameters of the loss: it is
wrapped in DDP, trained by the optimizer and compared between the ranks.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

import fidtool
from fidtool.training import assert_in_sync, assert_optimized, wrap_trainable

SIDE, DIMS = 32, 32


class Encoder(nn.Module):
    """Images of shape (3, SIDE, SIDE), values in -1..1, to embeddings of DIMS numbers. It keeps no state."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 32, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, 2, 1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * (SIDE // 4) ** 2, DIMS),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Embeddings of shape (n, DIMS), of length 1 as ArcFace sees them."""
        return nn.functional.normalize(self.layers(images))


def network() -> fidtool.Network:
    """What ``--extractor train_arcface.py:network`` gets: the encoder in the file that ENCODER names."""
    encoder = Encoder()
    encoder.load_state_dict(torch.load(os.environ.get("ENCODER", "encoder.pt"), weights_only=True))
    return fidtool.Network(encoder, input_size=SIDE)


def train(folder: str, steps: int, batch: int) -> Encoder:
    """Trains on this rank's share; every rank ends with the same encoder."""
    from pytorch_metric_learning.losses import ArcFaceLoss
    from torchvision import datasets, transforms

    scale = transforms.Normalize([0.5] * 3, [0.5] * 3)
    pixels = transforms.Compose([transforms.Resize((SIDE, SIDE)), transforms.ToTensor(), scale])
    data = datasets.ImageFolder(folder, pixels)
    sampler: DistributedSampler[object] = DistributedSampler(data, seed=0)
    if len(sampler) < batch:
        raise SystemExit(f"{folder}: {len(sampler)} images a rank are fewer than a batch; pass --batch {len(sampler)}")
    torch.manual_seed(0)
    encoder = DistributedDataParallel(Encoder())
    loss = wrap_trainable(ArcFaceLoss(num_classes=len(data.classes), embedding_size=DIMS))
    optimizer = torch.optim.Adam([*encoder.parameters(), *loss.parameters()], lr=1e-3)
    assert_optimized(loss, optimizer)
    done = 0
    while done < steps:
        sampler.set_epoch(done)
        for images, labels in DataLoader(data, batch_size=batch, sampler=sampler, drop_last=True):
            optimizer.zero_grad()
            value = loss(encoder(images), labels)
            value.backward()
            optimizer.step()
            done += 1
        # To the bit: W, which nobody wraps, is what drifts apart.
        assert_in_sync(loss)
        assert_in_sync(encoder)
        if dist.get_rank() == 0:
            print(f"step {done}: loss {value.item():.4f}, the ranks are in sync", flush=True)
    trained: Encoder = encoder.module
    return trained


def main() -> None:
    """Trains and writes the encoder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("classes", help="folder with a folder of images for each class")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=16, help="images of each rank in a step")
    parser.add_argument("--output", default="encoder.pt")
    arguments = parser.parse_args()
    if not os.path.isdir(arguments.classes) or not any(entry.is_dir() for entry in os.scandir(arguments.classes)):
        parser.error(f"no folder of classes: {arguments.classes} should hold one folder of images for each")
    dist.init_process_group("gloo")
    encoder = train(arguments.classes, arguments.steps, arguments.batch)
    if dist.get_rank() == 0:
        torch.save(encoder.state_dict(), arguments.output)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
