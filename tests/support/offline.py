"""The Inception weights of the extra 'offline', and inputs for the network."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch

from fidtool.features.models.inception import convolutions, load_weights, offline_path

ORIGINAL = offline_path()
"""Path of the weights file; None if the extra is not installed."""
needs_weights = pytest.mark.skipif(ORIGINAL is None, reason="needs fidtool[offline]")


def write_official_file(home: Path) -> Path:
    """Write the weights in the format of the official file into a TORCH_HOME, where peers find
    their download.
    """
    state = dict(load_weights(None, print).state)
    state["fc.weight"], state["fc.bias"] = torch.zeros(1008, 2048), torch.zeros(1008)
    state |= {f"{name}.bn.num_batches_tracked": torch.tensor(0) for name in convolutions()}
    file = home / "hub" / "checkpoints" / "pt_inception-2015-12-05-6726825d.pth"
    file.parent.mkdir(parents=True)
    torch.save(state, file)
    return file


def digest(state: dict[str, torch.Tensor]) -> str:
    """Return the SHA-256 over the convolutions' tensors, sorted by name."""
    sha = hashlib.sha256()
    for name in sorted(name for name in state if not name.startswith("fc.")):
        sha.update(name.encode() + state[name].numpy().tobytes())
    return sha.hexdigest()


def network_inputs() -> torch.Tensor:
    """Return smooth images with some noise as Inception's input: float32 of shape (5, 3, 299, 299),
    channels last.
    """
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(5, 3, 9, 9, generator=generator)
    noise = torch.rand(5, 3, 299, 299, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size=299, mode="bicubic").clamp(0, 1)
    return (0.9 * smooth + 0.1 * noise).mul(2).sub(1).contiguous(memory_format=torch.channels_last)
