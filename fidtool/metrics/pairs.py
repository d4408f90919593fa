"""Base class of metrics of pairs of images: a generated image or a reconstruction, and the real
image it belongs to.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from fidtool.errors import option
from fidtool.metrics.metric import (
    METRICS,
    FeatureSet,
    Metric,
    MetricContext,
    Values,
    mean_of_images,
    not_computable_error,
)
from fidtool.validation import Setting

if TYPE_CHECKING:
    import torch

    from fidtool.features.weights import State

Compare = Callable[["torch.Tensor", "torch.Tensor"], float]
"""Returns the value of a pair: a real image and the one that belongs to it, see
`PairMetric.of_pair`.
"""


@dataclass(frozen=True, kw_only=True)
class PairMetric(Metric):
    """Base class of metrics whose value is the mean of one value per pair of images.

    A subclass declares one `Number` with the layer ``pixels``, and overrides `of_pair`.
    """

    by_name = "metrics of image pairs, for reconstructions, must be requested by name"

    @abstractmethod
    def of_pair(self, real: torch.Tensor, fake: torch.Tensor) -> float:
        """Return the value of a pair. This is called in any thread, on the rank that decoded the
        pair.

        Args:
            real, fake: uint8 tensors of the same shape (height, width, 3) on the run's device, RGB.
        """

    def fetch(self, say: Callable[[str], None]) -> State | None:
        """Read or download the tensors of the metric's network, on rank 0. Return None if the
        metric has no network.

        Args:
            say: prints what is downloaded.
        """
        return None

    def on_device(self, state: State | None, device: torch.device) -> Compare:
        """Return the function that compares pairs, on every rank; ``state`` is what `fetch`
        returned.
        """
        return self.of_pair

    def compute(self, real: FeatureSet, fake: FeatureSet, context: MetricContext) -> Values:
        return mean_of_images(self.numbers[0], fake.pairs[self.name], context)


@dataclass(frozen=True, kw_only=True)
class PixelMetric(PairMetric):
    """Base class of metrics of pairs that can be computed on the luma and without a border, as
    papers on super-resolution and restoration report them.
    """

    channel: Literal["rgb", "y"] = Setting("rgb", METRICS).help(
        "Compare the RGB channels, or only Y: the luma of BT.601, as in MATLAB's rgb2ycbcr."
    )
    border: int = Setting(0, METRICS, "N", least=0).help(
        "Leave out N pixels at each edge of the images."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        parts = ["Y"] if self.channel == "y" else []
        if self.border:
            parts.append(f"border {self.border}")
        if parts:
            (number,) = self.numbers
            number = replace(number, title=f"{number.title} ({', '.join(parts)})")
            object.__setattr__(self, "numbers", (number,))

    def channels(
        self, real: torch.Tensor, fake: torch.Tensor, least: int = 1
    ) -> Iterator[torch.Tensor]:
        """Yield the channels of a pair without the border, one at a time, for the memory.

        Args:
            real, fake: as in `PairMetric.of_pair`.
            least: the shortest allowed side without the border.

        Returns:
            Float64 tensors of shape (2, height, width), of the real image first: in 0..255, or in
            16..235 for Y, which is not rounded.

        Raises:
            InputError: if a side is too short.
        """
        border = self.border
        height, width, _ = real.shape
        remedies = []
        if border and min(height, width) >= least:
            remedies.append(f"lower {option(self.named('border'))}")
        check_size(self, real, least + 2 * border, *remedies)
        rows = slice(border, height - border)
        columns = slice(border, width - border)
        planes = split_channels(real[rows, columns], fake[rows, columns])
        if self.channel == "rgb":
            yield from planes
            return
        red, green, blue = planes
        yield (65.481 * red + 128.553 * green + 24.966 * blue) / 255 + 16


def check_size(metric: PairMetric, image: torch.Tensor, least: int, *remedies: str) -> None:
    """Refuse an image of shape (height, width, 3) with a side that is shorter than ``least``."""
    height, width, _ = image.shape
    if min(height, width) < least:
        raise not_computable_error(
            metric,
            f"{metric.numbers[0].title} needs images of at least {least}×{least} pixels, but one "
            f"has {width}×{height}:",
            *remedies,
        )


def split_channels(real: torch.Tensor, fake: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the channels of a pair, float64 of shape (2, height, width): one at a time, for the
    memory.
    """
    import torch

    for channel in range(real.shape[2]):
        yield torch.stack([real[..., channel], fake[..., channel]]).double()
