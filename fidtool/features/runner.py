"""How a network's module is run: in which precision, compiled or not, in batches of one shape or as they come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fidtool.features.compiled import Compiled
from fidtool.features.convolution import packs
from fidtool.features.graphs import Graphed

Run = Callable[[torch.Tensor], Any]
_HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Arithmetic:
    """Decisions that show in the digits of the features.

    Attributes:
        precision: see `fidtool.settings.Config`; TF32 is a matter of `fidtool.features.torch_state.repeatable`.
        compiled: through torch.compile.
        batch_size: images in a full batch, where that is known. Where shapes are compiled in or recorded, all batches
            have this one.
    """

    precision: str = "fp32"
    compiled: bool = False
    batch_size: int | None = None


class Runner:
    """A module on a device, ready for batches.

    In half precision Inception's weights and maps have 16 bits, sums within a layer 32, and so has the average over
    the last maps; another network runs under torch's autocast, which decides that layer by layer.

    Args:
        module: the network.
        device: where it runs; it is moved there.
        arithmetic: how.
        standard: it is Inception, all of whose layers are known to bear half precision, and to be recorded.

    Attributes:
        module: as given, for gradients: what `__call__` runs may be another.
    """

    def __init__(self, module: nn.Module, device: torch.device, arithmetic: Arithmetic, standard: bool = False) -> None:
        self._arithmetic, self._standard = arithmetic, standard
        half = _HALVES.get(arithmetic.precision)
        self.module = module.to(device, half if standard else None)
        run: Run = self.module
        if half is not None:
            run = _to_half(run, half) if standard else _autocast(run, device.type, half)
        if arithmetic.compiled:
            run = Compiled(run, device)
        size = arithmetic.batch_size
        recorded = standard and device.type == "cuda" and size is not None
        self._graphed = Graphed(run, device) if recorded else None
        run = self._graphed or run
        self._run = _of_one_shape(run, size) if size is not None and (recorded or arithmetic.compiled) else run

    def __call__(self, x: torch.Tensor) -> Any:
        """What the module gives for a batch, without gradients.

        Args:
            x: float32 tensor of shape (n, 3, height, width), channels-last, on the device.
        """
        with torch.inference_mode():
            return self._run(x)

    @property
    def unrecorded(self) -> str:
        """Why CUDA could not record the pass, as was seen on the first batch; empty if it could or was not asked to."""
        return self._graphed.failed if self._graphed is not None else ""

    def on(self, device: torch.device) -> Runner:
        """The same on another device; this object is of no use any more."""
        return Runner(self.module, device, self._arithmetic, self._standard)


def kernels(device: torch.device, arithmetic: Arithmetic, standard: bool) -> str:
    """Whose convolutions run, for the record: torch's, those that it compiles, or oneDNN's as Inception calls them."""
    if arithmetic.compiled:
        return "inductor"
    packed = standard and device.type == "cpu" and packs(_HALVES.get(arithmetic.precision, torch.float32))
    return "oneDNN, packed" if packed else "torch"


def _to_half(run: Run, dtype: torch.dtype) -> Run:
    return lambda x: run(x.to(dtype))


def _autocast(run: Run, kind: str, dtype: torch.dtype) -> Run:
    def lowered(x: torch.Tensor) -> Any:
        with torch.autocast(kind, dtype):
            return run(x)

    return lowered


def _of_one_shape(run: Run, size: int) -> Run:
    """Runs batches of exactly ``size`` images: smaller ones are filled up with zeros, larger ones cut."""

    def shaped(x: torch.Tensor) -> Any:
        outputs = [cut(run(filled), len(part)) for part in torch.split(x, size) for filled in [_filled(part, size)]]
        if len(outputs) == 1:
            return outputs[0]
        if isinstance(outputs[0], tuple):
            return tuple(torch.cat(parts) for parts in zip(*outputs, strict=True))
        return torch.cat(outputs)

    def cut(output: Any, count: int) -> Any:
        return tuple(part[:count] for part in output) if isinstance(output, tuple) else output[:count]

    return shaped


def _filled(x: torch.Tensor, size: int) -> torch.Tensor:
    if len(x) == size:
        return x
    whole = x.new_zeros(size, *x.shape[1:]).contiguous(memory_format=torch.channels_last)
    whole[: len(x)] = x
    return whole
