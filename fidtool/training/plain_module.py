"""A module that a metric calls with the images as they are, as torchmetrics calls a custom feature extractor."""

from __future__ import annotations

import hashlib
import io
import pickle
from dataclasses import dataclass, replace
from types import FunctionType, MethodType

import torch
from torch import nn

from fidtool.features.definition import Definition
from fidtool.features.device import Device
from fidtool.features.extractor import Extractor
from fidtool.features.models.user_networks import frozen
from fidtool.features.network import content_of, module_digest
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
        module = frozen(self.module)
        name = f"{type(self.module).__module__}.{type(self.module).__qualname__}"
        digest = module_digest(module)
        definition = Definition(name, digest, 0, self.feature_step, 0, "none", "none", DECODER, ddof=1)
        runner, as_it_is = Runner(module, device.torch_device), Preparation("bilinear")
        return _PlainExtractor(runner, {FEATURES: definition}, as_it_is, (0.0,), (1.0,), _one_thread(device))


class _PlainExtractor(Extractor):
    def on(self, device: Device) -> Extractor:
        return super().on(_one_thread(device))

    def inputs(self, images: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack(images)


class _Pickler(pickle.Pickler):
    """Pickles what `copy.deepcopy` shares between copies, functions and classes, by its identity."""

    def persistent_id(self, each: object) -> object:
        if isinstance(each, torch.Tensor):
            kind = type(each).__name__, str(each.dtype), str(each.device), tuple(each.shape), each.stride()
            return kind, hashlib.sha256(content_of(each)).digest()
        if isinstance(each, MethodType):
            return id(each.__func__), each.__self__
        return id(each) if isinstance(each, (FunctionType, type)) else None


def module_content(module: nn.Module) -> object:
    """Returns an object that equals that of another copy if the modules do: weights, attributes and hooks.

    If that cannot be told, it equals no other. It is valid as long as the module lives.
    """
    written = io.BytesIO()
    try:
        _Pickler(written).dump(module)
    except Exception:  # a custom module may raise anything
        return object()
    return hashlib.sha256(written.getvalue()).hexdigest()


def _one_thread(device: Device) -> Device:
    return replace(device, forward_threads=1)
