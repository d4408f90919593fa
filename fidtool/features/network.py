"""A network with what it needs to be fed: what every ``--extractor`` but Inception becomes."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import index

import torch
from torch import nn

from fidtool.errors import InputError, RunError
from fidtool.features.device import Device
from fidtool.features.preparation import Preparation

_SIDE = 64
_REPEATS = 0.02
"""Features of one picture, alone and in a batch, may differ by so much of their length: in bfloat16, kernels do."""


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


def fixed_batch(count: int, device: torch.device) -> list[torch.Tensor]:
    """The same noise wherever integers are: uint8 tensors of shape (64, 64, 3), every one another."""
    values = torch.arange(count * _SIDE * _SIDE * 3, dtype=torch.int64, device="cpu")
    # A multiplicative hash of the position.
    pixels = ((values * 2654435761) >> 16).bitwise_and(255).to(torch.uint8)
    return list(pixels.view(count, _SIDE, _SIDE, 3).to(device))


def output_dims(network: Network, device: Device) -> int:
    """Runs one black image through the network to see how long its feature vectors are.

    Raises:
        RunError: the network fails, or gives another shape than `Network` allows.
    """
    size = network.input_size
    black = torch.zeros(1, 3, size, size, dtype=torch.float32, device=device.torch_device)
    with torch.inference_mode():
        try:
            output = network.module.to(device.torch_device)(black)
        except (Exception, SystemExit) as error:
            message = " ".join(str(error).split())[:300]
            raise RunError(
                f"the network fails on a 1x3x{size}x{size} input: {type(error).__name__}: {message}"
            ) from error
    if not isinstance(output, torch.Tensor) or output.ndim not in (2, 4) or len(output) != 1:
        shape = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
        raise RunError(f"the network returned {shape} for one image; it should return (1, D) or (1, D, h, w)")
    if channels_last(output):
        raise RunError(
            f"the network returned {tuple(output.shape)} for one image, its channels last as it seems; it should "
            "return (1, D) or (1, D, h, w)"
        )
    return int(output.shape[1])


def check_repeatable(features: Callable[[list[torch.Tensor]], torch.Tensor], name: str, device: Device) -> None:
    """Refuses a network whose features of a picture depend on chance, or on the other pictures of its batch.

    Args:
        features: of a batch of images.
        name: the network's, for the message.
        device: where it runs.

    Raises:
        RunError: it is one.
    """
    first, second = fixed_batch(2, device.torch_device)
    # A darker neighbour: to batch norm in training mode, batches of the same noise would be much alike.
    together, alone = (features(images)[0].cpu().double() for images in ([first, second // 4], [first]))
    if not (together.isfinite().all() and alone.isfinite().all()):
        return  # said with the first batch of images
    if (together - alone).norm() > _REPEATS * torch.maximum(together.norm(), alone.norm()):
        raise RunError(
            f"{name} gives other features for the same picture in another batch or at another time, so its numbers "
            "would depend on more than the images: dropout or batch norm in training mode does so, and a program has "
            "to be exported or traced after model.eval()"
        )
