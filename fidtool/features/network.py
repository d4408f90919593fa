"""A network with the description of its input: the form of every ``--extractor`` except Inception."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import index
from typing import Any

import torch
from torch import nn

from fidtool.errors import InputError, ProgramError, RunError
from fidtool.features.device import Device, computing_on
from fidtool.features.resize import Preparation

_SIDE = 64
_REPEATS = 0.02
"""Largest accepted difference between the features of an image alone and in a batch, relative to their norm. In
bfloat16 they differ, because different kernels run."""


def _floats(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(float(value) + 0.0 for value in values)  # + 0.0: no negative zero


@dataclass(frozen=True)
class Network:
    """A custom feature extractor, as returned by the factory in ``--extractor FILE.py:NAME``.

    Attributes:
        module: maps a float32 tensor of shape (n, 3, input_size, input_size) to (n, D), (n, D, 1, 1) or (n, D, h, w);
            the last is averaged over h and w. On the CPU several threads call it at the same time, so it must not keep
            state between calls.
        input_size: side of the square input in pixels.
        mean, std: three values each, one per channel, for pixel values in 0..1: the input is (value - mean) / std.
        feature_step: features are rounded to multiples of 2 ** -feature_step. Their absolute values must stay below
            2 ** (23 - feature_step): 32 for the default, 18.
        preparation: how images are resized to ``input_size``; None uses the protocol's resize.

    Raises:
        InputError: if a value has the wrong type or is out of range.
    """

    module: nn.Module
    input_size: int
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    feature_step: int = 18
    preparation: Preparation | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.module, nn.Module):
            raise InputError(f"Network.module must be a torch.nn.Module, not {type(self.module).__name__}")
        # The fingerprint contains these values as text: equal values must have the same type.
        for name, convert in (("input_size", index), ("feature_step", index), ("mean", _floats), ("std", _floats)):
            try:
                object.__setattr__(self, name, convert(getattr(self, name)))
            except (TypeError, ValueError):
                raise InputError(f"Network.{name} cannot be {getattr(self, name)!r}") from None
        if self.input_size < 1:
            raise InputError(f"Network.input_size must be at least 1 pixel, not {self.input_size}")
        if len(self.mean) != 3 or len(self.std) != 3 or not all(value > 0 for value in self.std):
            raise InputError("Network.mean and Network.std must have three values each, and std must be positive")
        if not all(map(math.isfinite, (*self.mean, *self.std))):
            raise InputError("Network.mean and Network.std must be finite")
        if not -100 <= self.feature_step <= 100:
            raise InputError(f"Network.feature_step must be in -100..100, not {self.feature_step}")
        self._check_preparation()

    def _check_preparation(self) -> None:
        if self.preparation is None:
            return
        if not isinstance(self.preparation, Preparation):
            kind = type(self.preparation).__name__
            raise InputError(f"Network.preparation must be a fidtool.Preparation, not {kind}")
        edge = self.preparation.edge
        if edge is not None and edge < self.input_size:
            raise InputError(
                f"Network.input_size {self.input_size} cannot be cropped from images resized to {edge} pixels"
            )

    @property
    def normalization(self) -> str:
        """The normalisation as the fingerprint spells it."""
        return f"(x/255-{list(self.mean)})/{list(self.std)}"


class _TorchScript(nn.Module):
    """Runs every pass like the first one.

    TorchScript profiles the first passes and then optimises the program, which changes the features' last bits.
    """

    def __init__(self, script: nn.Module) -> None:
        super().__init__()
        self.script = script

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        jit: Any = torch.jit
        with jit.optimized_execution(False):  # applies to this thread only
            output: torch.Tensor = self.script(x)
        return output


def frozen(module: nn.Module) -> nn.Module:
    """Puts a module into evaluation mode without gradients, and returns what is to be run."""
    for parameter in module.eval().parameters():  # a ScriptModule has no requires_grad_
        parameter.requires_grad_(False)
    return _TorchScript(module) if isinstance(module, torch.jit.ScriptModule) else module


def channels_last(output: torch.Tensor) -> bool:
    """Whether a network's output for square images seems to have shape (n, h, w, D), with h equal to w."""
    return output.ndim == 4 and output.shape[1] == output.shape[2] != output.shape[3] and output.shape[1] > 1


def module_digest(module: nn.Module) -> str:
    """Return the SHA-256 over a module's parameters and buffers: names, shapes, dtypes and bytes, sorted by name."""
    sha = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        if not isinstance(tensor, torch.Tensor):
            continue
        sha.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        sha.update(content_of(tensor))
    return sha.hexdigest()


def content_of(tensor: torch.Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def fixed_batch(count: int, device: torch.device) -> list[torch.Tensor]:
    """Return ``count`` different images of noise, uint8 of shape (64, 64, 3), with the same values on every device."""
    values = torch.arange(count * _SIDE * _SIDE * 3, dtype=torch.int64, device="cpu")
    # A multiplicative hash of the position, because torch's random numbers are the program's.
    pixels = values.mul_(2654435761).bitwise_right_shift_(16).bitwise_and_(255).to(torch.uint8)
    return list(pixels.view(count, _SIDE, _SIDE, 3).to(device))


def output_dims(network: Network, device: Device) -> int:
    """Run one black image through the network and return the length of its feature vector."""
    size = network.input_size
    black = torch.zeros(1, 3, size, size, dtype=torch.float32, device=device.torch_device)
    with torch.inference_mode(), computing_on(device.torch_device):
        try:
            output = network.module.to(device.torch_device)(black)
        except (Exception, SystemExit) as error:
            message = " ".join(str(error).split())[:300]
            raise ProgramError(
                f"the network fails on a 1x3x{size}x{size} input: {type(error).__name__}: {message}"
            ) from error
    if not isinstance(output, torch.Tensor) or output.ndim not in (2, 4) or len(output) != 1:
        shape = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
        raise RunError(f"the network returned {shape} for one image; it should return (1, D) or (1, D, h, w)")
    if channels_last(output):
        raise RunError(
            f"the network returned {tuple(output.shape)} for one image, apparently with the channels last; it should "
            "return (1, D) or (1, D, h, w)"
        )
    return int(output.shape[1])


def check_repeatable(features: Callable[[list[torch.Tensor]], torch.Tensor], name: str, device: Device) -> None:
    """Refuse a network whose features of an image are random or depend on the other images in the batch."""
    first, second = fixed_batch(2, device.torch_device)
    with computing_on(device.torch_device):
        # The neighbour is darker, because batch norm in training mode treats batches of the same noise almost alike.
        together, alone = (features(images)[0].cpu().double() for images in ([first, second // 4], [first]))
    if not (together.isfinite().all() and alone.isfinite().all()):
        return  # reported for the first batch of images
    if (together - alone).norm() > _REPEATS * torch.maximum(together.norm(), alone.norm()):
        raise RunError(
            f"{name} returns different features for the same image in another batch or at another time, for example "
            "because of dropout or batch norm in training mode: call model.eval() before exporting or tracing a program"
        )
