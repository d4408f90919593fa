"""Floats become bytes as in the code that users compare with: rounded or truncated, to the bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torchvision.utils import save_image

import fidtool
from fidtool.features.protocol import PROTOCOLS
from fidtool.settings.record import changed_settings, record_settings
from fidtool.settings.settings import Settings
from fidtool.sources.contents import Pixels, ValueRange
from fidtool.sources.listing import open_images
from fidtool.sources.memory import to_contents
from support.inside import bytes_of_floats, trained_on

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
"""Values that are bytes, halves between two bytes, their neighbours, other values, and values out
of range.
"""


def ours(values: np.ndarray, value_range: tuple[float, float], floor: bool) -> list[int]:
    pixels, _ = bytes_of_floats(values.reshape(-1, 1, 1), value_range, floor)
    return pixels.ravel().tolist()


def test_truncated_as_by_torch() -> None:
    values = torch.from_numpy(VALUES).clamp(0, 1)
    found = ours(VALUES, (0.0, 1.0), floor=True)
    assert found == (values * 255).to(torch.uint8).tolist()
    signed = torch.from_numpy(VALUES) * 2 - 1
    assert (
        ours(signed.numpy(), (-1.0, 1.0), floor=True)
        == ((signed + 1) / 2 * 255).clamp(0, 255).byte().tolist()
    )


def test_rounded_as_by_save_image(tmp_path: Path) -> None:
    file = tmp_path / "values.png"
    save_image(torch.from_numpy(VALUES)[None, None].repeat(3, 1, 1), file)
    saved = np.asarray(Image.open(file))[0, :, 0].tolist()
    assert ours(VALUES, (0.0, 1.0), floor=False) == saved
    assert ours(VALUES, (0.0, 1.0), floor=True) != saved


def test_identity_of_a_set_has_the_rounding() -> None:
    """Without truncation it is as in versions that only rounded, so that their cached statistics
    are found.
    """
    assert ValueRange(0.0, 1.0).variant == f"value range {(0.0, 1.0)}"
    variants = {
        ValueRange(0.0, white, floor).variant for white in (1.0, 2.0) for floor in (False, True)
    }
    assert len(variants) == 4


@pytest.mark.parametrize("how", ["floor", "round"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_the_same_bytes_in_training(dtype: torch.dtype, how: str) -> None:
    """Of tensors in memory, also of half precision, whose products torchmetrics truncates in that
    precision.
    """
    values = torch.from_numpy(VALUES).clamp(-0.001, 1.001).double().to(dtype)
    images = values[: len(values) // 9 * 9].reshape(1, 3, 3, -1)
    (read,) = to_contents(images[0], ValueRange(0.0, 1.0, how == "floor"), "images")
    assert isinstance(read, Pixels)
    assert read.values.transpose(2, 0, 1).tolist() == trained_on(images, how)[0].tolist()
    if how == "floor":
        assert trained_on(images, how).tolist() == (images * 255).byte().tolist(), "torchmetrics"


@pytest.mark.parametrize("form", ["pt", "safetensors"])
def test_the_same_bytes_of_files_in_half_precision(tmp_path: Path, form: str) -> None:
    images = torch.from_numpy(VALUES[:768].clip(0, 1)).reshape(1, 3, 16, 16).bfloat16()
    (torch.save if form == "pt" else save_file)({"images": images}, str(tmp_path / f"a.{form}"))
    for floor in (False, True):
        (read,) = open_images(
            str(tmp_path / f"a.{form}"), value_range=ValueRange(0.0, 1.0, floor)
        ).read([0])
        (wanted,) = to_contents(images[0], ValueRange(0.0, 1.0, floor), "images")
        assert isinstance(read, Pixels)
        assert isinstance(wanted, Pixels)
        assert read.values.tolist() == wanted.values.tolist()


def test_the_protocols_tool_decides() -> None:
    assert {name: Settings(protocol=name).rounding for name in PROTOCOLS} == {
        name: "floor" if name == "torchmetrics" else "round" for name in PROTOCOLS
    }
    assert Settings(protocol="torchmetrics", float_to_byte="round").rounding == "round"
    assert record_settings(Settings(protocol="torchmetrics"))["float_to_byte"] == "floor"
    assert "float_to_byte" not in changed_settings(Settings())


def test_settings() -> None:
    assert Settings(float_to_byte="floor").floats is None
    assert Settings(value_range=(0, 1)).floats == ValueRange(0.0, 1.0)
    assert Settings(value_range=(0, 1), float_to_byte="floor").floats == ValueRange(
        0.0, 1.0, floor=True
    )
    with pytest.raises(
        fidtool.InputError, match="float_to_byte must be round or floor, not 'ceil'"
    ):
        Settings(float_to_byte="ceil")
