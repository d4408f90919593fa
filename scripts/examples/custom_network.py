"""Example: a custom network. It describes an image by its colours and by edges of eight
orientations at three scales.

Such features need no training and no download. They suit textures, materials or microscopy images,
on which Inception was not trained. Replace the module by your own encoder: `network` then loads its
weights.

    fidtool compute real/ fake/ --extractor scripts/examples/custom_network.py:network

fidtool prints the Fréchet distance of these features:

    FD (scripts/examples/custom_network.py:network): 0.0280
"""

from __future__ import annotations

import math

import torch
from torch import nn

import fidtool

SIDE, SCALES, ORIENTATIONS, RADIUS = 128, 3, 8, 4
DIMS = 6 + 2 * SCALES * ORIENTATIONS


def edge_filters() -> torch.Tensor:
    """Return odd Gabor filters of shape (ORIENTATIONS, 1, side, side), which respond to edges and
    not to flat areas.
    """
    steps = torch.arange(-RADIUS, RADIUS + 1, dtype=torch.float64)
    y, x = torch.meshgrid(steps, steps, indexing="ij")
    envelope = torch.exp(-(x.square() + y.square()) / (RADIUS / 2) ** 2 / 2)
    angles = [math.pi * number / ORIENTATIONS for number in range(ORIENTATIONS)]
    waves = [
        torch.sin(math.pi / RADIUS * (x * math.cos(angle) + y * math.sin(angle)))
        for angle in angles
    ]
    filters = torch.stack([wave * envelope for wave in waves])
    return (filters / filters.abs().sum((1, 2), keepdim=True)).float()[:, None]


class TextureNetwork(nn.Module):
    """Means and standard deviations, over space, of colours and edges. It has no state between
    calls.
    """

    filters: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("filters", edge_filters())  # a buffer moves to the GPU with the module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map images of shape (n, 3, SIDE, SIDE) with values in 0..1 to features of shape (n,
        DIMS).
        """
        features = [x.mean((2, 3)), x.std((2, 3))]
        gray = x.mean(1, keepdim=True)
        for _ in range(SCALES):
            edges = nn.functional.conv2d(gray, self.filters).abs()
            features += [edges.mean((2, 3)), edges.std((2, 3))]
            gray = nn.functional.avg_pool2d(gray, 2)
        return torch.cat(features, 1)


def network() -> fidtool.Network:
    """Return the network for ``--extractor``, and how fidtool prepares images for it.

    Every rank calls this function, and all must get the same weights.
    """
    return fidtool.Network(
        TextureNetwork(),
        input_size=SIDE,  # fidtool resizes images to this square
        mean=(0.0, 0.0, 0.0),  # values stay in 0..1: (value - mean) / std
        std=(1.0, 1.0, 1.0),
        feature_step=20,  # features are below 2**(23 - 20)
    )
