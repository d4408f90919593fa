"""Everything that fidtool uses of torch and torch does not document.

Used and checked with torch 2.13 (CPU), 2.14 and 2.15, by the unit tests with 2.4. Where a later torch no longer has it:

===========================  =====================================================================
``default_store``            None: a user's process group is used without a watchdog, and only its
                             collectives' own time-out ends a wait; `fidtool.training` refuses it.
``new_gloo_group``           `fidtool.training` raises; nothing else uses it.
``pack_convolution_weight``  `fidtool.features.models.inception` tries both on a small example first,
``packed_convolution``       and otherwise calls torch's own convolution, which is slower.
``compiler_settings``        ``--compile`` reports that torch cannot compile the network.
``worker_processes``         empty: a decoding process that freezes while it delivers is not ended.
``end_workers``              nothing: torch ends decoding processes when their iterator is collected.
``averaged_module``          None: a loss with parameters warns that it is not in DDP, even if it is.
``without_tensors``          the state's versions are lost, which few of torchvision's models look at.
===========================  =====================================================================

The collectives of `fidtool.distributed.world` are methods of ``torch.distributed.ProcessGroup`` and its backends, which
is the interface that torch documents for backends of one's own.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

COMPILERS = ("torch._dynamo", "torch._inductor")
"""Modules of torch.compile: their exceptions say that nothing was compiled, their loggers talk a lot."""


def default_store() -> dist.Store | None:
    """The store of the process group that the program has made; None if torch does not tell."""
    find = getattr(dist.distributed_c10d, "_get_default_store", None)
    store: dist.Store | None = None if find is None else find()
    return store


def new_gloo_group(store: dist.Store, rank: int, size: int, seconds: float) -> Any:
    """A gloo group of the ranks that meet under the keys of ``store``. A collective of these ranks only.

    torch has no record of it. `torch.distributed.new_group` keeps a list of groups that must be the same on every rank:
    one that some ranks make among themselves would change the names, and so the keys, of every later group.

    Args:
        store: for this group alone.
        rank, size: this rank's place in the group.
        seconds: time-out of the meeting and of each collective.

    Raises:
        RuntimeError: not all ranks came within ``seconds``.
    """
    return dist.ProcessGroupGloo(store, rank, size, timeout=timedelta(seconds=seconds))


def pack_convolution_weight(
    weight: torch.Tensor, padding: tuple[int, int], stride: tuple[int, int], input_shape: torch.Size
) -> torch.Tensor:
    """``weight`` of a convolution in the layout that oneDNN prefers for inputs of ``input_shape``."""
    reorder: Any = torch._C._nn.mkldnn_reorder_conv2d_weight
    packed: torch.Tensor = reorder(weight.to_mkldnn(), padding, stride, (1, 1), 1, list(input_shape))
    return packed


def packed_convolution(
    x: torch.Tensor,
    packed: torch.Tensor,
    bias: torch.Tensor,
    padding: tuple[int, int],
    stride: tuple[int, int],
    activation: str,
) -> torch.Tensor:
    """Convolution of ``x`` with a weight from `pack_convolution_weight`, then ``activation`` ("relu" or "none")."""
    convolve: Any = torch.ops.mkldnn._convolution_pointwise
    result: torch.Tensor = convolve(x, packed, bias, padding, stride, (1, 1), 1, activation, [], "")
    return result


def worker_processes(batches: Iterator[Any]) -> list[Any]:
    """The processes behind an iterator of a DataLoader; none where it has none."""
    workers: list[Any] = getattr(batches, "_workers", [])
    return workers


def end_workers(batches: Iterator[Any]) -> None:
    """Ends the processes behind an iterator of a DataLoader, as its last batch does, unless one of them has died.

    Collected as garbage, the iterator may find its queues closed, and torch then waits 5 s for each process.
    """
    shut_down = getattr(batches, "_shutdown_workers", None)
    if shut_down is not None and all(worker.is_alive() for worker in worker_processes(batches)):
        shut_down()


def averaged_module() -> nn.Module | None:
    """The module whose gradients the DistributedDataParallel that is being called averages; None outside of one."""
    active = getattr(DistributedDataParallel, "_active_ddp_module", None)
    return None if active is None else active.module


def without_tensors(state: Mapping[str, torch.Tensor], dropped: Collection[str]) -> OrderedDict[str, torch.Tensor]:
    """A module's state without some of its tensors, still with the versions of its modules."""
    kept = OrderedDict((key, value) for key, value in state.items() if key not in dropped)
    if (versions := getattr(state, "_metadata", None)) is not None:
        kept._metadata = versions  # type: ignore[attr-defined]
    return kept


@contextlib.contextmanager
def compiler_settings(freezing: bool) -> Iterator[None]:
    """Settings of torch.compile while it compiles, on the first call. As options of torch.compile they come too late.

    Args:
        freezing: take the weights for constants.
    """
    import torch._dynamo.config as dynamo
    import torch._inductor.config as inductor

    with contextlib.ExitStack() as stack:
        stack.enter_context(inductor.patch(freezing=freezing))
        if hasattr(dynamo, "fail_on_cache_limit_hit"):  # for parts of a network that is compiled in parts
            stack.enter_context(dynamo.patch(fail_on_cache_limit_hit=True))
        yield
