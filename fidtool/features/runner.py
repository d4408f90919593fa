"""How a network's module is run: its device and its precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fidtool.features.device import computing_on
from fidtool.features.models.inception import packs

Run = Callable[[torch.Tensor], Any]
_HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Runner:
    """Runs a module on batches.

    In half precision, Inception's weights and activations have 16 bits; sums within a layer and the final global
    average have 32 bits. Other networks run under torch's autocast, which selects the precision layer by layer.

    Args:
        precision: see `fidtool.settings.Settings`. TF32 is switched on by `fidtool.features.device.repeatable`.
        standard: whether it is Inception, all of whose layers support half precision.
    """

    def __init__(
        self, module: nn.Module, device: torch.device, precision: str = "fp32", standard: bool = False
    ) -> None:
        self._device, self._precision, self._standard = device, precision, standard
        half = _HALVES.get(precision)
        self.module = module.to(device, half if standard else None)
        self._run: Run = self.module
        if half is not None:
            self._run = _to_half(self._run, half) if standard else _autocast(self._run, device.type, half)

    def __call__(self, x: torch.Tensor) -> Any:
        """Return the module's output without gradients for a batch on the device: float32, channels-last."""
        with torch.inference_mode(), computing_on(self._device):
            return self._run(x)

    def on(self, device: torch.device) -> Runner:
        """Move the module to another device and return its new runner. This object must not be used afterwards."""
        return Runner(self.module, device, self._precision, self._standard)


def kernels(device: torch.device, precision: str, standard: bool) -> str:
    """Return which convolution kernels run, for the record: ``torch`` or ``oneDNN, packed``."""
    packed = standard and device.type == "cpu" and packs(_HALVES.get(precision, torch.float32))
    return "oneDNN, packed" if packed else "torch"


def _to_half(run: Run, dtype: torch.dtype) -> Run:
    return lambda x: run(x.to(dtype))


def _autocast(run: Run, kind: str, dtype: torch.dtype) -> Run:
    def lowered(x: torch.Tensor) -> Any:
        with torch.autocast(kind, dtype):
            return run(x)

    return lowered
