"""A small network behind --extractor, so that tests of everything but Inception are quick."""

import torch
from torch import nn

import fidtool


class _Tiny(nn.Module):
    def __init__(self, dims: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        self.convolution = nn.Conv2d(3, dims, 5, stride=3, bias=False)
        with torch.no_grad():
            self.convolution.weight.copy_(torch.randn(self.convolution.weight.shape, generator=generator) * 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.convolution(x).relu()


def network() -> fidtool.Network:
    """16 features."""
    return fidtool.Network(_Tiny(16), input_size=32)


def broken() -> fidtool.Network:
    """Features that are NaN for every image but a black one (which the probe of the shape uses)."""

    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mean((2, 3)) / 0.0 - x.mean((2, 3)) / 0.0

    return fidtool.Network(Broken(), input_size=8)


def large() -> fidtool.Network:
    """Features of about 100, beyond the range that feature_step 18 allows."""

    class Large(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mean((2, 3)) * 0.0 + 100.0

    return fidtool.Network(Large(), input_size=8)


def colours() -> fidtool.Network:
    """Mean and spread of the colours, each with 2 added: features that are large enough whatever the picture."""

    class Colours(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([x.mean((2, 3)), x.std((2, 3))], 1) + 2.0

    return fidtool.Network(Colours(), input_size=32)


def different_each_time() -> fidtool.Network:
    """Unseeded weights: two ranks get two networks. The bias keeps features large enough, whatever the weights."""
    torch.seed()
    convolution = nn.Conv2d(3, 4, 3)
    nn.init.constant_(convolution.get_parameter("bias"), 8.0)
    return fidtool.Network(nn.Sequential(convolution), input_size=16)


def not_a_network() -> int:
    """A factory's mistake."""
    return 3
