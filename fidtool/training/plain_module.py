"""A module that a metric calls with the images as they are, as torchmetrics calls a custom feature extractor."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import nn

from fidtool.features.definition import Definition
from fidtool.features.device import Device
from fidtool.features.extractor import Extractor
from fidtool.features.network import module_digest
from fidtool.features.preparation import Preparation
from fidtool.features.protocol import FEATURES
from fidtool.features.runner import Runner
from fidtool.images.decode import DECODER


@dataclass(frozen=True)
class PlainModule:
    """A module that maps images, of any shape and dtype, to features of shape (n, D). One thread calls it.

    ``feature_step`` is that of `fidtool.Network`.
    """

    module: nn.Module
    feature_step: int

    def extractor(self, device: Device) -> Extractor:
        """Returns the extractor, whose ``dims`` are 0, because D is unknown. Puts the module into evaluation mode."""
        self.module.eval().requires_grad_(False)
        name = f"{type(self.module).__module__}.{type(self.module).__qualname__}"
        digest = module_digest(self.module)
        definition = Definition(name, digest, 0, self.feature_step, 0, "none", "none", DECODER, ddof=1)
        runner, as_it_is = Runner(self.module, device.torch_device), Preparation("bilinear")
        return _PlainExtractor(runner, {FEATURES: definition}, as_it_is, (0.0,), (1.0,), _one_thread(device))


class _PlainExtractor(Extractor):
    def on(self, device: Device) -> Extractor:
        return super().on(_one_thread(device))

    def inputs(self, images: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack(images)


def _one_thread(device: Device) -> Device:
    return replace(device, forward_threads=1)
