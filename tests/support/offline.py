"""The Inception weights of the extra 'offline', and inputs for the network."""

from __future__ import annotations

import hashlib

import pytest
import torch

from fidtool.features.models.inception import offline_path

ORIGINAL = offline_path()
"""Path of the weights file; None if the extra is not installed."""
needs_weights = pytest.mark.skipif(ORIGINAL is None, reason="needs fidtool[offline]")


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
