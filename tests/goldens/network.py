"""The goldens' network. Its own SHA-256 stands in them: this file is not to be changed."""

import torch

import fidtool


class Brightest(torch.nn.Module):
    """The brightest value of each quarter and channel, times a power of two: the same bits on every processor."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor([1.0, 2.0, 4.0, 0.5, 1.0, 2.0, 4.0, 0.5, 1.0, 2.0, 4.0, 0.5]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.max_pool2d(x, 8).flatten(1) * self.scale


def network() -> fidtool.Network:
    """12 features."""
    return fidtool.Network(Brightest(), input_size=16, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
