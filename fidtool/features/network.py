"""Networks other than Inception: what one is, and how it is made ready to run."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import index
from typing import Any

import torch
from torch import Tensor, nn

from fidtool.errors import InputError
from fidtool.features.choice import NetworkChoice, check_network_name
from fidtool.features.protocol import FEATURE_STEPS, OWN_PROTOCOLS
from fidtool.features.resize import Preparation


def _floats(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(float(value) + 0.0 for value in values)  # + 0.0: no negative zero


def own_preparation(choice: NetworkChoice) -> Preparation:
    """Return how a published network with protocols of its own prepares images."""
    own = next(own for own in OWN_PROTOCOLS[choice.family] if choice.protocol in (None, own.name))
    return Preparation(own.resize, own.framing)


@dataclass(frozen=True)
class Network:
    """A custom feature extractor, as returned by the factory in ``--extractor FILE.py:NAME``.

    Attributes:
        module: maps a float32 tensor of shape (n, 3, input_size, input_size) to an output of shape
            (n, D), (n, D, 1, 1) or (n, D, h, w), which is averaged over h and w. On the CPU,
            several threads call the module at the same time, so it must not keep state between
            calls.
        input_size: side of the square input in pixels.
        mean, std: one value per channel, for pixel values in 0..1: the input is (value - mean) /
            std.
        feature_step: features are rounded to multiples of 2 ** -feature_step. Their absolute values
            must stay below 2 ** (23 - feature_step), which is 32 for a step of 18. None chooses a
            step that suits the features of the first images of REAL, see
            `fidtool.statistics.moments.choose_step`; in the metrics for training, None is 18.
        preparation: how images are resized to ``input_size``; None uses the protocol's resize.
        name: name of the network in results, as in ``FD (name)`` and ``fd_name``. It consists of
            letters, digits, spaces and ``_ . + -``. If it is empty, the name is that of the
            module's class, or the value of ``--extractor``.

    Raises:
        InputError: if a value has the wrong type or is out of range, or if the name has other
            characters or belongs to a published network.
    """

    module: nn.Module
    input_size: int
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    feature_step: int | None = None
    preparation: Preparation | None = None
    name: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.module, nn.Module):
            raise InputError(
                f"Network.module must be a torch.nn.Module, not {type(self.module).__name__}"
            )
        # The fingerprint contains these values as text: equal values must have the same type.
        for name, convert in (
            ("input_size", index),
            ("feature_step", lambda step: None if step is None else index(step)),
            ("mean", _floats),
            ("std", _floats),
        ):
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, convert(value))
            except (TypeError, ValueError):
                raise InputError(f"Network.{name} cannot be {value!r}") from None
        check_network_name(self.name)
        if self.input_size < 1:
            raise InputError(f"Network.input_size must be at least 1 pixel, not {self.input_size}")
        finite = all(map(math.isfinite, (*self.mean, *self.std)))
        if not (finite and len(self.mean) == len(self.std) == 3 and min(self.std) > 0):
            raise InputError(
                "Network.mean and Network.std must have three finite values each, and std must "
                "be positive"
            )
        smallest, largest = FEATURE_STEPS
        if not smallest <= (self.feature_step or 0) <= largest:
            raise InputError(f"Network.feature_step must be in -100..100, not {self.feature_step}")
        if self.preparation is None:
            return
        if not isinstance(self.preparation, Preparation):
            kind = type(self.preparation).__name__
            raise InputError(f"Network.preparation must be a fidtool.Preparation, not {kind}")
        edge = self.preparation.edge
        if edge is not None and edge < self.input_size:
            raise InputError(
                f"Network.input_size {self.input_size} cannot be cropped from images resized to "
                f"{edge} pixels"
            )

    @property
    def normalization(self) -> str:
        """The normalisation as the fingerprint spells it."""
        return f"(x/255-{list(self.mean)})/{list(self.std)}"


class _TorchScript(nn.Module):
    """Runs every pass like the first one.

    TorchScript profiles the first passes and then optimises the program, which changes the
    features' last bits.
    """

    def __init__(self, script: nn.Module) -> None:
        super().__init__()
        self.script = script

    def forward(self, x: Tensor) -> Tensor:
        jit: Any = torch.jit
        with jit.optimized_execution(False):  # applies to this thread only
            output: Tensor = self.script(x)
        return output


def freeze(module: nn.Module) -> nn.Module:
    """Put a module into evaluation mode without gradients, and return what is to be run."""
    for parameter in module.eval().parameters():  # a ScriptModule has no requires_grad_
        parameter.requires_grad_(False)
    return _TorchScript(module) if isinstance(module, torch.jit.ScriptModule) else module


@dataclass(eq=False)
class _SavedTensor:
    """A parameter or a buffer of a module, its values, and those of its gradient, if it has one."""

    owner: nn.Module
    name: str
    tensor: Tensor

    def __post_init__(self) -> None:
        self.values = self.tensor.data
        self.needs_grad = self.tensor.requires_grad
        self.gradient = None if self.tensor.grad is None else self.tensor.grad.data

    def restore(self) -> None:
        # Moving a module replaces its buffers, but only the values of its parameters.
        if getattr(self.owner, self.name) is not self.tensor:
            setattr(self.owner, self.name, self.tensor)
        # Tensors made in inference mode take no assignment outside it.
        with torch.inference_mode(self.tensor.is_inference()):
            self.tensor.data = self.values
            if self.tensor.requires_grad != self.needs_grad:
                self.tensor.requires_grad_(self.needs_grad)
        gradient = self.tensor.grad
        if gradient is not None and self.gradient is not None:
            gradient.data = self.gradient


@contextlib.contextmanager
def preserve(module: nn.Module) -> Iterator[None]:
    """Context manager after which a program's own module is as before: its modes, its device, and
    which of its parameters need gradients.
    """
    modes = [(child, child.training) for child in module.modules()]
    tensors = [
        _SavedTensor(child, name, tensor)
        for child in module.modules()
        for name, tensor in (
            *child.named_parameters(recurse=False),
            *child.named_buffers(recurse=False),
        )
    ]
    try:
        yield
    finally:
        for child, mode in modes:
            child.training = mode
        for saved in tensors:
            saved.restore()
