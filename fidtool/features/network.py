"""A network with what it needs to be fed: what every ``--extractor`` but Inception becomes."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from operator import index

import torch
from torch import nn

from fidtool.errors import InputError
from fidtool.features.protocol import Preparation


def _floats(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(float(value) + 0.0 for value in values)  # + 0.0: no negative zero


@dataclass(frozen=True)
class Network:
    """A feature extractor of your own, as the factory behind ``--extractor FILE.py:FACTORY`` returns it.

    Attributes:
        module: maps a float32 tensor of shape (n, 3, input_size, input_size) to (n, D), (n, D, 1, 1) or (n, D, h, w);
            the last is averaged over h and w. On the CPU several threads call it at once: it must not keep state
            between calls.
        input_size: side of the square input in pixels.
        mean, std: per channel, of pixel values in 0..1: the network gets (value - mean) / std.
        feature_step: features are rounded to multiples of 2 ** -feature_step, and must stay below
            2 ** (23 - feature_step) in size: the 18 of Inception holds features up to 32.
        preparation: how images become squares of ``input_size``; None: as the protocol has it.

    Raises:
        InputError: a value of the wrong type or out of range.
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
        # The fingerprint spells these out: equal values must be of one type.
        for name, convert in (("input_size", index), ("feature_step", index), ("mean", _floats), ("std", _floats)):
            try:
                object.__setattr__(self, name, convert(getattr(self, name)))
            except (TypeError, ValueError):
                raise InputError(f"Network.{name} cannot be {getattr(self, name)!r}") from None
        if self.input_size < 1:
            raise InputError(f"Network.input_size must be at least 1 pixel, not {self.input_size}")
        if len(self.mean) != 3 or len(self.std) != 3 or not all(value > 0 for value in self.std):
            raise InputError("Network.mean and Network.std must have three values each, those of std above 0")
        if not all(map(math.isfinite, (*self.mean, *self.std))):
            raise InputError("Network.mean and Network.std must be finite")
        if not -100 <= self.feature_step <= 100:
            raise InputError(f"Network.feature_step must lie in -100..100, not {self.feature_step}")
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
                f"Network.input_size {self.input_size} cannot be cut from what is resized to {edge} pixels"
            )

    @property
    def normalization(self) -> str:
        """How the fingerprint spells the normalisation of pixel values in 0..1."""
        return f"(x/255-{list(self.mean)})/{list(self.std)}"


def channels_last(output: torch.Tensor) -> bool:
    """Whether a network's output for square images is a map of shape (n, h, w, D), by the two sides that are equal."""
    return output.ndim == 4 and output.shape[1] == output.shape[2] != output.shape[3] and output.shape[1] > 1


def module_digest(module: nn.Module) -> str:
    """SHA-256 over a module's parameters and buffers: names, shapes, dtypes and bytes, sorted by name."""
    sha = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        if not isinstance(tensor, torch.Tensor):
            continue
        sha.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        sha.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()
