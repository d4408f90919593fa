"""Base class of metrics of pairs of images: a generated image or a reconstruction, and the real
image it belongs to.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fidtool.metrics.metric import FeatureSet, Metric, MetricContext, Values, mean_of_images

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

    by_name = True

    @abstractmethod
    def of_pair(self, real: torch.Tensor, fake: torch.Tensor) -> float:
        """Return the value of a pair. Called in any thread, on the rank that decoded the pair.

        Args:
            real, fake: uint8 tensors of the same shape (height, width, 3) on the run's device, RGB.
        """

    def fetch(self, say: Callable[[str], None]) -> State | None:
        """Read or download the tensors of the metric's network, on rank zero; None if it has none.

        Args:
            say: prints what is downloaded.
        """
        return None

    def on_device(self, state: State | None, device: torch.device) -> Compare:
        """Return the function that compares pairs, on every rank, with what `fetch` returned."""
        return self.of_pair

    def compute(self, real: FeatureSet, fake: FeatureSet, context: MetricContext) -> Values:
        return mean_of_images(self.numbers[0], fake.pairs[self.name], context)
