"""Losses with parameters of their own: wrapped in DDP, on their device, and in an optimizer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from fidtool.errors import InputError
from fidtool.training.group import Group, never_told

_NAMED = 5


def wrap_trainable(
    loss: nn.Module, device_ids: Sequence[int | torch.device] | None = None, group: Group = None
) -> nn.Module:
    """Wraps a loss in DistributedDataParallel exactly when it has something to train.

    The weights of ArcFace, CosFace or a projection head are parameters like the model's: unwrapped, every rank trains
    a copy of its own, and they drift apart.

    Args:
        loss: on its device already.
        device_ids: as DistributedDataParallel takes them: the GPU of this rank; None on the CPU.
        group: process group; None is all ranks.

    Returns:
        The loss itself, where nothing in it is trainable, it is wrapped already, or there is no process group.

    Raises:
        fidtool.InputError: a parameter is not on the device yet, or the launcher announced ranks but there is no
            process group.
    """
    trainable = [(name, parameter) for name, parameter in loss.named_parameters() if parameter.requires_grad]
    if not trainable or isinstance(loss, DistributedDataParallel):
        return loss
    kind = type(loss).__name__
    if size := never_told():
        raise InputError(
            f"{kind} has parameters and the launcher started {size} processes: call "
            "torch.distributed.init_process_group before wrap_trainable, or their copies will drift apart"
        )
    for name, parameter in [*loss.named_parameters(), *loss.named_buffers()]:
        _check_device(kind, name, parameter, device_ids, group)
    if not (dist.is_available() and dist.is_initialized()):
        return loss
    return DistributedDataParallel(
        loss, device_ids=None if device_ids is None else list(device_ids), process_group=group
    )


def _check_device(
    kind: str, name: str, tensor: torch.Tensor, device_ids: Sequence[int | torch.device] | None, group: Group
) -> None:
    """Refuses a tensor that is elsewhere than DDP will look for it."""
    where = tensor.device
    if is_lazy(tensor):
        raise InputError(f"{name} of {kind} has no shape yet: call the loss once before it is wrapped")
    if where.type == "meta":
        raise InputError(
            f"{name} of {kind} has no values yet (it is on the meta device): initialize it before it is wrapped"
        )
    if device_ids is not None:
        wanted = torch.device("cuda", device_ids[0]) if isinstance(device_ids[0], int) else torch.device(device_ids[0])
        if where != wanted:
            raise InputError(
                f"{name} of {kind} is on {where} and device_ids say {wanted}: call loss.to('{wanted}') first"
            )
    elif where.type == "cpu" and dist.is_available() and dist.is_initialized():
        backends = str(dist.get_backend_config(group or dist.group.WORLD))
        if "cpu:" not in backends:
            raise InputError(
                f"{name} of {kind} is on the CPU, which the process group ({backends}) cannot serve: move the "
                "loss to this rank's GPU first and pass device_ids=[that GPU]"
            )


def assert_optimized(loss: nn.Module, optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer]) -> None:
    """Checks that every trainable parameter of a loss is in a group of an optimizer.

    Args:
        loss: a module, wrapped or not.
        optimizer: the optimizer, or all of them.

    Raises:
        fidtool.InputError: it names the parameters that no group holds.
    """
    optimizers = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer)
    held = {id(parameter) for each in optimizers for group in each.param_groups for parameter in group["params"]}
    missing = [
        name for name, parameter in loss.named_parameters() if parameter.requires_grad and id(parameter) not in held
    ]
    if missing:
        named = ", ".join(missing[:_NAMED]) + (f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else "")
        raise InputError(
            f"no optimizer trains {named} of {type(loss).__name__}: pass loss.parameters() to the optimizer too, after "
            "the loss was moved to its device"
        )


def in_ddp(module: nn.Module) -> bool:
    """Whether ``module`` is being called by a DistributedDataParallel that averages its gradients."""
    active = getattr(DistributedDataParallel, "_active_ddp_module", None)
    if active is None:
        return False
    averaged = {id(parameter) for parameter in active.module.parameters()}
    return all(id(parameter) in averaged for parameter in module.parameters() if parameter.requires_grad)
