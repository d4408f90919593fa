"""Resizing is bitwise equal to torch-fidelity's TensorFlow interpolation and timm's transforms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fidtool.features.resize import Framing, Preparation, resize
from support import preparations
from support.preparations import BLANK, ours

LARGE = [(1, 1), (1, 640), (32, 32), (299, 299), (300, 298), (333, 500), (640, 13), (768, 1024)]
"""Heights and widths around Inception's 299."""


def noise(height: int, width: int, count: int = 1) -> torch.Tensor:
    """Return a uint8 tensor of shape (count, height, width, 3)."""
    rng = np.random.RandomState(height * 1000 + width)
    return torch.from_numpy(rng.randint(0, 256, (count, height, width, 3)).astype(np.uint8))


@pytest.mark.parametrize(("height", "width"), LARGE)
def test_bilinear_tf1_is_bitwise_equal_to_torch_fidelity(height: int, width: int) -> None:
    pytest.importorskip("torch_fidelity", reason="needs torch-fidelity, of the extra 'test'")
    from torch_fidelity.interpolate_compat_tensorflow import (
        interpolate_bilinear_2d_like_tensorflow1x,
    )

    pixels = noise(height, width, 2)
    theirs = interpolate_bilinear_2d_like_tensorflow1x(
        pixels.permute(0, 3, 1, 2).float(), size=(299, 299), align_corners=False
    )
    assert torch.equal(resize(pixels, 299, Preparation("bilinear-tf1")), theirs)


def pixels_of(transform: Callable[[Any], torch.Tensor], picture: Image.Image) -> torch.Tensor:
    """Return the output, in 0..255, of a transform with mean 0 and std 1."""
    return (transform(picture) * 255).round()


@pytest.mark.parametrize(
    ("mode", "framing", "share", "edge"),
    [
        ("center", "shorter edge", 0.875, 73),
        ("center", "shorter edge", 1.0, 64),
        ("squash", "squash", 0.9, 71),
    ],
)
def test_preparations_are_bitwise_equal_to_timms_transforms(
    mode: str, framing: Framing, share: float, edge: int
) -> None:
    timm_data = pytest.importorskip("timm.data", reason="needs timm, of the extra 'timm'")
    for interpolation, method in (("bicubic", "pillow-bicubic"), ("bilinear", "pillow-bilinear")):
        theirs = timm_data.create_transform(
            (3, 64, 64), interpolation=interpolation, crop_pct=share, crop_mode=mode, **BLANK
        )
        # No tall images: Pillow 13 shrinks them vertically first.
        for height, width in [(64, 64), (100, 131), (80, 300), (33, 47)]:
            picture = preparations.noise(height, width)
            found = ours(picture, 64, Preparation(method, framing, edge))  # type: ignore[arg-type]
            assert torch.equal(found, pixels_of(theirs, picture))
