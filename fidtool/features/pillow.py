"""Pillow's resize of 8-bit images, to the bit, on any device that has float64.

Pillow (src/libImaging/Resample.c) weighs source pixels in fixed point: a kernel that is widened by the scale where it
shrinks, cut off at the image's edge, normalised in float64 and rounded to multiples of 2 ** -22; the weighted sum is
rounded to a whole number and clamped to 0..255 after each axis. Weights and pixels are integers, and their sums stay
far below 2 ** 53: a float64 matrix product has them exactly, whatever its order, so the result is the same on every
device, and Pillow's: none of 36 million values of noise differed from Pillow 12's.

Widths are always resampled first, as in every Pillow before 13, by which the published numbers were made. Pillow 13
begins with the heights where these shrink much more, which moves 2 % of the values of 240 photos squashed to 224 x 224
(those of the 31 tall ones), by up to 20 grey levels. What is resized here does not depend on Pillow's version.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

_ONE = float(1 << 22)
_BAND = 32
"""Results that share a matrix: most of a matrix for all of them would be zeros."""
_VALUES_AT_ONCE = 1 << 22

Kernel = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def _bilinear(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.maximum(1.0 - np.abs(x), 0.0)


def _bicubic(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Keys' cubic convolution (1981) with a = -0.5."""
    a, x = -0.5, np.abs(x)
    inner = ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    outer = (((x - 5.0) * x + 8.0) * x - 4.0) * a
    return np.where(x < 1.0, inner, np.where(x < 2.0, outer, 0.0))


_KERNELS: dict[str, tuple[Kernel, float]] = {"pillow-bilinear": (_bilinear, 1.0), "pillow-bicubic": (_bicubic, 2.0)}
"""Kernels with the distance at which they end."""


@dataclass(frozen=True)
class _Band:
    """Some neighbouring results along one axis.

    Attributes:
        start, stop: the source pixels that they are made of.
        weights: float64 tensor of shape (stop - start, results), whole numbers: multiples of 2 ** -22 times 2 ** 22.
    """

    start: int
    stop: int
    weights: torch.Tensor


@lru_cache(maxsize=64)
def _bands(in_size: int, out_size: int, first: int, count: int, method: str, device: torch.device) -> list[_Band]:
    """Weights for the results ``first`` to ``first + count`` of ``out_size`` along an axis of ``in_size`` pixels.

    They are kept on the device, and outside inference mode: see `fidtool.features.resize`.
    """
    kernel, support = _KERNELS[method]
    scale = in_size / out_size
    widened = max(scale, 1.0)
    bands = []
    for begin in range(first, first + count, _BAND):
        results = np.arange(begin, min(begin + _BAND, first + count))
        centre = (results + 0.5) * scale
        lower = np.maximum(np.floor(centre - support * widened + 0.5), 0).astype(np.int64)
        upper = np.minimum(np.floor(centre + support * widened + 0.5), in_size).astype(np.int64)
        source = np.arange(lower[0], upper[-1])[:, None]
        weights = kernel((source - centre + 0.5) * (1.0 / widened))
        weights[(source < lower) | (source >= upper)] = 0.0
        weights /= np.cumsum(weights, axis=0)[-1]  # added one after the other, as Pillow does
        whole = np.trunc(weights * _ONE + np.copysign(0.5, weights))
        with torch.inference_mode(False):
            bands.append(_Band(int(lower[0]), int(upper[-1]), torch.from_numpy(whole).to(device)))
    return bands


def pillow_resize(
    pixels: torch.Tensor, resized: tuple[int, int], cut: tuple[int, int], size: int, method: str
) -> torch.Tensor:
    """Resizes a batch of equally large images as ``PIL.Image.resize`` does, and cuts a square out of the result.

    What is outside the square is not computed.

    Args:
        pixels: uint8 tensor of shape (n, height, width, 3), or float32 of the same shape with values in 0..255: then
            gradients pass straight through the rounding, and are zero where the clamp to 0..255 holds.
        resized: height and width to resize to.
        cut: top and left of the square inside them.
        size: side of the square.
        method: ``pillow-bilinear`` or ``pillow-bicubic``.

    Returns:
        float32 tensor of shape (n, 3, size, size), whole numbers in 0..255.
    """
    if pixels.device.type == "mps":  # has no float64
        return pillow_resize(pixels.cpu(), resized, cut, size, method).to(pixels.device)
    count, height, width, channels = pixels.shape
    down = _bands(height, resized[0], cut[0], size, method, pixels.device)
    across = _bands(width, resized[1], cut[1], size, method, pixels.device)
    above, below = down[0].start, down[-1].stop
    lines = pixels[:, above:below].permute(0, 3, 1, 2).reshape(-1, width)
    at_once = max(1, _VALUES_AT_ONCE // width)
    narrow = torch.cat([_weighed(part, across, 0) for part in torch.split(lines, at_once)])
    columns = narrow.view(count * channels, below - above, size).transpose(1, 2).reshape(-1, below - above)
    return _weighed(columns, down, above).view(count, channels, size, size).transpose(2, 3)


def _weighed(lines: torch.Tensor, bands: list[_Band], origin: int) -> torch.Tensor:
    """One axis: from (lines, source pixels), of which the first is pixel ``origin``, to float32 (lines, results)."""
    parts = []
    for band in bands:
        taken = lines[:, band.start - origin : band.stop - origin].double()
        parts.append(_rounded(taken @ band.weights).float())
    return torch.cat(parts, 1)


def _rounded(sums: torch.Tensor) -> torch.Tensor:
    whole = torch.floor((sums + _ONE / 2) / _ONE).clamp(0.0, 255.0)
    if not sums.requires_grad:
        return whole
    smooth = (sums / _ONE).clamp(0.0, 255.0)
    return smooth + (whole - smooth).detach()
