"""A module that a metric calls with the images as they are, as torchmetrics calls a custom feature extractor."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import nn

from fidtool.errors import InputError
from fidtool.features.definition import Definition
from fidtool.features.device import Device
from fidtool.features.extractor import Extractor
from fidtool.features.network import module_digest
from fidtool.features.preparation import Preparation
from fidtool.features.protocol import FEATURES
from fidtool.features.runner import Runner
from fidtool.features.torch_state import computing_on
from fidtool.images.decode import DECODER


@dataclass(frozen=True)
class PlainModule:
    """A module that maps images, of any shape and dtype, to features of shape (n, D). One thread calls it.

    Attributes:
        feature_step: features are rounded to multiples of 2 ** -feature_step, see `fidtool.Network`.
        example: an image whose features give D, for a module without ``num_features``; None if D is not needed yet.
    """

    module: nn.Module
    feature_step: int
    example: torch.Tensor | None

    def extractor(self, device: Device) -> Extractor:
        """Returns the extractor. Puts the module into evaluation mode."""
        kind, one_thread = type(self.module), replace(device, forward_threads=1)
        self.module.eval().requires_grad_(False).to(device.torch_device)
        dims, digest = self._dims(), module_digest(self.module)
        name = f"{kind.__module__}.{kind.__qualname__}"
        definition = Definition(name, digest, dims, self.feature_step, 0, "none", "none", DECODER, ddof=1)
        runner = Runner(self.module, device.torch_device)
        return _PlainExtractor(runner, {FEATURES: definition}, Preparation("bilinear"), (0.0,), (1.0,), one_thread)

    def _dims(self) -> int:
        if hasattr(self.module, "num_features"):
            return int(self.module.num_features)  # type: ignore[arg-type]
        if self.example is None:
            return 0
        with torch.inference_mode(), computing_on(self.example.device):
            try:
                _, dims = self.module(self.example[None]).shape
            except Exception as error:
                shape, reason = tuple(self.example.shape), " ".join(str(error).split())[:200]
                raise InputError(
                    f"feature, {type(self.module).__name__}, gives no (1, D) for an image of shape {shape} ({reason}):",
                    "pass input_img_size, the shape of your images",
                    "give it an attribute num_features, D",
                    "wrap it in fidtool.Network(module, input_size=…), which resizes and normalises images",
                    setting="feature",
                ) from error
        return int(dims)


class _PlainExtractor(Extractor):
    def on(self, device: Device) -> Extractor:
        return super().on(replace(device, forward_threads=1))

    def inputs(self, images: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack(images)
