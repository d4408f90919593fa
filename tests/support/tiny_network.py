"""Small networks for --extractor, with which most tests are fast."""

import torch
from torch import nn

import fidtool


class _Tiny(nn.Module):
    def __init__(self, dims: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        self.convolution = nn.Conv2d(3, dims, 5, stride=3, bias=False)
        with torch.no_grad():
            self.convolution.weight.copy_(
                torch.randn(self.convolution.weight.shape, generator=generator) * 0.1
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.convolution(x).relu()


def network() -> fidtool.Network:
    """Return a network of 16 features."""
    return fidtool.Network(_Tiny(16), input_size=32)


def large() -> fidtool.Network:
    """Return a network with features of about 100, beyond the range of the step that it states."""

    class Large(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mean((2, 3)) * 0.0 + 100.0

    return fidtool.Network(Large(), input_size=8, feature_step=18)


def colours() -> fidtool.Network:
    """Return a network of the mean and standard deviation of the colours, plus 2, so that no
    feature is near 0.
    """

    class Colours(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([x.mean((2, 3)), x.std((2, 3))], 1) + 2.0

    return fidtool.Network(Colours(), input_size=32)


def different_each_time() -> fidtool.Network:
    """Return a network with unseeded weights, which differ between ranks. The bias keeps features
    away from 0.
    """
    torch.seed()
    convolution = nn.Conv2d(3, 4, 3)
    nn.init.constant_(convolution.get_parameter("bias"), 8.0)
    return fidtool.Network(nn.Sequential(convolution), input_size=16)
