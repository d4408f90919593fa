"""A network of 64 features on 32x32 pixels, for `bench.py memory`; also an example of a network of your own.

Use it with ``fidtool compute REAL FAKE --extractor scripts/small_network.py:network``.
"""

from __future__ import annotations

import torch
from torch import nn

import fidtool

DIMS = 64
INPUT_SIZE = 32


class SmallNetwork(nn.Module):
    """Two convolutions with fixed random weights. It keeps no state: on the CPU several threads call it at once."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 32, 5, stride=2), nn.ReLU(), nn.Conv2d(32, DIMS, 3, stride=2), nn.ReLU()
        )
        # A generator of its own: every rank, today and next year, must build the same weights.
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Features of shape (n, 64, 6, 6) of a batch of shape (n, 3, 32, 32); fidtool averages them over space."""
        features: torch.Tensor = self.layers(x)
        return features


def network() -> fidtool.Network:
    """What ``--extractor small_network.py:network`` gets. Its pixels run from -1 to 1, `fidtool.Network`'s default."""
    return fidtool.Network(SmallNetwork(), input_size=INPUT_SIZE, feature_step=20)
