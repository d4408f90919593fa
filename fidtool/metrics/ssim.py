"""SSIM: the structural similarity of pairs of images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fidtool.errors import InputError, option
from fidtool.features.protocol import PIXELS
from fidtool.metrics.metric import METRICS, Number
from fidtool.metrics.pairs import PairMetric
from fidtool.validation import Setting

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class SSIM(PairMetric):
    """Structural similarity (Wang et al. 2004) of each pair of images: the mean over the pairs."""

    window: Literal["gaussian", "uniform"] = Setting("gaussian", METRICS).help(
        "SSIM: its window, gaussian of 11 pixels as in torchmetrics, or uniform of 7 pixels as in scikit-image."
    )

    name = "ssim"
    numbers = (Number("ssim", "SSIM", "higher", "mean over pairs", "ssim_std", layer=PIXELS),)

    def of_pair(self, real: torch.Tensor, fake: torch.Tensor) -> float:
        from fidtool.distances.pairs import LEAST_SIDE, ssim

        height, width, _ = real.shape
        if min(height, width) < (least := LEAST_SIDE[self.window]):
            problem = f"SSIM needs images of at least {least}×{least} pixels, and one has {width}×{height}:"
            raise InputError(problem, f"omit ssim from {option('metrics')}", setting="metrics")
        return ssim(real, fake, self.window)
