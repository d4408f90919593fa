"""The protocols' interpolations compared with their definitions and with the libraries they are
named after.
"""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from torchvision.transforms.functional import to_tensor

from fidtool.features import resize as resizing
from fidtool.features.protocol import PROTOCOLS
from fidtool.features.resize import Preparation, Resize, pillow_resize, prepare_images, resize
from support.preparations import FILTERS, widths_first

METHODS: tuple[Resize, ...] = get_args(Resize)

SMALL = [(1, 1), (1, 9), (20, 20), (19, 33), (61, 13)]
"""Heights and widths below, at and above the 20 pixels of the loops' result."""

LARGE = [(1, 1), (32, 32), (300, 298), (640, 13)]
"""Heights and widths around Inception's 299."""


def noise(height: int, width: int, count: int = 1) -> torch.Tensor:
    """Return noise: uint8 tensor of shape (count, height, width, 3)."""
    rng = np.random.RandomState(height * 1000 + width)
    return torch.from_numpy(rng.randint(0, 256, (count, height, width, 3)).astype(np.uint8))


def tf1_by_definition(image: NDArray[np.uint8], size: int) -> NDArray[np.float64]:
    """TensorFlow 1's bilinear, value by value: source = index * in / out, floor, upper neighbour
    clamped.
    """
    height, width, channels = image.shape
    result = np.zeros((size, size, channels))
    for row in range(size):
        y = row * height / size
        top = int(np.floor(y))
        bottom = min(top + 1, height - 1)
        for column in range(size):
            x = column * width / size
            left = int(np.floor(x))
            right = min(left + 1, width - 1)
            for channel in range(channels):
                a, b = float(image[top, left, channel]), float(image[top, right, channel])
                c, d = float(image[bottom, left, channel]), float(image[bottom, right, channel])
                upper, lower = a + (b - a) * (x - left), c + (d - c) * (x - left)
                result[row, column, channel] = upper + (lower - upper) * (y - top)
    return result


@pytest.mark.parametrize(("height", "width"), SMALL)
def test_tf1_equals_its_definition(height: int, width: int) -> None:
    pixels = noise(height, width)
    resized = resize(pixels, 20, Preparation("bilinear-tf1"))
    assert (resized.shape, resized.dtype) == ((1, 3, 20, 20), torch.float32)
    expected = tf1_by_definition(pixels[0].numpy(), 20)
    # float32 source positions are off by at most 2 ** -24 of the side, in units of up to 255 per
    # pixel.
    tolerance = 255 * (max(height, width) + 2) * 2.0**-23
    np.testing.assert_allclose(
        resized[0].permute(1, 2, 0).double().numpy(), expected, rtol=0, atol=tolerance
    )


@pytest.mark.parametrize(("height", "width"), LARGE)
def test_bilinear_equals_torchs_on_values_from_0_to_1(height: int, width: int) -> None:
    """pytorch-fid: ToTensor, then interpolate, then 2x - 1."""
    pixels = noise(height, width)
    ready = to_tensor(pixels[0].numpy())[None]
    theirs = F.interpolate(ready, size=(299, 299), mode="bilinear", align_corners=False)
    # The same operations on values 255 times as large: a few float32 roundings, each of up to 2 **
    # -24 below 1.
    torch.testing.assert_close(
        resize(pixels, 299, Preparation("bilinear")) / 255, theirs, rtol=0, atol=3e-7
    )
    protocol = PROTOCOLS["pytorch-fid"]
    offset, scale = torch.tensor(protocol.offset), torch.tensor(protocol.scale)
    entered = prepare_images([pixels[0]], 299, Preparation(protocol.resize), offset, scale)
    torch.testing.assert_close(entered, 2 * theirs - 1, rtol=0, atol=6e-7)  # twice the range


@pytest.mark.parametrize("method", METHODS)
def test_an_image_of_the_right_size_is_unchanged(method: Resize) -> None:
    pixels = noise(299, 299)
    assert torch.equal(resize(pixels, 299, Preparation(method)), pixels.permute(0, 3, 1, 2).float())


@pytest.mark.parametrize(("height", "width"), LARGE)
def test_clean_equals_pillows_resize_of_float32(height: int, width: int) -> None:
    """clean-fid: each channel as float32 through Pillow's bicubic, clipped, not rounded."""
    pixels = noise(height, width)[0].numpy()
    channels = (Image.fromarray(pixels[:, :, channel].astype(np.float32)) for channel in range(3))
    theirs = np.stack(
        [np.asarray(channel.resize((299, 299), Image.Resampling.BICUBIC)) for channel in channels]
    )
    resized = resize(torch.from_numpy(pixels)[None], 299, Preparation(PROTOCOLS["clean"].resize))[
        0
    ].numpy()
    # Source positions are float32 in torch and float64 in Pillow; noise is the worst case (photos:
    # 0.0082).
    np.testing.assert_allclose(resized, theirs.clip(0, 255), rtol=0, atol=0.02)
    assert np.abs(resized - theirs.clip(0, 255)).mean() < 2e-3


