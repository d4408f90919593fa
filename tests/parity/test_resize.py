"""The TensorFlow interpolation, bit for bit torch-fidelity's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fidtool.features.preparation import Preparation
from fidtool.features.resize import resize

LARGE = [(1, 1), (1, 640), (32, 32), (299, 299), (300, 298), (333, 500), (640, 13), (768, 1024)]
"""Heights and widths around Inception's 299."""


def noise(height: int, width: int, count: int = 1) -> torch.Tensor:
    """uint8 tensor of shape (count, height, width, 3)."""
    rng = np.random.RandomState(height * 1000 + width)
    return torch.from_numpy(rng.randint(0, 256, (count, height, width, 3)).astype(np.uint8))


@pytest.mark.parametrize(("height", "width"), LARGE)
def test_tf1_is_bit_for_bit_that_of_torch_fidelity(height: int, width: int) -> None:
    pytest.importorskip("torch_fidelity", reason="needs torch-fidelity, of the extra 'test'")
    from torch_fidelity.interpolate_compat_tensorflow import interpolate_bilinear_2d_like_tensorflow1x

    pixels = noise(height, width, 2)
    theirs = interpolate_bilinear_2d_like_tensorflow1x(
        pixels.permute(0, 3, 1, 2).float(), size=(299, 299), align_corners=False
    )
    assert torch.equal(resize(pixels, 299, Preparation("bilinear-tf1")), theirs)
