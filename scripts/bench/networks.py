"""Small networks for ``--extractor``, which take almost no time.

fidtool compute REAL FAKE --extractor scripts/bench/networks.py:network
"""

from __future__ import annotations

import torch
from torch import nn

import fidtool

DIMS = 64
INPUT_SIZE = 32


class SmallNetwork(nn.Module):
    """Two convolutions with fixed random weights. It has no state: on the CPU, several threads call
    it at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 32, 5, stride=2), nn.ReLU(), nn.Conv2d(32, DIMS, 3, stride=2), nn.ReLU()
        )
        # A local generator with a fixed seed: all ranks, and all later runs, must build the same
        # weights.
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map a batch of shape (n, 3, 32, 32) to features of shape (n, 64, 6, 6). fidtool averages
        them over space.
        """
        features: torch.Tensor = self.layers(x)
        return features


def network() -> fidtool.Network:
    """Return the small network. Its input is in -1..1, the default of `fidtool.Network`."""
    return fidtool.Network(SmallNetwork(), input_size=INPUT_SIZE, feature_step=20)


class PooledPixels(nn.Module):
    """Means of 8x8 pixels: costs next to nothing, so that a run shows the cost of everything
    else.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map a batch of shape (n, 3, 32, 32) to features of shape (n, 48)."""
        return nn.functional.avg_pool2d(x, 8).flatten(1)


def pooled() -> fidtool.Network:
    """Return the network of mean pixels."""
    return fidtool.Network(PooledPixels(), input_size=INPUT_SIZE)


def vit() -> fidtool.Network:
    """Return timm's ViT-S/16 with random weights: 384 features of images of 224 x 224 pixels."""
    import timm

    torch.manual_seed(0)
    module = timm.create_model("vit_small_patch16_224", pretrained=False, num_classes=0)
    return fidtool.Network(module, input_size=224)
