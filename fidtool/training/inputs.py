"""What a program passes to metrics, losses and extractors: flags, images and conversions of a
module, checked; images as bytes, and their hashes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fidtool.errors import InputError, short_repr, warn_program
from fidtool.sources.arrays import hint_of_videos
from fidtool.sources.image_set import splitmix64

# What torch applies to the tensors of a module.
Convert = Callable[[Tensor], Tensor]
# 2 ** 64 over the golden ratio.
_GOLDEN = 0x9E3779B97F4A7C15


def warn_of_conversion(module: nn.Module, fn: Convert) -> None:
    """Warn if a function that torch applies to the tensors of a module converts floats, such as
    that of `half`.
    """
    if fn(torch.zeros(1, device="cpu")).dtype != torch.float32:
        warn_program(
            f"half(), double(), type() and to(dtype) have no effect on {type(module).__name__}: "
            "its precision is fixed, so that its values are those of fidtool compute"
        )


def parse_bool(name: str, value: Any) -> bool:
    """Return a bool, which may also be passed as 0 or 1 and as a scalar of NumPy or torch; a
    string is a mistake.
    """
    scalar = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(scalar, int) or scalar not in (0, 1):
        raise InputError(f"{name} must be True or False, not {short_repr(value)}")
    return bool(scalar)


def check_images(
    images: object, normalize: bool, device: torch.device, float_to_byte: str, plain: bool = False
) -> Tensor:
    """Validate a batch of images and convert it to uint8. If ``plain``, they are only moved to
    the device.

    With ``normalize`` they must be floating-point in 0..1, and become the same bytes as by
    `fidtool.sources.arrays.to_pixels`. For ``floor`` the product is computed in the images' dtype,
    as in torchmetrics: bytes / 255 in float16 gives the same bytes.
    """
    if not isinstance(images, Tensor):
        raise InputError(f"images must be a torch.Tensor, not {type(images).__name__}")
    if device.type == "meta":
        raise InputError(
            "the metric is on the meta device: move it to a real device with "
            "metric.to_empty(device=…)"
        )
    if images.device.type != "cpu" and images.device != device:
        raise InputError(
            f"the images are on {images.device}, but the metric is on {device}:",
            f"call metric.to('{images.device}')",
        )
    images = images.to(device)
    if plain:
        return images
    if images.ndim != 4 or images.shape[1] not in (1, 3) or 0 in images.shape[2:]:
        hint = hint_of_videos(images.shape, "images")
        if images.ndim == 4 and images.shape[3] in (1, 3):
            hint = "; put the channels first with images.permute(0, 3, 1, 2)"
        raise InputError(
            "images must have the shape (n, 3, height, width), or (n, 1, height, width) for "
            f"grayscale, not {tuple(images.shape)}{hint}"
        )
    images = images.expand(-1, 3, -1, -1)
    if normalize:
        return _floats_to_bytes(images, float_to_byte)
    if images.dtype != torch.uint8:
        advice = "values must be 0..255"
        if images.is_floating_point():
            advice = "pass normalize=True for floats in 0..1"
        raise InputError(
            f"images must be uint8, not {str(images.dtype).removeprefix('torch.')}; {advice}"
        )
    return images


def _floats_to_bytes(images: Tensor, float_to_byte: str) -> Tensor:
    if not images.is_floating_point():
        raise InputError(f"with normalize=True, images must be floats in 0..1, not {images.dtype}")
    scaled = images * 255
    check_range(scaled, "with normalize=True, ")
    if float_to_byte == "floor":
        return scaled.byte()
    exact = images if images.dtype == torch.float64 else images.float()
    return (exact * 255 + 0.5).clamp(0, 255).byte()


def check_range(scaled: Tensor, when: str = "") -> None:
    """Check that values, times 255, are in 0..1; ``when`` begins the message."""
    if not scaled.numel():
        return
    low, high = (float(value) / 255 for value in scaled.aminmax())
    if math.isnan(low):  # both are, if any value is
        raise InputError(f"{when}values must be in 0..1, but some are NaN")
    if low <= -1 / 255 or high >= 256 / 255:
        raise InputError(
            f"{when}values must be in 0..1, but these are in {low:g}..{high:g}: images / 255 "
            "rescales from 0..255 and (images + 1) / 2 from -1..1, images * std + mean undoes a "
            "normalisation, and images.clamp(0, 1) clips"
        )


def not_floats_error(name: str, shape: str, given: Tensor) -> InputError:
    """Return the error for a tensor that is not floating-point or has another shape."""
    return InputError(
        f"{name} must be a floating-point tensor of shape {shape}, not {given.dtype} of shape "
        f"{tuple(given.shape)}"
    )


def image_hashes(images: Tensor) -> Tensor:
    """A 64-bit hash of each image (shape (n, channels, height, width)): int64 of shape (n,) on the
    CPU.

    The sum of the bytes times position-dependent weights, modulo 2 ** 64: the same on any device.
    """
    flat = images.flatten(1).contiguous().view(torch.uint8)
    weights = _weights(flat.shape[1], flat.device)
    size = sum(65537**place * side for place, side in enumerate(images.shape[1:3]))
    # A batch of photos as int64 would take gigabytes.
    parts = torch.split(flat, max(1, (1 << 20) // max(1, flat.shape[1])))
    return torch.cat([(part.to(torch.int64) * weights).sum(1) + size for part in parts]).cpu()


@lru_cache(maxsize=4)
def _weights(count: int, device: torch.device) -> Tensor:
    """Pseudo-random odd numbers from the mixing function of SplitMix64 (Steele, Lea and Flood
    2014).
    """
    values = splitmix64(np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GOLDEN))
    return torch.from_numpy((values | np.uint64(1)).view(np.int64)).to(device)
