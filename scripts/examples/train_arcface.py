"""Example: a custom encoder for a specific domain, trained with ArcFace and DDP, and used instead
of Inception.

ArcFace's class centres W are parameters of the loss. The loss is therefore wrapped in DDP, added to
the optimizer, and compared between the ranks, with `wrap_trainable`, `assert_optimized` and
`assert_in_sync` of `fidtool.training`.

Train on ``classes/``, which contains one folder of images per class; it needs ``pip install
pytorch-metric-learning``:

    torchrun --nproc-per-node=2 scripts/examples/train_arcface.py classes/ --output encoder.pt

Rank zero prints a line after each epoch, and writes the encoder at the end:

    step 6: loss 24.6011, the ranks are in sync

Then compute the Fréchet distance of the encoder's features:

    ENCODER=encoder.pt fidtool compute real/ fake/ --extractor
    scripts/examples/train_arcface.py:network

This prints:

    FD (scripts/examples/train_arcface.py:network): 0.0014
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
    """Maps images of shape (3, SIDE, SIDE) with values in -1..1 to DIMS features. It has no state
    between calls.
    """

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
        """Return embeddings of shape (n, DIMS), normalised to length 1 as in ArcFace."""
        return nn.functional.normalize(self.layers(images))


def network() -> fidtool.Network:
    """Return the encoder for ``--extractor``. The environment variable ENCODER is the path of its
    weights.
    """
    encoder = Encoder()
    encoder.load_state_dict(torch.load(os.environ.get("ENCODER", "encoder.pt"), weights_only=True))
    return fidtool.Network(encoder, input_size=SIDE)


def train(folder: str, steps: int, batch: int) -> Encoder:
    """Train on this rank's share of the images. All ranks return the same encoder."""
    from pytorch_metric_learning.losses import ArcFaceLoss
    from torchvision import datasets, transforms

    scale = transforms.Normalize([0.5] * 3, [0.5] * 3)
    pixels = transforms.Compose([transforms.Resize((SIDE, SIDE)), transforms.ToTensor(), scale])
    data = datasets.ImageFolder(folder, pixels)
    sampler: DistributedSampler[object] = DistributedSampler(data, seed=0)
    if len(sampler) < batch:
        raise SystemExit(
            f"{folder}: {len(sampler)} images per rank are less than a batch; pass --batch "
            f"{len(sampler)}"
        )
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
        # Bitwise: without wrap_trainable, W would drift apart.
        assert_in_sync(loss)
        assert_in_sync(encoder)
        if dist.get_rank() == 0:
            print(f"step {done}: loss {value.item():.4f}, the ranks are in sync", flush=True)
    trained: Encoder = encoder.module
    return trained


def main() -> None:
    """Train the encoder and write it to a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("classes", help="folder that contains one folder of images per class")
    parser.add_argument(
        "--steps", type=int, default=200, help="number of steps; the last epoch is finished"
    )
    parser.add_argument("--batch", type=int, default=16, help="images per rank and step")
    parser.add_argument("--output", default="encoder.pt", help="file for the encoder")
    arguments = parser.parse_args()
    if not os.path.isdir(arguments.classes) or not any(
        entry.is_dir() for entry in os.scandir(arguments.classes)
    ):
        parser.error(
            f"no classes: {arguments.classes} should contain one folder of images per class"
        )
    dist.init_process_group("gloo")
    encoder = train(arguments.classes, arguments.steps, arguments.batch)
    if dist.get_rank() == 0:
        torch.save(encoder.state_dict(), arguments.output)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
