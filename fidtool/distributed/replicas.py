"""Comparison of a module's tensors between ranks: names, shapes, dtypes, bytes and the size of differences."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fidtool.distributed.world import World

if TYPE_CHECKING:
    import torch
    from torch import nn

_MOST_MEASURED = 5
"""Number of tensors whose differences are computed."""


def named_tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """A module's parameters and buffers by name, including those not in its state_dict."""
    return dict([*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)])


def tensor_hashes(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[str, str, str]]:
    """Shape, dtype and SHA-256 digest of the bytes of each tensor, by name."""
    import torch
    from torch.nn.parameter import is_lazy

    found = {}
    for name, tensor in tensors.items():
        shape, digest = ("not initialized", "") if is_lazy(tensor) else (str(list(tensor.shape)), "meta")
        if shape != "not initialized" and not tensor.is_meta:
            digest = hashlib.sha256(_plain(tensor).flatten().view(torch.uint8).numpy().data).hexdigest()
        found[name] = (shape, str(tensor.dtype).removeprefix("torch."), digest)
    return found


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` as a dense, contiguous, dequantised CPU tensor without autograd."""
    import torch

    values = tensor.detach()
    values = values.dequantize() if values.is_quantized else values
    values = values.to_dense() if values.layout != torch.strided else values
    return values.cpu().resolve_conj().resolve_neg().contiguous()


def combined_hash(hashes: Mapping[str, tuple[str, str, str]]) -> str:
    """One digest of all `tensor_hashes`, independent of their order."""
    return hashlib.sha256(repr(sorted(hashes.items())).encode()).hexdigest()


def find_differences(
    tensors: Mapping[str, torch.Tensor],
    hashes: Mapping[str, tuple[str, str, str]],
    world: World,
    ranks: Sequence[int] | None = None,
) -> list[str]:
    """Compares the tensors of all ranks with those of the first rank. A collective.

    Returns one phrase per difference, the same on every rank. ``ranks`` are the rank numbers in these; None numbers
    from 0.
    """
    every = world.gather(dict(hashes))
    numbers = range(len(every)) if ranks is None else ranks
    first = every[0]
    found: list[str] = []
    values: dict[str, list[int]] = {}
    for index, other in enumerate(every[1:], 1):
        rank = numbers[index]
        found += [f"{name} is missing on rank {rank}" for name in first if name not in other]
        found += [f"{name} is on rank {rank} but not on rank {numbers[0]}" for name in other if name not in first]
        for name in (name for name in first if name in other):
            for what, mine, theirs in zip(("shape", "dtype"), first[name], other[name], strict=False):
                if mine != theirs:
                    found.append(f"{name} has {what} {mine} on rank {numbers[0]} and {theirs} on rank {rank}")
            if first[name][:2] == other[name][:2] and first[name] != other[name]:
                values.setdefault(name, []).append(index)
    ordered = sorted(values, key=list(first).index)
    for name in ordered[:_MOST_MEASURED]:
        deltas = _deltas(tensors.get(name), values[name], world)
        parts = [f"by {delta} on rank {numbers[index]}" for index, delta in zip(values[name], deltas, strict=True)]
        found.append(f"{name} differs from rank {numbers[0]}'s {', '.join(parts)}")
    if len(ordered) > _MOST_MEASURED:
        found.append(f"{len(ordered) - _MOST_MEASURED} more tensors differ in value")
    return found


def _deltas(tensor: torch.Tensor | None, ranks: Sequence[int], world: World) -> list[str]:
    """The largest absolute difference of ``tensor`` on each of ``ranks`` from rank zero's. A collective.

    No rank may miss a collective, so exceptions are caught and become part of the result.
    """
    import torch

    mine: torch.Tensor | None = None
    answer = "an amount that cannot be computed"
    with contextlib.suppress(Exception):
        assert tensor is not None
        values = _plain(tensor)
        exact = torch.float64 if values.is_floating_point() else torch.int64
        mine = values.to(torch.complex128 if values.is_complex() else exact)
    reference = world.broadcast(mine)
    with contextlib.suppress(Exception):
        assert mine is not None
        assert reference is not None
        # Equal infinities differ by 0.
        largest = (mine - reference).abs().double().masked_fill(mine == reference, 0.0).max().item()
        answer = f"{largest:.3g}" if largest else "the sign of a zero"
    every = world.gather(answer)
    return [every[rank] for rank in ranks]
