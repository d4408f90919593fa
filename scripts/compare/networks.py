"""Small networks behind ``--extractor``, so that cases of everything but Inception are quick."""

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
    """Ends the rank FAULT_RANK after some batches as FAULT says: by an exception or by a signal."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = itertools.count(1)  # threads may share it

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        fault = os.environ.get("FAULT")
        if next(self.calls) == 13 and os.environ.get("FAULT_RANK", "0") == os.environ.get("RANK", "0"):
            if fault in SIGNALS:
                os.kill(os.getpid(), SIGNALS[fault])
            if fault == "raise":
                raise ArithmeticError("a fault on purpose")
        return super().forward(x)


def network() -> fidtool.Network:
    """16 features."""
    return fidtool.Network(_Small(16), input_size=32)


def other() -> fidtool.Network:
    """16 features by other weights."""
    return fidtool.Network(_Small(16, 8), input_size=32)


def colours() -> fidtool.Network:
    """6 features, with a preparation and settings of its own."""
    preparation = fidtool.Preparation("pillow-bicubic", "shorter edge", 40)
    return fidtool.Network(
        _Colours(), input_size=32, mean=(0.4, 0.5, 0.6), std=(0.2, 0.2, 0.3), feature_step=17, preparation=preparation
    )


def broken() -> fidtool.Network:
    """Features that are NaN for every image but a black one."""
    return fidtool.Network(_Broken(), input_size=8)


def large() -> fidtool.Network:
    """Features beyond the range of the usual step."""
    return fidtool.Network(_Large(), input_size=8)


def faulty() -> fidtool.Network:
    """6 features, until the fault."""
    return fidtool.Network(_Faulty(), input_size=8)


def no_network() -> int:
    """A factory's mistake."""
    return 3
