"""Three collectives on a process group, or on a bare gloo one that torch has no record of.

torch's functions take registered groups alone, and the register must be the same on every rank: a group that some ranks
make among themselves would change the names, and so the meeting points, of every group that is made later.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch._C._distributed_c10d import Store

_LOOK_SECONDS = 0.5
"""How often a rank that waits in a collective of gloo's looks whether to give it up."""


def bare_gloo(store: Store, rank: int, size: int, seconds: float) -> Any:
    """A gloo group of the ranks that meet under the keys of ``store``. A collective, of these ranks only.

    Raises:
        RuntimeError: not all came within ``seconds``.
    """
    from torch._C._distributed_c10d import ProcessGroupGloo

    return ProcessGroupGloo(store, rank, size, timeout=timedelta(seconds=seconds))


def all_gather(group: Any, boxes: list[torch.Tensor], mine: torch.Tensor, hopeless: Callable[[], bool]) -> None:
    """Every rank's ``mine`` into every rank's ``boxes``; None is torch's default group."""
    _finish(_given(group), _given(group).allgather([boxes], [mine]), mine, hopeless)


def all_reduce(group: Any, tensor: torch.Tensor, hopeless: Callable[[], bool]) -> None:
    """The sum of every rank's ``tensor``, in place."""
    _finish(_given(group), _given(group).allreduce([tensor]), tensor, hopeless)


def broadcast(group: Any, tensor: torch.Tensor, hopeless: Callable[[], bool]) -> None:
    """The first rank's ``tensor`` into every other's, in place."""
    from torch._C._distributed_c10d import BroadcastOptions

    options = BroadcastOptions()
    options.rootRank = options.rootTensor = 0
    _finish(_given(group), _given(group).broadcast([tensor], options), tensor, hopeless)


def _finish(group: Any, work: Any, tensor: torch.Tensor, hopeless: Callable[[], bool]) -> None:
    """Waits for a collective, as long as it is not ``hopeless``.

    gloo does not always hear of a rank that is lost. Nor does it tell every waiter when it does: a send that finds the
    connection broken is queued, and the queue forgotten when the connection is closed a moment later (gloo's
    `Pair::signalException` looks at posted operations alone). What is given up waits on in a thread of gloo's, which
    the group's destructor would join: neither is ever to be destroyed.
    """
    while tensor.device.type == "cpu" and not work.is_completed():
        with contextlib.suppress(RuntimeError):  # the time is over; or the collective has failed, and raises it below
            work.wait(timedelta(seconds=_LOOK_SECONDS))
        if hopeless() and not work.is_completed():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object((group, work)))
            raise RuntimeError("gloo waited on for a rank that is lost")
    work.wait()


def _given(group: Any) -> Any:
    import torch.distributed as dist

    return dist.group.WORLD if group is None else group
