"""Files with networks of people's own."""

from __future__ import annotations

from pathlib import Path

from support.pictures import make_pictures
from support.places import TINY

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


def make_place(environment: dict[str, str], tmp_path: Path) -> Path:
    """The folder in which the commands run, with two sets."""
    make_pictures(tmp_path / "real", 20, 0)
    make_pictures(tmp_path / "fake", 20, 1)
    return tmp_path
