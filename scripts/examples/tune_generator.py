"""Example: the Fréchet distance as a loss. It fine-tunes a generator with DDP, and the FID of new
samples falls.

`fidtool.training.FrechetLoss` gathers the features of all ranks, so that the batch of the loss is
that of all ranks together, and returns each rank its gradient.

Run it on a folder of images:

    torchrun --nproc-per-node=2 scripts/examples/tune_generator.py real/ --steps 200

Rank zero prints the distance of samples that the loss never sees, before and after:

    Fréchet distance of 512 held-out samples: 1.3953 before, 0.4679 after
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import fidtool
from fidtool.training import FeatureExtractor, FrechetInceptionDistance, FrechetLoss, assert_in_sync

SIDE, LATENT = 32, 32


class Generator(nn.Module):
    """Maps noise to images of shape (3, SIDE, SIDE) with values in 0..1."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(LATENT, 128 * 4 * 4),
            nn.Unflatten(1, (128, 4, 4)),
            nn.ReLU(),
            nn.ConvTranspose2d(128, 64, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(64, 32, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(32, 3, 4, 2, 1),
            nn.Sigmoid(),
        )

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        """Map noise of shape (n, LATENT) to images of shape (n, 3, SIDE, SIDE)."""
        images: torch.Tensor = self.layers(noise)
        return images


def noise(seed: int, first: int, count: int) -> torch.Tensor:
    """Return the noise of samples ``first`` to ``first + count - 1``, which does not depend on the
    number of ranks.
    """
    seeds = (fidtool.sample_seed(seed, index) for index in range(first, first + count))
    return torch.stack(
        [torch.randn(LATENT, generator=torch.Generator().manual_seed(each)) for each in seeds]
    )


@torch.no_grad()
def held_out(
    generator: nn.Module,
    metric: FrechetInceptionDistance,
    samples: int,
    batch: int,
    rank: int,
    size: int,
) -> float:
    """Return the FID of held-out samples. Each rank generates a part of them."""
    metric.reset()
    for first in range(rank * batch, samples, size * batch):
        metric.update(generator(noise(1, first, min(batch, samples - first))), real=False)
    return float(metric.compute())


def main() -> None:
    """Fine-tune the generator, and print the FID before and after."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("real", help="folder of real images")
    parser.add_argument("--feature", default="64", help="Inception's dimensions, or FILE.py:NAME")
    parser.add_argument("--steps", type=int, default=200, help="number of steps")
    parser.add_argument("--batch", type=int, default=32, help="samples per rank and step")
    parser.add_argument("--samples", type=int, default=512, help="number of held-out samples")
    arguments = parser.parse_args()

    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    dist.init_process_group("gloo", rank=rank, world_size=size)
    feature: int | str = (
        int(arguments.feature) if arguments.feature.isdecimal() else arguments.feature
    )
    try:
        if isinstance(feature, int):
            shared = [fidtool.compute_statistics(arguments.real, dims=feature)]
        else:
            shared = [fidtool.compute_statistics(arguments.real, extractor=feature)]
    except fidtool.InputError as error:
        parser.error(str(error))
    dist.broadcast_object_list(shared)
    assert shared[0] is not None

    torch.manual_seed(0)
    extractor = FeatureExtractor(feature)
    loss = FrechetLoss(shared[0], queue=4 * arguments.batch * size)
    metric = FrechetInceptionDistance(feature, normalize=True, real_statistics=shared[0])
    generator = DistributedDataParallel(Generator())
    optimizer = torch.optim.Adam(generator.parameters(), lr=2e-3)
    before = held_out(generator.module, metric, arguments.samples, arguments.batch, rank, size)
    for step in range(arguments.steps):
        first = (step * size + rank) * arguments.batch
        distance = loss(extractor(generator(noise(0, first, arguments.batch))))
        optimizer.zero_grad()
        distance.backward()
        optimizer.step()
    assert_in_sync(generator)
    after = held_out(generator.module, metric, arguments.samples, arguments.batch, rank, size)
    if rank == 0:
        print(
            f"Fréchet distance of {arguments.samples} held-out samples: {before:.4f} before, "
            f"{after:.4f} after"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
