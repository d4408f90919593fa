"""Comparison of a module's tensors between ranks: names, shapes, dtypes and bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fidtool.distributed.world import World

if TYPE_CHECKING:
    import torch
    from torch import nn

_MOST_NAMED = 5
"""Number of differences that are named."""


def named_tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """A module's parameters and buffers by name, including those not in its state_dict."""
    return dict([*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)])


def tensor_hashes(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[str, str, str]]:
    """Shape, dtype and SHA-256 digest of the bytes of each tensor, by name."""
    import torch
    from torch.nn.parameter import is_lazy

    found = {}
    for name, tensor in tensors.items():
        shape, digest = "not initialized" if is_lazy(tensor) else str(list(tensor.shape)), ""
        if not (is_lazy(tensor) or tensor.is_meta):
            values = tensor.detach()
            values = values.dequantize() if values.is_quantized else values
            values = values.to_dense() if values.layout != torch.strided else values
            values = values.cpu().resolve_conj().resolve_neg().contiguous().flatten()
            digest = hashlib.sha256(values.view(torch.uint8).numpy().data).hexdigest()
        found[name] = (shape, str(tensor.dtype).removeprefix("torch."), digest)
    return found


def combined_hash(hashes: Mapping[str, tuple[str, str, str]]) -> str:
    """One digest of all `tensor_hashes`, independent of their order."""
    return hashlib.sha256(repr(sorted(hashes.items())).encode()).hexdigest()


def find_differences(
    hashes: Mapping[str, tuple[str, str, str]], world: World, ranks: Sequence[int] | None = None
) -> list[str]:
    """Compares the tensors of all ranks with those of the first rank. A collective.

    Returns one phrase per difference, the same on every rank. ``ranks`` are the rank numbers in these; None numbers
    from 0.
    """
    every = world.gather(dict(hashes))
    numbers = range(len(every)) if ranks is None else ranks
    first = every[0]
    found: list[str] = []
    values: dict[str, list[str]] = {}
    for index, other in enumerate(every[1:], 1):
        rank = numbers[index]
        found += [f"{name} is missing on rank {rank}" for name in first if name not in other]
        found += [f"{name} is on rank {rank} but not on rank {numbers[0]}" for name in other if name not in first]
        for name in (name for name in first if name in other):
            for what, mine, theirs in zip(("shape", "dtype"), first[name], other[name], strict=False):
                if mine != theirs:
                    found.append(f"{name} has {what} {mine} on rank {numbers[0]} and {theirs} on rank {rank}")
            if first[name][:2] == other[name][:2] and first[name] != other[name]:
                values.setdefault(name, []).append(f"rank {rank}")
    ordered = sorted(values, key=list(first).index)
    found += [f"{name} differs from rank {numbers[0]}'s on {', '.join(values[name])}" for name in ordered]
    more = len(found) - _MOST_NAMED
    return found[:_MOST_NAMED] + [f"and {more} more"] * (more > 0)
