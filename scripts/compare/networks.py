"""Small networks for ``--extractor``, with which most cases are fast."""

from __future__ import annotations

import itertools
import os
import signal

import torch
from torch import nn

import fidtool

SIGNALS = {"kill": signal.SIGKILL, "interrupt": signal.SIGINT, "terminate": signal.SIGTERM}


class _Small(nn.Module):
    def __init__(self, dims: int, seed: int = 7) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.convolution = nn.Conv2d(3, dims, 5, stride=3, bias=False)
        with torch.no_grad():
            self.convolution.weight.copy_(torch.randn(self.convolution.weight.shape, generator=generator) * 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.convolution(x).relu()
        return features


class _Colours(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x.mean((2, 3)), x.std((2, 3))], 1) + 2.0


class _Broken(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((2, 3)) / 0.0 - x.mean((2, 3)) / 0.0


class _Large(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((2, 3)) * 0.0 + 100.0


class _Faulty(_Colours):
    """Ends rank FAULT_RANK after some batches, by an exception or by the signal that FAULT names."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = itertools.count(1)  # several threads may call forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        fault = os.environ.get("FAULT")
        if next(self.calls) == 13 and os.environ.get("FAULT_RANK", "0") == os.environ.get("RANK", "0"):
            if fault in SIGNALS:
                os.kill(os.getpid(), SIGNALS[fault])
            if fault == "raise":
                raise ArithmeticError("an intentional fault")
        return super().forward(x)


def network() -> fidtool.Network:
    """Return a network of 16 features."""
    return fidtool.Network(_Small(16), input_size=32)


def other() -> fidtool.Network:
    """Return a network of 16 features with different weights."""
    return fidtool.Network(_Small(16, 8), input_size=32)


def colours() -> fidtool.Network:
    """Return a network of 6 features with a custom preparation and settings."""
    preparation = fidtool.Preparation("pillow-bicubic", "shorter edge", 40)
    return fidtool.Network(
        _Colours(), input_size=32, mean=(0.4, 0.5, 0.6), std=(0.2, 0.2, 0.3), feature_step=17, preparation=preparation
    )


def broken() -> fidtool.Network:
    """Return a network whose features are NaN for every image that is not black."""
    return fidtool.Network(_Broken(), input_size=8)


def large() -> fidtool.Network:
    """Return a network whose features exceed the range of the default feature step."""
    return fidtool.Network(_Large(), input_size=8)


def faulty() -> fidtool.Network:
    """Return a network of 6 features that fails as `_Faulty` describes."""
    return fidtool.Network(_Faulty(), input_size=8)


def no_network() -> int:
    """Return something that is not a network."""
    return 3