@pytest.mark.parametrize(("height", "width"), LARGE)
def test_torchmetrics_is_bitwise_equal_to_torchmetrics_call(height: int, width: int) -> None:
    pixels = noise(height, width, 2)
    theirs = F.interpolate(
        pixels.permute(0, 3, 1, 2).contiguous().float(),
        size=(299, 299),
        mode="bilinear",
        align_corners=False,
        antialias=True,
    )
    assert torch.equal(resize(pixels, 299, Preparation(PROTOCOLS["torchmetrics"].resize)), theirs)


SIDES = st.one_of(st.integers(1, 40), st.integers(1, 700))


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(list(FILTERS)), st.tuples(SIDES, SIDES), st.tuples(SIDES, SIDES), st.data())
def test_any_square_of_any_pillow_resize_is_bitwise_equal_to_pillows(
    method: Resize, source: tuple[int, int], resized: tuple[int, int], data: st.DataObject
) -> None:
    size = data.draw(st.integers(1, min(resized)), "size")
    top, left = (data.draw(st.integers(0, side - size), "cut") for side in resized)
    # One image of 0 and 255, whose sums exceed 0..255 most often, and one of noise.
    pixels = noise(*source, count=2)
    pixels[0] = (pixels[0] > 127).byte() * 255
    found = pillow_resize(pixels, resized, (top, left), size, method)
    for image, square in zip(pixels, found, strict=True):
        whole = np.array(
            widths_first(Image.fromarray(image.numpy()), resized[1], resized[0], method)
        )
        expected = torch.from_numpy(whole[top : top + size, left : left + size]).permute(2, 0, 1)
        assert torch.equal(square, expected.float())
    assert torch.equal(pillow_resize(pixels.float(), resized, (top, left), size, method), found)


def test_values_that_are_not_finite_remain_visible() -> None:
    """A generator that diverges must not look like one that returns black images."""
    pixels = noise(12, 12).float()
    pixels[0, 6, 6] = float("nan")
    for method in METHODS:
        assert resize(pixels, 9, Preparation(method)).isnan().any(), method


@pytest.mark.parametrize("method", METHODS)
def test_processing_in_parts_changes_nothing(
    method: Resize, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels, plain = noise(61, 47, count=5), (torch.zeros(1), torch.ones(1))
    whole = prepare_images(list(pixels), 40, Preparation(method), *plain)
    monkeypatch.setattr(resizing, "CPU_BYTES", 20000)
    assert torch.equal(resize(pixels, 40, Preparation(method)), whole)
    assert torch.equal(prepare_images(list(pixels), 40, Preparation(method), *plain), whole)


@pytest.mark.parametrize("method", METHODS)
def test_mixed_sizes_equal_one_image_at_a_time(method: Resize) -> None:
    shapes = [
        (32, 32),
        (20, 31),
        (32, 32),
        (31, 20),
        (150, 90),
        (20, 31),
        (99, 99),
        (1, 5),
        (32, 32),
    ]
    images = [
        noise(height, width)[0].roll(position, 0) for position, (height, width) in enumerate(shapes)
    ]
    offset = torch.tensor([120.0, 110.0, 100.0]).view(1, 3, 1, 1)
    scale = torch.tensor([60.0, 61.0, 62.0]).view(1, 3, 1, 1)
    prepared = Preparation(method)
    together = prepare_images(images, 99, prepared, offset, scale)
    assert (together.shape, together.dtype) == ((9, 3, 99, 99), torch.float32)
    assert together.is_contiguous(memory_format=torch.channels_last)
    alone = torch.cat([prepare_images([image], 99, prepared, offset, scale) for image in images])
    assert torch.equal(together, alone)
    # Reference: resize, then normalise each channel separately.
    first = (resize(images[4][None], 99, prepared)[0] - offset[0]) / scale[0]
    assert torch.equal(together[4], first)


@pytest.mark.parametrize(
    "method", ["bilinear", "bilinear-tf1", "bicubic-antialias", "pillow-bilinear"]
)
def test_gradients_pass_after_inference_mode(method: Resize) -> None:
    """Tensors that are cached between calls must not be inference tensors."""
    pixels, preparation = torch.full((1, 9, 7, 3), 100, dtype=torch.uint8), Preparation(method)
    with torch.inference_mode():
        resize(pixels, 12, preparation)
    wanted = pixels.float().requires_grad_()
    resize(wanted, 12, preparation).sum().backward()
    assert wanted.grad is not None
    assert wanted.grad.sum() == pytest.approx(3 * 12 * 12, rel=1e-4)
