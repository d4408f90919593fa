"""Floats become bytes as in the code that users compare with: rounded or truncated, to the bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.utils import save_image

import fidtool
from fidtool.settings import Settings
from fidtool.sources.contents import ValueRange
from support.inside import bytes_of_floats

STEPS = np.arange(256)
VALUES = np.concatenate(
    [
        (STEPS / 255).astype(np.float32),
        ((STEPS[:-1] + 0.5) / 255).astype(np.float32),
        np.nextafter((STEPS[1:] / 255).astype(np.float32), np.float32(0)),
        np.nextafter((STEPS[:-1] / 255).astype(np.float32), np.float32(1)),
        np.random.RandomState(0).rand(10_000).astype(np.float32),
        np.float32([-1.5, -0.001, 1.001, 1.5]),
    ]
)
"""Values that are bytes, halves between two bytes, their neighbours, other values, and values out of range."""


def ours(values: np.ndarray, value_range: tuple[float, float], floor: bool) -> list[int]:
    pixels, _ = bytes_of_floats(values.reshape(-1, 1, 1), value_range, floor)
    return pixels.ravel().tolist()


def test_truncated_as_by_torch() -> None:
    values = torch.from_numpy(VALUES).clamp(0, 1)
    found = ours(VALUES, (0.0, 1.0), floor=True)
    assert found == (values * 255).to(torch.uint8).tolist()
    signed = torch.from_numpy(VALUES) * 2 - 1
    assert ours(signed.numpy(), (-1.0, 1.0), floor=True) == ((signed + 1) / 2 * 255).clamp(0, 255).byte().tolist()


def test_rounded_as_by_save_image(tmp_path: Path) -> None:
    file = tmp_path / "values.png"
    save_image(torch.from_numpy(VALUES)[None, None].repeat(3, 1, 1), file)
    saved = np.asarray(Image.open(file))[0, :, 0].tolist()
    assert ours(VALUES, (0.0, 1.0), floor=False) == saved
    assert ours(VALUES, (0.0, 1.0), floor=True) != saved


def test_identity_of_a_set_has_the_rounding() -> None:
    """Without truncation it is as in versions that only rounded, so that their cached statistics are found."""
    assert ValueRange(0.0, 1.0).variant == f"value range {(0.0, 1.0)}"
    variants = {ValueRange(0.0, white, floor).variant for white in (1.0, 2.0) for floor in (False, True)}
    assert len(variants) == 4


def test_settings() -> None:
    assert Settings(float_to_byte="floor").floats is None
    assert Settings(value_range=(0, 1)).floats == ValueRange(0.0, 1.0)
    assert Settings(value_range=(0, 1), float_to_byte="floor").floats == ValueRange(0.0, 1.0, floor=True)
    with pytest.raises(fidtool.InputError, match="float_to_byte must be round or floor, not 'ceil'"):
        Settings(float_to_byte="ceil")
