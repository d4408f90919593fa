"""PSNR: the peak signal-to-noise ratio of pairs of images."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fidtool.errors import ResultWarning
from fidtool.features.protocol import PIXELS
from fidtool.metrics.metric import FeatureSet, MetricContext, Number, Values
from fidtool.metrics.pairs import PixelMetric
from fidtool.names import format_count

if TYPE_CHECKING:
    import torch

# Smaller mean squared errors, as of identical images, count as this one, which is 100 dB, as in
# RAE's evaluation.
_MIN_ERROR = 1e-10


@dataclass(frozen=True, kw_only=True)
class PSNR(PixelMetric):
    """Peak signal-to-noise ratio of each pair of images, in dB for values in 0..1, averaged over
    the pairs.

    The value of a pair is -10 log10 of the mean squared error of the RGB values, or of Y. The
    standard deviation over the pairs is returned as well. Equal images count as 100 dB, as in RAE's
    evaluation.

    Raises:
        InputError: if the border leaves nothing of an image.
    """

    name = "psnr"
    numbers = (
        Number(
            "psnr",
            "PSNR",
            "higher",
            "mean over pairs, in dB",
            "psnr_std",
            digits=2,
            layer=PIXELS,
            spread_kind="s.d.",
        ),
    )

    def of_pair(self, real: torch.Tensor, fake: torch.Tensor) -> float:
        total = 0.0
        count = 0
        for one, other in self.channels(real, fake):
            # Of RGB exact: sums of integers.
            total += float((one - other).square_().sum())
            count += one.numel()
        error = total / (255**2 * count)
        return -10.0 * math.log10(max(error, _MIN_ERROR))

    def compute(self, real: FeatureSet, fake: FeatureSet, context: MetricContext) -> Values:
        identical = int((fake.pairs[self.name] >= 100.0).sum())
        if identical:
            pairs = format_count(identical, "pair")
            text = f"the PSNR of {pairs} of (almost) identical images counts as 100 dB"
            context.warnings.append(ResultWarning(fake.path, text))
        return super().compute(real, fake, context)
