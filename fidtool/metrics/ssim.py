"""SSIM and MS-SSIM: the structural similarity of pairs of images."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fidtool.features.protocol import PIXELS
from fidtool.metrics.metric import METRICS, Number
from fidtool.metrics.pairs import PairMetric, PixelMetric, check_size, split_channels
from fidtool.validation import Setting

if TYPE_CHECKING:
    import torch

# The constants of Wang et al. for values in 0..1.
_C1 = 0.01**2
_C2 = 0.03**2
# Factor and summand of values in 0..1 that give what another scale gives for the constants above,
# as neither a common factor of values and range nor the order of the two steps matters.
_SCALES = {"unit": (1.0, 0.0), "signed": (1.0, -0.5), "half": (0.5, 0.0)}
_MIN_SIDE = {"gaussian": 6, "gaussian-valid": 11, "uniform": 7}
# Exponents of the five scales of MS-SSIM, the finest first, of Wang et al. 2003.
_WEIGHTS = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)
# The window of 11 pixels is inside the image at the coarsest scale.
_MIN_MULTISCALE_SIDE = 176
# Numerators and denominators.
_Fraction = tuple["torch.Tensor", "torch.Tensor"]


@dataclass(frozen=True, kw_only=True)
class SSIM(PixelMetric):
    """Structural similarity (Wang et al. 2004) of each pair of images, averaged over the pairs.

    The value of a pair is the mean over channels and windows. It is in -1..1, and 1 for equal
    images. The standard deviation over the pairs is returned as well. See `of_pair`.

    Raises:
        InputError: if a side of an image, without the border, is shorter than 6 pixels, 7 for
            ``uniform`` or 11 for ``gaussian-valid``.
    """

    window: Literal["gaussian", "gaussian-valid", "uniform"] = Setting("gaussian", METRICS).help(
        "SSIM: the window. gaussian has 11 pixels, as in torchmetrics; gaussian-valid is the same "
        "window, but only at places where it lies inside the images, as in papers on "
        "super-resolution; uniform has 7 pixels, as in scikit-image."
    )
    scale: Literal["unit", "signed", "half"] = Setting("unit", METRICS).help(
        "SSIM: the scale of the pixel values: 0..1 (unit), -1..1 (signed, as in LightningDiT), or "
        "0..1 with the constants for a range of 2 (half, as in LlamaGen)."
    )

    name = "ssim"
    numbers = (
        Number(
            "ssim",
            "SSIM",
            "higher",
            "mean over pairs",
            "ssim_std",
            layer=PIXELS,
            spread_kind="s.d.",
        ),
    )

    def of_pair(self, real: torch.Tensor, fake: torch.Tensor) -> float:
        """Return the mean over channels and over places of the window, computed in float64.

        The ``gaussian`` window has a standard deviation of 1.5 and is placed at all pixels; images
        are reflected at their edges, as in torchmetrics. The ``gaussian-valid`` window is the same,
        but lies inside the images, as in the program of Wang et al. The ``uniform`` window lies
        inside the images and uses the sample covariance, as in scikit-image.
        """
        factor, summand = _SCALES[self.scale]
        means = [
            _mean_ratio(*_ssim_terms(images / 255 * factor + summand, self.window))
            for images in self.channels(real, fake, _MIN_SIDE[self.window])
        ]
        return math.fsum(means) / len(means)


@dataclass(frozen=True, kw_only=True)
class MultiScaleSSIM(PairMetric):
    """Multi-scale structural similarity (Wang et al. 2003) of each pair of images, averaged over
    the pairs.

    The value of a pair is computed as in torchmetrics. It is in 0..1, and 1 for equal images. The
    standard deviation over the pairs is returned as well.

    Raises:
        InputError: if a side of an image is shorter than 176 pixels.
    """

    name = "ms-ssim"
    numbers = (
        Number(
            "ms_ssim",
            "MS-SSIM",
            "higher",
            "mean over pairs",
            "ms_ssim_std",
            layer=PIXELS,
            spread_kind="s.d.",
        ),
    )

    def of_pair(self, real: torch.Tensor, fake: torch.Tensor) -> float:
        """Return the product of the scales' means over channels and places, each to the power of
        its weight.

        As in torchmetrics, each scale averages 2x2 pixels of the scale before. The last scale
        contributes the SSIM at all pixels, with images reflected at their edges. The other scales
        contribute the term of contrast and structure, inside the images. A negative mean counts as
        0.
        """
        check_size(self, real, _MIN_MULTISCALE_SIDE)
        of_channels = [self._channel_means(images / 255) for images in split_channels(real, fake)]
        product = 1.0
        for scale, weight in zip(zip(*of_channels, strict=True), _WEIGHTS, strict=True):
            product *= max(0.0, math.fsum(scale) / len(scale)) ** weight
        return product

    def _channel_means(self, images: torch.Tensor) -> list[float]:
        import torch

        means = []
        for _ in _WEIGHTS[1:]:
            _, (upper, lower) = _ssim_terms(images, "gaussian")
            means.append(float((upper / lower)[5:-5, 5:-5].mean()))
            images = torch.nn.functional.avg_pool2d(images, 2)
        return [*means, _mean_ratio(*_ssim_terms(images, "gaussian"))]


def _mean_ratio(luminance: _Fraction, contrast: _Fraction) -> float:
    return float((luminance[0] * contrast[0] / (luminance[1] * contrast[1])).mean())


def _ssim_terms(images: torch.Tensor, window: str) -> tuple[_Fraction, _Fraction]:
    """Return two images' term of luminance, and that of contrast and structure, at each place of
    the window.
    """
    import torch

    weights = [math.exp(-((place / 1.5) ** 2) / 2) for place in range(-5, 6)]
    weights = [weight / sum(weights) for weight in weights]
    scale = 1.0
    if window == "uniform":
        weights = [1 / 7] * 7
        scale = 49 / 48
    elif window == "gaussian":
        images = torch.nn.functional.pad(images, (5, 5, 5, 5), "reflect")
    x, y = images
    # Only the sum of the variances is needed.
    mean_x, mean_y, squares, products = _filter(torch.stack([x, y, x * x + y * y, x * y]), weights)
    both = mean_x * mean_x + mean_y * mean_y
    variances = scale * (squares - both)
    covariance = scale * (products - mean_x * mean_y)
    luminance = (2 * mean_x * mean_y + _C1, both + _C1)
    contrast = (2 * covariance + _C2, variances + _C2)
    return luminance, contrast


def _filter(images: torch.Tensor, weights: list[float]) -> torch.Tensor:
    """Return weighted sums over windows, where they are inside: shape (..., height - n + 1, width -
    n + 1).

    Ten times as fast as torch's convolution in float64 on the CPU.
    """
    for side in (-2, -1):
        count = images.shape[side] - len(weights) + 1
        total = images.narrow(side, 0, count) * weights[0]
        for place, weight in enumerate(weights[1:], 1):
            total.add_(images.narrow(side, place, count), alpha=weight)
        images = total
    return images
