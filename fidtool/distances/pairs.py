"""Differences between two images, pixel by pixel: PSNR and SSIM."""

from __future__ import annotations

import math

import torch

LEAST_MSE = 1e-10
"""PSNR counts smaller mean squared errors, those of identical images, as this one, as RAE's evaluation does."""
LEAST_SIDE = {"gaussian": 6, "uniform": 7}
"""Smallest number of pixels along a side of an image, by the window of SSIM."""
_STABLE = (0.01**2, 0.03**2)
"""The constants c1 and c2 of SSIM for values in 0..1."""


def psnr(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the peak signal-to-noise ratio of two images in dB: -10 log10 of the mean squared error of values in 0..1.

    Args:
        one, other: uint8 tensors of the same shape.

    Returns:
        The ratio, at most 100 dB, see `LEAST_MSE`. The sum of squared errors is exact.
    """
    total = int((one.int() - other.int()).square_().sum(dtype=torch.int64))
    return -10.0 * math.log10(max(total / (255**2 * one.numel()), LEAST_MSE))


def ssim(one: torch.Tensor, other: torch.Tensor, window: str) -> float:
    """Return the structural similarity of two images (Wang et al. 2004), computed in float64.

    Args:
        one, other: uint8 tensors of the same shape (height, width, channels), each side at least `LEAST_SIDE`.
        window: ``gaussian``, 11 x 11 pixels with a standard deviation of 1.5 at all pixels of images that are reflected
            at their edges, as torchmetrics' default; or ``uniform``, 7 x 7 pixels at all places inside the images, with
            the sample covariance, as scikit-image's default.

    Returns:
        The mean over channels and places of the window.
    """
    weights = _window(window)
    scale = len(weights) ** 2 / (len(weights) ** 2 - 1) if window == "uniform" else 1.0
    c1, c2 = _STABLE
    means = list[float]()
    for channel in range(one.shape[2]):  # one at a time, for the memory
        images = torch.stack([each[..., channel].double() / 255 for each in (one, other)])
        if window == "gaussian":
            images = torch.nn.functional.pad(images, (len(weights) // 2,) * 4, "reflect")
        x, y = images
        # Only the sum of the variances is needed.
        mean_x, mean_y, squares, products = _filtered(torch.stack([x, y, x * x + y * y, x * y]), weights)
        variances = scale * (squares - mean_x * mean_x - mean_y * mean_y)
        covariance = scale * (products - mean_x * mean_y)
        upper = (2 * mean_x * mean_y + c1) * (2 * covariance + c2)
        means.append(float((upper / ((mean_x * mean_x + mean_y * mean_y + c1) * (variances + c2))).mean()))
    return math.fsum(means) / len(means)


def _window(name: str) -> list[float]:
    """Return the weights of a window along one side."""
    if name == "uniform":
        return [1 / 7] * 7
    weights = [math.exp(-((place / 1.5) ** 2) / 2) for place in range(-5, 6)]
    return [weight / sum(weights) for weight in weights]


def _filtered(images: torch.Tensor, weights: list[float]) -> torch.Tensor:
    """Return weighted sums over windows, where they are inside: shape (..., height - n + 1, width - n + 1).

    Ten times as fast as torch's convolution in float64 on the CPU.
    """
    for side in (-2, -1):
        count = images.shape[side] - len(weights) + 1
        total = images.narrow(side, 0, count) * weights[0]
        for place, weight in enumerate(weights[1:], 1):
            total.add_(images.narrow(side, place, count), alpha=weight)
        images = total
    return images
