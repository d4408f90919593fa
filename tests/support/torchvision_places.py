"""Weights and pictures for torchvision's networks."""

from __future__ import annotations

from pathlib import Path

import torch
import torchvision
from torch import nn

from support.published_networks import make_sets, randomised


def make_resnet() -> nn.Module:
    return randomised(torchvision.models.resnet18(weights=None))


def make_place(environment: dict[str, str], tmp_path: Path, resnet: nn.Module) -> Path:
    """Two sets, and the weights of a resnet18."""
    make_sets(tmp_path)
    torch.save(resnet.state_dict(), tmp_path / "resnet18.pth")
    return tmp_path
