"""Checks for training programs: replicas of a module are equal, every parameter is trained, images are not repeated."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fidtool.distributed.rendezvous import listed_ranks
from fidtool.distributed.world import combined_hash, find_differences, named_tensors, tensor_hashes
from fidtool.errors import InputError, RunError, on_every_rank
from fidtool.training.group import DEFAULT_TIMEOUT, Group, launched_without_group, ranks_of, warn_without_group

_PURPOSE = "assert_in_sync()"
_AT_ONCE = 1 << 20
"""Number of bytes that are hashed at once."""
_GOLDEN = -7046029254386353131  # 2 ** 64 over the golden ratio, as a signed integer
_MIX1, _MIX2 = -4658895280553007687, -7723592293110705685


class OutOfSyncError(RunError):
    """The ranks' parameters or buffers differ."""


def assert_in_sync(module: nn.Module, group: Group = None, *, timeout: float = DEFAULT_TIMEOUT) -> None:
    """Checks that every rank has bit-identical parameters and buffers. A collective.

    Compares names, shapes, dtypes and hashes of the values; values are only sent if these differ. The ranks may have
    different sets of parameters.

    Args:
        module: a module on any device.
        group: process group; None is all ranks. Does nothing if the program has no process group.
        timeout: seconds to wait for the other ranks.

    Raises:
        fidtool.training.OutOfSyncError: on every rank, if they differ; the message has the names and the ranks.
        fidtool.training.AbsentRanksError: if some ranks did not call it in time.
    """
    ranks = ranks_of(group)
    if ranks.size == 1:
        warn_without_group(_PURPOSE)
        return
    hashes = tensor_hashes(named_tensors(module))
    payloads = ranks.exchange(_PURPOSE, {"all": combined_hash(hashes)}, timeout, "every rank must call it")
    if all(payload == payloads[0] for payload in payloads):
        return
    with ranks.world(_PURPOSE) as world:
        differences = find_differences(hashes, world, ranks.ranks)
    if differences:
        problem = f"the ranks' replicas of {type(module).__name__} differ: {'; '.join(differences)}"
        raise on_every_rank(OutOfSyncError(problem))


def wrap_trainable(
    loss: nn.Module, device_ids: Sequence[int | torch.device] | None = None, group: Group = None
) -> nn.Module:
    """Wraps a loss in DistributedDataParallel if it has trainable parameters.

    The weights of ArcFace, CosFace or a projection head must be synchronised like the model's: if the loss is not
    wrapped, each rank trains its own replica, and the replicas diverge.

    Args:
        loss: a loss module, already on its device.
        device_ids: this rank's GPU, as passed to DistributedDataParallel; None on the CPU.
        group: process group; None is all ranks.

    Returns:
        The wrapped loss. The loss itself if it has no trainable parameters or is already wrapped, or if there is no
        process group.

    Raises:
        fidtool.InputError: if the launcher started several processes and there is no process group.
    """
    trainable = any(parameter.requires_grad for parameter in loss.parameters())
    if not trainable or isinstance(loss, DistributedDataParallel):
        return loss
    if size := launched_without_group():
        raise InputError(
            f"{type(loss).__name__} has parameters and the launcher started {size} processes:",
            "call torch.distributed.init_process_group before wrap_trainable, or their replicas will diverge",
        )
    if not (dist.is_available() and dist.is_initialized()):
        return loss
    return DistributedDataParallel(
        loss, device_ids=None if device_ids is None else list(device_ids), process_group=group
    )


def assert_optimized(loss: nn.Module, optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer]) -> None:
    """Checks that every trainable parameter of a loss is in a parameter group of an optimizer.

    Args:
        loss: a module, wrapped in DistributedDataParallel or not.
        optimizer: one optimizer, or a sequence of them.

    Raises:
        fidtool.InputError: if some parameters are in no group; the message names them.
    """
    optimizers = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer)
    held = {id(parameter) for each in optimizers for group in each.param_groups for parameter in group["params"]}
    missing = [
        name for name, parameter in loss.named_parameters() if parameter.requires_grad and id(parameter) not in held
    ]
    if missing:
        raise InputError(
            f"no optimizer trains {', '.join(missing)} of {type(loss).__name__}:",
            "move the loss to its device and then pass loss.parameters() to the optimizer too",
        )


def image_hashes(images: torch.Tensor) -> torch.Tensor:
    """A 64-bit hash of each image (shape (n, channels, height, width)): int64 of shape (n,) on the CPU.

    The sum of the bytes times position-dependent weights, modulo 2 ** 64: the same on any device.
    """
    flat = images.flatten(1).contiguous().view(torch.uint8)
    weights = _weights(flat.shape[1], flat.device)
    size = sum(65537**place * side for place, side in enumerate(images.shape[1:3]))
    # A batch of photos as int64 would take gigabytes.
    parts = torch.split(flat, max(1, _AT_ONCE // max(1, flat.shape[1])))
    return torch.cat([(part.to(torch.int64) * weights).sum(1) + size for part in parts]).cpu()


@lru_cache(maxsize=4)
def _weights(count: int, device: torch.device) -> torch.Tensor:
    """Pseudo-random odd numbers from the mixing function of SplitMix64 (Steele, Lea and Flood 2014)."""
    with torch.inference_mode(False):
        values = torch.arange(1, count + 1, dtype=torch.int64, device=device) * _GOLDEN
        for bits, factor in ((30, _MIX1), (27, _MIX2), (31, 1)):
            values = (values ^ (values >> bits) & ((1 << (64 - bits)) - 1)) * factor  # a logical shift
        return values | 1


def shared_images_warning(hashes: Sequence[NDArray[np.int64]], ranks: Sequence[int]) -> str:
    """A warning about images that several ranks generated, from the `image_hashes` of each; empty if there are none."""
    images, owners = np.unique(np.concatenate([np.unique(own) for own in hashes]), return_counts=True)
    shared = [int(np.isin(own, images[owners > 1]).sum()) for own in hashes]
    if not any(shared):
        return ""
    on = [rank for rank, number in zip(ranks, shared, strict=True) if number]
    return (
        f"{sum(shared)} of {sum(map(len, hashes))} generated images are on more than one rank ({listed_ranks(on)}): "
        "the value is computed from fewer distinct images than it appears. If all ranks sample with the same seed, "
        "seed sample i with fidtool.sample_seed(seed, i), where i counts the samples of all ranks; otherwise the "
        "generator produces few distinct images"
    )
