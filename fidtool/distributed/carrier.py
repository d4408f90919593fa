"""Three collectives on a process group, or on a bare gloo one that torch has no record of.

torch's functions take registered groups alone, and the register must be the same on every rank: a group that some ranks
make among themselves would change the names, and so the meeting points, of every group that is made later.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch._C._distributed_c10d import Store


def bare_gloo(store: Store, rank: int, size: int, seconds: float) -> Any:
    """A gloo group of the ranks that meet under the keys of ``store``. A collective, of these ranks only.

    Raises:
        RuntimeError: not all came within ``seconds``.
    """
    from torch._C._distributed_c10d import ProcessGroupGloo

    return ProcessGroupGloo(store, rank, size, timeout=timedelta(seconds=seconds))


def all_gather(group: Any, boxes: list[torch.Tensor], mine: torch.Tensor) -> None:
    """Every rank's ``mine`` into every rank's ``boxes``; None is torch's default group."""
    _given(group).allgather([boxes], [mine]).wait()


def all_reduce(group: Any, tensor: torch.Tensor) -> None:
    """The sum of every rank's ``tensor``, in place."""
    _given(group).allreduce([tensor]).wait()


def broadcast(group: Any, tensor: torch.Tensor) -> None:
    """The first rank's ``tensor`` into every other's, in place."""
    from torch._C._distributed_c10d import BroadcastOptions

    options = BroadcastOptions()
    options.rootRank = options.rootTensor = 0
    _given(group).broadcast([tensor], options).wait()


def _given(group: Any) -> Any:
    import torch.distributed as dist

    return dist.group.WORLD if group is None else group
