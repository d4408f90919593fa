"""Custom networks: saved as programs, and as files with factories."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from torch import nn

from support.pictures import make_pictures
from support.places import TINY

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
SETTINGS = {"input_size": 24, "mean": MEAN, "std": STD, "feature_step": 17}


class Small(nn.Module):
    """A convolution and a chain of pointwise operations, which a compiler would fuse."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 12, 5, stride=3)
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            self.convolution.weight.copy_(torch.randn(12, 3, 5, 5, generator=generator) * 0.2)
            self.convolution.bias.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.convolution(x)
        return (torch.sigmoid(x) * x + torch.tanh(x) * 0.3).exp().clamp(max=9.0).mean((2, 3))


def save_script(file: Path, extra: str | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer versions of torch deprecate TorchScript
        script = torch.jit.script(Small().eval())
        torch.jit.save(
            script, str(file), _extra_files={} if extra is None else {"fidtool.json": extra}
        )


TINY_FILE = TINY.rpartition(":")[0]
MODULE = """
import torch
from torch import nn
import fidtool

class Net(nn.Module):
    def forward(self, x):
        {forward}

def network():
    {factory}
"""
GOOD_FORWARD, GOOD_FACTORY = "return x.mean((2, 3))", "return fidtool.Network(Net(), input_size=8)"


def make_modules(tmp_path: Path) -> Path:
    """Make the folder in which the commands run, with two sets."""
    make_pictures(tmp_path / "real", 20, 0)
    make_pictures(tmp_path / "fake", 20, 1)
    return tmp_path
