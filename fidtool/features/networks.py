"""The networks of a run: every image is decoded once and goes through each of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TypeVar

import torch

from fidtool.features.device import Device
from fidtool.features.extractor import Extractor
from fidtool.features.passes import side_by_side
from fidtool.features.protocol import EMBEDDING, FEATURES, SPATIAL, Definition

Item = TypeVar("Item")


class Networks:
    """What a batch of images goes through.

    Args:
        main: the extractor; what it gives beside its features are the spatial ones.
        embedding: CMMD's network, where it is another one.

    Attributes:
        device: where they run.
        definitions: what defines the features, by layer.
    """

    def __init__(self, main: Extractor, embedding: Extractor | None = None) -> None:
        self._main, self._embedding = main, embedding
        self.device: Device = main.device
        self.definitions: dict[str, Definition] = {FEATURES: main.definition}
        if main.further:
            (self.definitions[SPATIAL],) = main.further
        if embedding is not None:
            self.definitions[EMBEDDING] = embedding.definition

    def features(self, images: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Feature vectors of one batch, by layer.

        Args:
            images: uint8 tensors of shape (height, width, 3) on the device.

        Returns:
            float32 tensors of shape (len(images), dims of the layer) on the device.
        """
        found = self._main.all_features(images)
        if self._embedding is not None:
            found += self._embedding.all_features(images)
        return dict(zip(self.definitions, found, strict=True))

    def run(
        self,
        batches: Iterator[Item],
        images: Callable[[Item], list[torch.Tensor]],
        stop: Callable[[], bool],
        timed: Callable[[], AbstractContextManager[None]],
        in_turns: bool,
    ) -> Iterator[tuple[Item, dict[str, torch.Tensor] | None]]:
        """Forward passes over a stream of batches, in their order; see `fidtool.features.passes.side_by_side`.

        Args:
            batches, images, stop, in_turns: as there.
            timed: takes the time of a pass, in whichever thread.
        """

        def features(pixels: list[torch.Tensor]) -> dict[str, torch.Tensor]:
            with timed():
                return self.features(pixels)

        return side_by_side(batches, images, features, self.device.lanes, stop, in_turns)

    @property
    def unrecorded(self) -> str:
        """See `fidtool.features.runner.Runner.unrecorded`."""
        return self._main.unrecorded

    def tensors(self) -> dict[str, torch.Tensor]:
        """All parameters and buffers by name."""
        found = self._main.tensors()
        if self._embedding is not None:
            found |= {f"{EMBEDDING}.{name}": tensor for name, tensor in self._embedding.tensors().items()}
        return found

    def probe(self, batch_size: int) -> str:
        """See `Extractor.probe`; of two networks, a SHA-256 of both."""
        probe = self._main.probe(batch_size)
        if self._embedding is None:
            return probe
        return hashlib.sha256((probe + self._embedding.probe(batch_size)).encode()).hexdigest()
