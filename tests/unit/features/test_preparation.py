"""Framing and Pillow's 8-bit resize on the device, against Pillow's and torchvision's own
transforms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision.transforms import InterpolationMode
from torchvision.transforms._presets import ImageClassification

import fidtool
from fidtool.features.resize import Preparation, Resize, resize
from fidtool.settings.settings import Settings
from support.preparations import BLANK, FILTERS, noise, ours


def pixels_of(transform: Callable[[Any], torch.Tensor], picture: Image.Image) -> torch.Tensor:
    """Return the output, in 0..255, of a transform with mean 0 and std 1."""
    return (transform(picture) * 255).round()


@pytest.mark.parametrize(("height", "width"), [(32, 32), (225, 223), (513, 300)])
@pytest.mark.parametrize(("edge", "size"), [(256, 224), (66, 31)])
def test_shorter_edge_is_bitwise_equal_to_torchvision(
    height: int, width: int, edge: int, size: int
) -> None:
    """Both edges shrink by the same factor, for which every version of Pillow resizes widths
    first.
    """
    picture = noise(height, width)
    for mode, method in (
        (InterpolationMode.BILINEAR, "pillow-bilinear"),
        (InterpolationMode.BICUBIC, "pillow-bicubic"),
    ):
        theirs = ImageClassification(crop_size=size, resize_size=edge, interpolation=mode, **BLANK)
        preparation = Preparation(method, "shorter edge", edge)  # type: ignore[arg-type]
        assert torch.equal(ours(picture, size, preparation), pixels_of(theirs, picture))


@pytest.mark.parametrize(("height", "width"), [(1, 1), (400, 3), (225, 223), (300, 512)])
def test_largest_square_is_bitwise_equal_to_cmmd(height: int, width: int) -> None:
    picture = noise(height, width)
    side = min(height, width)
    left, top = (width - side) // 2, (height - side) // 2
    square = picture.crop((left, top, left + side, top + side)).resize(
        (98, 98), Image.Resampling.BICUBIC
    )
    found = ours(picture, 98, Preparation("pillow-bicubic", "largest square"))
    assert torch.equal(found, torch.from_numpy(np.array(square)).permute(2, 0, 1).float())


@pytest.mark.parametrize("method", FILTERS)
def test_gradients_pass_straight_through_the_rounding(method: Resize) -> None:
    """The values equal those without gradients; the gradient is that of the same resize without
    rounding.
    """
    rng = np.random.RandomState(0)
    # No value is clamped.
    pixels = torch.from_numpy(rng.randint(100, 156, (1, 50, 37, 3)).astype(np.uint8))
    weights = torch.from_numpy(rng.standard_normal((1, 3, 30, 30)).astype(np.float32))
    gradients = []
    for each in (method, f"{method.removeprefix('pillow-')}-antialias"):
        x = pixels.float().requires_grad_()
        output = resize(x, 30, Preparation(each))  # type: ignore[arg-type]
        if each == method:
            assert torch.equal(output.detach(), resize(pixels, 30, Preparation(method)))
        (gradient,) = torch.autograd.grad((output * weights).sum(), x)
        gradients.append(gradient)
    assert gradients[0].abs().max() > 0.1
    # Pillow's weights are multiples of 2 ** -22, torch's are float32 at float32 positions. The
    # largest difference seen is 4.9e-6 at gradients of up to 1.6.
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("nearest",), "Preparation.resize must be one of bilinear,"),
        (
            ("bilinear", "stretch"),
            "Preparation.framing must be one of squash, shorter edge, largest square, not 'stretch'",
        ),
        (("pillow-bicubic", "squash", 0), "at least 1"),
        (("pillow-bicubic", "squash", 2.5), "2.5"),
        (("bilinear", "shorter edge", 256), "a resize of Pillow, not bilinear"),
        (("bilinear", "shorter edge"), "a resize of Pillow, not bilinear"),
    ],
)
def test_mistakes_are_reported_by_name(arguments: tuple[Any, ...], text: str) -> None:
    with pytest.raises(fidtool.InputError, match=text):
        fidtool.Preparation(*arguments)


def test_a_crop_larger_than_the_image_is_refused() -> None:
    with pytest.raises(
        fidtool.InputError, match="64 cannot be cropped from images resized to 60 pixels"
    ):
        fidtool.Network(
            nn.Identity(), 64, preparation=Preparation("pillow-bicubic", "shorter edge", 60)
        )
    with pytest.raises(fidtool.InputError, match=r"must be a fidtool\.Preparation, not str"):
        fidtool.Network(nn.Identity(), 64, preparation="pillow-bicubic")  # type: ignore[arg-type]


@pytest.mark.parametrize("setting", [{"input_size": 8}, {"weights": "weights.pth"}])
def test_settings_without_effect_on_a_passed_network_are_refused(setting: dict[str, Any]) -> None:
    network = fidtool.Network(nn.AvgPool2d(4), input_size=4)
    with pytest.raises(fidtool.InputError, match=f"^{next(iter(setting))} applies to "):
        Settings(extractor=network, **setting)


def test_an_edge_of_numpy_is_an_integer() -> None:
    """In 16 bits the product with a side would overflow."""
    preparation = Preparation("pillow-bicubic", "shorter edge", np.int16(256))  # type: ignore[arg-type]
    assert type(preparation.edge) is int
    same = Preparation("pillow-bicubic", "shorter edge", 256)
    assert preparation.frame(500, 600, 224) == same.frame(500, 600, 224)
