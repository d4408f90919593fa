"""What a metric has seen so far of one kind of images, real or fake: exact sums, and images that wait for a full batch.

The network always sees batches of one size, padded at the end: kernels are chosen by the batch's shape, so a feature
has the same bits however the images came.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.distributed.world import World
from fidtool.errors import InputError
from fidtool.features.extractor import Extractor
from fidtool.features.protocol import Definition
from fidtool.features.torch_state import repeatable
from fidtool.statistics.gaussian import MeanCovariance
from fidtool.statistics.moments import ExactMoments
from fidtool.training.alike import image_marks

Totals = dict[str, torch.Tensor]
TOTALS = ("count", "largest", "bits", "sum", "low", "high", "marks")
"""What `Tally.totals` may hold."""


class Tally:
    """Sums over the images of one kind.

    Args:
        definition: what defines the features.
        marked: keep a mark of each image, so that ranks can compare them.
        device: where the sums live.
    """

    def __init__(self, definition: Definition, marked: bool, device: torch.device) -> None:
        self._moments = ExactMoments(definition.dims, definition.feature_step, device)
        self._standard = definition.standard
        self._marked = marked
        self._waiting: list[torch.Tensor] = []
        self._marks: list[torch.Tensor] = []

    @property
    def count(self) -> int:
        """Number of images so far."""
        return self._moments.count + len(self._waiting)

    @property
    def refused(self) -> str:
        """Why a feature was not taken in, and the sums are of no use; empty where all is well."""
        return self._moments.refused

    def add(self, images: torch.Tensor, extractor: Extractor, batch_size: int) -> None:
        """Takes images in; full batches go through the network now. Where that fails, none of them was taken in.

        Args:
            images: uint8 tensor of shape (n, 3, height, width) on the extractor's device.
        """
        marks = [image_marks(images)] if self._marked else []
        new = images.permute(0, 2, 3, 1).clone(memory_format=torch.contiguous_format)
        waiting = [*self._waiting, *new]
        # As many batches as run side by side.
        at_once = batch_size * extractor.device.lanes
        ready = len(waiting) // at_once * at_once
        if ready:
            self._extract(waiting[:ready], extractor, batch_size)
        self._waiting = waiting[ready:]
        self._marks += marks

    def flush(self, extractor: Extractor, batch_size: int) -> None:
        """Sends what waits through the network, the last batch filled up with black."""
        if self._waiting:
            self._extract(self._waiting, extractor, batch_size)
            self._waiting = []
        self._moments.flush()

    def _extract(self, images: list[torch.Tensor], extractor: Extractor, batch_size: int) -> None:
        batches = [images[start : start + batch_size] for start in range(0, len(images), batch_size)]

        def filled(batch: list[torch.Tensor]) -> list[torch.Tensor]:
            return batch + [torch.zeros_like(batch[0])] * (batch_size - len(batch))

        with repeatable():
            if extractor.device.lanes == 1:
                # In the caller's thread, and so on the stream of a GPU that it works on.
                with torch.amp.autocast(extractor.device.torch_device.type, enabled=False):
                    pairs = [(batch, extractor.features(filled(batch))) for batch in batches]
            else:
                pairs = [
                    (batch, features)
                    for batch, features in extractor.run(iter(batches), filled, lambda: False)
                    if features is not None
                ]
        for batch, features in pairs:
            self._moments.add(features[: len(batch)])

    def to(self, sums: torch.device, device: torch.device) -> None:
        """Moves the sums, and the images that wait."""
        self._moments.to(sums)
        self._waiting = [image.to(device) for image in self._waiting]

    def merged(self, world: World) -> Tally:
        """The images of all ranks; this object stays as it is. A collective after `flush`."""
        other = copy.copy(self)
        with world.together():  # memory may run out on one rank
            other._moments = copy.deepcopy(self._moments)
        other._moments.merge(world)
        if self._marked:
            other._marks = [torch.from_numpy(marks) for marks in world.gather(self.marks().numpy())]
        return other

    def mean_covariance(self, ddof: int) -> MeanCovariance:
        """See `ExactMoments.mean_covariance`."""
        if not self._standard:
            self._moments.check_precision()
        return self._moments.mean_covariance(ddof)

    def marks_by_rank(self) -> list[NDArray[np.int64]]:
        """Every image's mark, an array a rank, where this was `merged`."""
        return [marks.numpy() for marks in self._marks]

    def marks(self) -> torch.Tensor:
        """Every image's mark, int64 of shape (count,), in the order of their coming."""
        return torch.cat(self._marks) if self._marks else torch.zeros(0, dtype=torch.int64, device="cpu")

    def totals(self) -> Totals:
        """The sums as tensors on the CPU, after `flush`; of symmetric matrices the upper triangle."""
        kept = {name: torch.from_numpy(np.array(values)) for name, values in self._moments.totals().items()}
        return {**kept, "marks": self.marks()} if self._marked else kept

    def absorb(self, totals: Totals) -> None:
        """Adds what `totals` gave.

        Raises:
            InputError: these are sums of something else.
        """
        try:
            arrays = {name: values.cpu().numpy() for name, values in totals.items()}
            self._moments.absorb(arrays)
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"these are not the sums of this metric's features: {error}") from None
        if self._marked and "marks" in totals:
            self._marks.append(totals["marks"].cpu())
