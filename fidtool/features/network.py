"""People's own networks: what a factory returns, and how ``path/to/file.py:factory`` is loaded."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import index
from pathlib import Path

import torch
from torch import nn

from fidtool.errors import InputError


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
    """

    module: nn.Module
    input_size: int
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    feature_step: int = 18

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

    @property
    def normalization(self) -> str:
        """How the fingerprint spells the normalisation of pixel values in 0..1."""
        return f"(x/255-{list(self.mean)})/{list(self.std)}"


def load_network(spec: str) -> tuple[Network, str]:
    """Runs the factory that ``spec`` names.

    This runs the file's code with the caller's rights.

    Args:
        spec: ``path/to/file.py:factory``; the factory takes no arguments and returns a `Network`.

    Returns:
        The network, in evaluation mode, and its name for the fingerprint: file name, factory, and the start of the
        file's SHA-256.

    Raises:
        InputError: no such file or factory, or a factory that returns something else or fails.
    """
    path_text, _, factory_name = spec.rpartition(":")
    path = Path(path_text)
    if path.suffix != ".py" or not factory_name:
        raise InputError(f"unknown extractor {spec!r}; use inception, or path/to/file.py:factory for your own network")
    if not path.is_file():
        raise InputError(f"no file {path} (from --extractor {spec})")
    module_name = f"fidtool_extractor_{path.stem}"
    module_spec = importlib.util.spec_from_file_location(module_name, path)
    if module_spec is None or module_spec.loader is None:
        raise InputError(f"{path} cannot be loaded as a Python module (from --extractor {spec})")
    module = importlib.util.module_from_spec(module_spec)
    # Registered before it runs, as an import would: dataclasses and pickling look modules up by name.
    sys.modules[module_name] = module
    # Its neighbours can be imported, as from a script; last in line, so that they hide nothing.
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        with _plain_defaults():
            module_spec.loader.exec_module(module)
            network = getattr(module, factory_name)()
    except (Exception, SystemExit) as error:
        raise InputError(
            f"--extractor {spec} failed: {type(error).__name__}: {' '.join(str(error).split())}"
        ) from error
    if not isinstance(network, Network):
        raise InputError(f"--extractor {spec} returned {type(network).__name__}; it must return a fidtool.Network")
    network.module.eval()
    source_digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return network, f"{path.name}:{factory_name}@{source_digest[:12]}"


@contextlib.contextmanager
def _plain_defaults() -> Iterator[None]:
    """Of a program that computes in bfloat16, say, the network should know nothing."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device("cpu"):
            yield
    finally:
        torch.set_default_dtype(before)


def module_digest(module: nn.Module) -> str:
    """SHA-256 over a module's parameters and buffers: names, shapes, dtypes and bytes, sorted by name."""
    sha = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        if not isinstance(tensor, torch.Tensor):
            continue
        sha.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        sha.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()
