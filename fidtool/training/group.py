"""The ranks of a training program: rendezvous, a differentiable all-gather, checks of replicas and
of parameters.
"""

from __future__ import annotations

import atexit
import contextlib
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from math import prod
from types import TracebackType
from typing import Any, Literal, NamedTuple, get_args

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn.parallel import DistributedDataParallel

from fidtool.distributed.launch import Launch, discover_or_alone, restart_count
from fidtool.distributed.rendezvous import AbsentRanksError, GroupRendezvous, connect_to_store_of
from fidtool.distributed.watchdog import LostContactError, first_line
from fidtool.distributed.world import World, find_differences
from fidtool.errors import InputError, RunError, as_fidtool_error, mark_agreed, warn_program
from fidtool.features.hashes import tensor_hashes
from fidtool.system.background import call_with_timeout
from fidtool.system.torch_internals import default_store, new_gloo_group
from fidtool.validation import Setting

# A ``torch.distributed.ProcessGroup``, or None for all ranks.
Group = Any
# Default timeout in seconds for waiting for the other ranks.
DEFAULT_TIMEOUT = 60.0
TRANSPORT_SECONDS = 300.0
"""After the rendezvous, how long a rank may keep the others waiting inside a collective."""
Grad = Literal["sum", "mean", "local"]
GRAD = Setting("sum", choices=get_args(Grad), name="grad", kind=str)
GATHERING = "gather_with_grad()"
_FORWARD_REMEDY = "every rank must call it; a rank without samples passes an empty tensor"
_BACKWARD_REMEDY = (
    "backward() through gather_with_grad() is a collective: every rank, even one without samples, "
    "must call it on a loss that depends on the gathered tensor; or gather with grad='local'"
)

_ABSENCE = "absence"
_REPORT_SECONDS = 5.0

# The `Ranks` of torch's default group and a set of ranks.
_ranks_by_group: dict[tuple[Group, tuple[int, ...]], Ranks] = {}
# Destroys their groups: gloo's threads must end before the interpreter exits.
atexit.register(_ranks_by_group.clear)


class Ranks:
    """The ranks of a torch process group, as global ranks; by default only this process.

    Attributes:
        ranks: all of them, in the group's order.
        group_rank: place of this process among them.
        calls: number of rendezvous by purpose, including failed ones.
    """

    def __init__(self, ranks: Sequence[int] = (0,), group_rank: int = 0) -> None:
        self.ranks = tuple(ranks)
        self.group_rank = group_rank
        self.size = len(ranks)
        self.rank = ranks[group_rank]
        self.calls = Counter[str]()
        self._gloo: Any = None
        self._reported = False

    def exchange(
        self,
        purpose: str,
        payload: dict[str, Any],
        seconds: float,
        remedy: str,
        counted: bool = True,
    ) -> list[dict[str, Any]]:
        """`GroupRendezvous.exchange`; a single process gets its own payload back.

        If ``counted``, the ranks must agree on the number of calls with ``purpose``. A rank that is
        a call behind, because its program caught an error, would bring the payload of another call.
        All ranks then raise once, and their next calls match again. They also raise if one called
        `abandon`.
        """
        if self.size == 1:
            return [payload]
        explain_lost_ranks()
        if counted:
            self.calls[purpose] += 1
        mine = {"call": self.calls[purpose], "gloo": self._gloo is not None, "payload": payload}
        try:
            entries = self._rendezvous.exchange(purpose, mine, seconds, remedy)
        except AbsentRanksError as error:
            self._report(f"rank {self.rank} ended its wait: {error}")
            raise
        if self._reported:
            self._report("")  # the program goes on
        if not all(entry["gloo"] for entry in entries):
            self._gloo = None  # a rank has lost its group: all ranks create a new one
        latest = max(entry["call"] for entry in entries)
        for rank, entry in zip(self.ranks, entries, strict=True):
            if entry["call"] != latest:
                self.calls[purpose] = latest
                problem = (
                    f"rank {rank} is at call number {entry['call']} of {purpose}, but the other "
                    f"ranks are at number {latest}, because rank {rank} missed a call that failed; "
                    "no data was exchanged:"
                )
                raise mark_agreed(RunError(problem, "make the call again"))
            if failure := entry["payload"].get("failed"):
                raise RunError(f"rank {rank} failed: {failure}")
        return [entry["payload"] for entry in entries]

    def _report(self, text: str) -> None:
        """Store why this rank gives up, for `explain_lost_ranks` on the others."""
        self._reported = bool(text)
        with contextlib.suppress(RuntimeError):
            _report_store(self._root).set(_ABSENCE, text)

    def abandon(self, purpose: str, reason: str, seconds: float) -> None:
        """Called in place of a counted `exchange` on a rank that failed: the others immediately
        raise ``reason``.
        """
        with contextlib.suppress(RunError):
            self.exchange(purpose, {"failed": reason}, seconds, "")

    @contextlib.contextmanager
    def before_exchange(self, purpose: str, seconds: float) -> Iterator[None]:
        """Context manager for work before an `exchange`: any error, such as out of memory, is
        raised on all ranks.
        """
        try:
            yield
        except Exception as error:
            self.abandon(purpose, as_fidtool_error(error).text, seconds)
            raise

    @cached_property
    def _root(self) -> dist.Store:
        return _open_store()

    @cached_property
    def _store(self) -> dist.Store:
        name = f"fidtool-training/{restart_count()}/{'-'.join(map(str, self.ranks))}"
        store = dist.PrefixStore(name, self._root)
        # A program may destroy its process group and create another, whose store is empty or has
        # the first one's keys.
        return dist.PrefixStore(str(store.add(f"groups/{self.group_rank}", 1)), store)

    @cached_property
    def _rendezvous(self) -> GroupRendezvous:
        return GroupRendezvous(self._store, self.ranks, self.group_rank)

    @contextlib.contextmanager
    def world(self, purpose: str) -> Iterator[World]:
        """The ranks as a `World`, for the duration of a ``with`` block immediately after a
        rendezvous.
        """
        if self.size == 1:
            yield World(Launch())
            return
        try:
            # A view must reference its base while gloo uses it; in inference mode it does not.
            with no_autograd():
                self._gloo = self._gloo or self._new_gloo()
                # A new World each time: one that has seen a failure cannot be reused.
                launch = Launch(self.group_rank, self.size, self.group_rank, self.size)
                yield World(launch, group=self._gloo)
        except LostContactError as error:
            self._gloo = None
            raise RunError(
                f"{purpose}: a rank was lost, or the other ranks waited for one rank for more than "
                f"{TRANSPORT_SECONDS:.0f} s ({first_line(error.__cause__ or error)})"
            ) from error

    def _new_gloo(self) -> Any:
        # Under new keys: those of an earlier group refer to closed sockets.
        store = dist.PrefixStore(f"gloo/{self._rendezvous.round}", self._store)
        try:
            return new_gloo_group(store, self.group_rank, self.size, TRANSPORT_SECONDS)
        except RuntimeError as error:
            raise LostContactError(first_line(error)) from error


def _open_store() -> dist.Store:
    """The store of the default process group, by a connection of our own."""
    default = default_store()
    return connect_to_store_of(default) or default


def _report_store(root: dist.Store) -> dist.Store:
    """Where the ranks of a program tell each other why they give up, whatever their groups."""
    return dist.PrefixStore(f"fidtool-training/{restart_count()}/reports", root)


@cache
def explain_lost_ranks() -> None:
    """Add what another rank reported to an uncaught error of torch's collectives.

    A rank that gives up waiting for others ends with an `AbsentRanksError`. If the others wait in a
    collective of torch, such as that of DDP, they only learn that a connection was closed.
    """
    print_error = sys.excepthook

    def print_with_report(
        kind: type[BaseException], error: BaseException, place: TracebackType | None
    ) -> None:
        print_error(kind, error, place)
        if isinstance(error, RuntimeError) and re.search("gloo|NCCL|[Cc]onnection", str(error)):
            try:
                report = call_with_timeout(_read_report, _REPORT_SECONDS)
            except Exception:  # rank 0 serves the store, unless torchrun does
                report = (
                    "the reports of the ranks cannot be read; if rank 0 has ended, its output "
                    "says why"
                )
            if report:
                print(f"fidtool: {report}", file=sys.stderr, flush=True)

    sys.excepthook = print_with_report


def _read_report() -> str:
    reports = _report_store(_open_store())
    return reports.get(_ABSENCE).decode() if reports.check([_ABSENCE]) else ""


@contextlib.contextmanager
def no_autograd() -> Iterator[None]:
    """Disable autograd, and inference mode, whose tensors cannot be changed in place
    afterwards.
    """
    with torch.inference_mode(False), torch.no_grad():
        yield


def _has_process_group() -> bool:
    return dist.is_available() and dist.is_initialized()


def ranks_of(group: Group = None) -> Ranks:
    """The ranks of ``group``; the same object as long as the program's default process group is the
    same.
    """
    if not _has_process_group():
        return Ranks()
    members = dist.get_process_group_ranks(group or dist.group.WORLD)
    own = dist.get_rank()
    if own not in members:
        raise InputError(f"rank {own} is not in the process group of ranks {members}")
    # A program may initialise torch.distributed again.
    return _ranks_by_group.setdefault(
        (dist.group.WORLD, tuple(members)), Ranks(members, members.index(own))
    )


def group_rank_and_size(group: Group) -> tuple[int, int]:
    """This process's rank in ``group`` and the group's size; ``(0, 1)`` if it is not in the
    group.
    """
    try:
        ranks = ranks_of(group)
    except InputError:
        ranks = Ranks()
    return ranks.group_rank, ranks.size


@cache
def warn_without_group(what: str) -> None:
    """Warn once if the launcher started several processes and torch has no process group."""
    if size := count_ungrouped_processes():
        warn_program(
            f"{what} covers only one of {size} processes: call "
            "torch.distributed.init_process_group first"
        )


def count_ungrouped_processes() -> int:
    """Number of processes that the launcher started, if more than one and torch has no process
    group; else 0.
    """
    size = 1 if _has_process_group() else discover_or_alone().world_size
    return size if size > 1 else 0


def gather_with_grad(
    tensor: torch.Tensor,
    group: Group = None,
    grad: Grad = "sum",
    *,
    timeout: float = DEFAULT_TIMEOUT,
) -> torch.Tensor:
    """Concatenate the ranks' tensors along dimension 0, in rank order, with gradients. A
    collective.

    Unless ``grad`` is ``local``, backward is also a collective, even for a rank whose tensor has no
    rows or needs no gradient. Double backward is not supported. The function is not thread-safe.
    For samples that a sampler repeats, and for strings, see `gather_outputs`.

    Args:
        tensor: tensor of shape (n, …); n may differ between ranks and may be 0. The trailing
            dimensions and the dtype must be the same on all ranks, except for a tensor of shape
            (0,). A scalar counts as one row.
        group: process group; None is all ranks. Without a process group the tensor is returned
            unchanged.
        grad: which gradient this rank's tensor gets, if each rank r has a loss L_r of the gathered
            tensor. ``sum`` is the sum over r of dL_r/dtensor: with DDP, which averages the
            parameters' gradients over the ranks, the result is the gradient of the loss of the
            joined batch. ``mean`` is the mean over r: without DDP, it is the gradient that a single
            process computes for the joined batch. ``local`` is dL_r/dtensor of this rank only: the
            rows of the other ranks are constants, and backward needs no communication.
        timeout: seconds to wait for the other ranks, in forward and in backward.

    Returns:
        torch.Tensor of shape (sum of n, …) on the device of ``tensor``, the same on every rank.

    Raises:
        fidtool.InputError: on every rank, if shapes or dtypes do not match; the message names the
            ranks.
        fidtool.training.AbsentRanksError: if some ranks did not call it in time.
        fidtool.RunError: if the ranks made different calls, or a rank was lost.
    """
    return _gather(tensor, group, grad, timeout)[0]


def dist_sync_fn(
    tensor: torch.Tensor,
    group: Group = None,
    *,
    grad: Grad = "sum",
    timeout: float = DEFAULT_TIMEOUT,
) -> list[torch.Tensor]:
    """`gather_with_grad` in the form that ``torchmetrics.Metric`` takes as ``dist_sync_fn``.

    With ``dist_sync_on_step=True``, ``metric(…)`` is then a differentiable loss of the joined
    batch. To select another mode, pass ``functools.partial(dist_sync_fn, grad="mean")``.

    Args:
        tensor: one state of the metric, of any shape.
        group, grad, timeout: see `gather_with_grad`, also for the errors.

    Returns:
        The state of each rank, in rank order.
    """
    joined, lengths = _gather(tensor, group, grad, timeout)
    return list(joined.unbind() if tensor.ndim == 0 else torch.split(joined, lengths))


def _gather(
    tensor: torch.Tensor, group: Group, grad: Grad, timeout: float
) -> tuple[torch.Tensor, list[int]]:
    GRAD.check(grad)
    if tensor.ndim == 0:
        tensor = tensor.reshape(1)
    ranks = ranks_of(group)
    if ranks.size == 1:
        warn_without_group(GATHERING)
        return tensor, list(tensor.shape[:1])
    grad_enabled = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    payload = {
        "shape": list(tensor.shape),
        "trailing shape": list(tensor.shape[1:]),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "grad": grad,
        "requires_grad": grad_enabled and tensor.requires_grad,
        "grad_enabled": grad_enabled,
    }
    payloads = ranks.exchange(GATHERING, payload, timeout, _FORWARD_REMEDY)
    reference = _check_compatible(ranks, payloads)
    if tensor.shape == (0,):
        dtype = getattr(torch, reference["dtype"])
        tensor = tensor.to(dtype).reshape(0, *reference["trailing shape"])
    lengths = [entry["shape"][0] for entry in payloads]
    if not any(entry["requires_grad"] for entry in payloads):
        return _gather_rows(tensor, ranks, lengths), lengths
    # The anchor requires a gradient, so that backward, a collective, is called even if this rank's
    # tensor does not.
    anchor = torch.zeros((), dtype=torch.float32, device=tensor.device, requires_grad=True)
    call = _Call(ranks, lengths, grad, timeout, ranks.calls[GATHERING])
    joined: torch.Tensor = _Gather.apply(tensor, anchor, call)
    return joined, lengths


def _check_compatible(ranks: Ranks, payloads: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a payload whose trailing shape, dtype and ``grad`` are those of all ranks.

    A tensor of shape (0,), such as the state of a torchmetrics metric that was never updated, may
    stand for one without rows of any shape and dtype.
    """
    reference = next((entry for entry in payloads if entry["shape"] != [0]), payloads[0])
    first = ranks.ranks[payloads.index(reference)]
    gradients = any(entry["requires_grad"] for entry in payloads)
    for rank, entry in zip(ranks.ranks, payloads, strict=True):
        if gradients and reference["grad"] != "local" and not entry["grad_enabled"]:
            raise mark_agreed(
                InputError(
                    f"the tensor to gather needs a gradient on other ranks, but rank {rank} is in "
                    "torch.no_grad(): backward is a collective that all ranks must call"
                )
            )
        for name in ("trailing shape", "dtype", "grad"):
            if entry[name] != reference[name] and entry["shape"] != [0]:
                raise mark_agreed(
                    InputError(
                        f"the tensors to gather differ in {name}: {reference[name]} on rank "
                        f"{first}, {entry[name]} on rank {rank}"
                    )
                )
    return reference


def _gather_rows(tensor: torch.Tensor, ranks: Ranks, lengths: list[int]) -> torch.Tensor:
    """The rows of all ranks, each of which has so many."""
    shape = (sum(lengths), *tensor.shape[1:])
    if prod(shape) == 0:
        return tensor.new_empty(shape)
    row_bytes = prod(tensor.shape[1:]) * tensor.element_size()
    with ranks.world(GATHERING) as world:
        # A copy, because an empty array of NumPy may have a stride that forbids a view as bytes.
        rows = tensor.detach().resolve_conj().resolve_neg()
        rows = rows.clone(memory_format=torch.contiguous_format)
        parts = world.gather_bytes(
            rows.flatten().view(torch.uint8), [length * row_bytes for length in lengths]
        )
        return torch.cat(parts).view(tensor.dtype).view(shape)


class _Call(NamedTuple):
    """The ``number``-th call of `gather_with_grad`, for its backward."""

    ranks: Ranks
    lengths: list[int]
    grad: Grad
    timeout: float
    number: int


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, anchor: torch.Tensor, call: _Call) -> torch.Tensor:
        ctx.call = call
        return _gather_rows(tensor, call.ranks, call.lengths)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, joined: torch.Tensor) -> tuple[torch.Tensor | None, None, None]:
        call: _Call = ctx.call
        dtype = joined.dtype
        if call.grad != "local":
            purpose = f"the backward of {GATHERING} call number {call.number}"
            call.ranks.exchange(purpose, {}, call.timeout, _BACKWARD_REMEDY, counted=False)
            # Summing in half precision would lose digits.
            joined = joined.to(torch.promote_types(dtype, torch.float32))
            joined = joined.clone(memory_format=torch.contiguous_format)
            with call.ranks.world(purpose) as world:
                world.all_reduce_sum(joined)
        own = torch.split(joined, call.lengths)[call.ranks.group_rank]
        if call.grad == "mean":
            own = own / call.ranks.size
        return own.to(dtype) if ctx.needs_input_grad[0] else None, None, None


class OutOfSyncError(RunError):
    """The ranks' parameters or buffers differ."""


def assert_in_sync(
    module: nn.Module, group: Group = None, *, timeout: float = DEFAULT_TIMEOUT
) -> None:
    """Check that every rank has bit-identical parameters and buffers. A collective.

    Compares names, shapes, dtypes and hashes of the values, on any device. The ranks may have
    different sets of parameters. Does nothing if there is no process group.

    Args:
        module: the module, such as a model or a loss, on every rank.
        group, timeout: see `gather_with_grad`.

    Raises:
        fidtool.training.OutOfSyncError: on every rank, if they differ; the message names the
            tensors and the ranks.
        fidtool.training.AbsentRanksError: if some ranks did not call it in time.
    """
    ranks = ranks_of(group)
    purpose = "assert_in_sync()"
    if ranks.size == 1:
        warn_without_group(purpose)
        return
    hashes = tensor_hashes(module)
    ranks.exchange(purpose, {}, timeout, "every rank must call it")
    with ranks.world(purpose) as world:
        differences = find_differences(hashes, world, ranks.ranks)
    if differences:
        error = OutOfSyncError(
            f"the ranks' replicas of {type(module).__name__} differ: {'; '.join(differences)}"
        )
        if isinstance(module, DistributedDataParallel):
            error.advise(
                "DDP sends the buffers of rank 0, such as BatchNorm's statistics, to the other "
                "ranks only at the start of the next forward pass in training; "
                "torch.nn.SyncBatchNorm keeps them equal"
            )
        raise mark_agreed(error)


def wrap_trainable(
    loss: nn.Module, device_ids: Sequence[int | torch.device] | None = None, group: Group = None
) -> nn.Module:
    """Wrap a loss in DistributedDataParallel if it has trainable parameters.

    The weights of ArcFace, CosFace or a projection head must be synchronised like the weights of
    the model: if the loss is not wrapped, each rank trains its own replica, and the replicas
    diverge. Lightning does not need this function: it wraps a loss that is a submodule of the
    LightningModule together with the model.

    Args:
        loss: a loss module, already on its device.
        device_ids: this rank's GPU, as passed to DistributedDataParallel; None on the CPU.
        group: process group; None is all ranks.

    Returns:
        The wrapped loss; the loss itself if it has no trainable parameters or is already wrapped,
        or if there is no process group.

    Raises:
        fidtool.InputError: if the launcher started several processes and there is no process group.
    """
    trainable = any(parameter.requires_grad for parameter in loss.parameters())
    if not trainable or isinstance(loss, DistributedDataParallel):
        return loss
    if size := count_ungrouped_processes():
        raise InputError(
            f"{type(loss).__name__} has trainable parameters, and the launcher started {size} "
            "processes:",
            "call torch.distributed.init_process_group before wrap_trainable, or the replicas of "
            "the parameters will diverge",
        )
    if not _has_process_group():
        return loss
    return DistributedDataParallel(loss, device_ids=device_ids, process_group=group)


def assert_optimized(
    loss: nn.Module, optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer]
) -> None:
    """Check that every trainable parameter of a loss, wrapped or not, is in a parameter group of
    an optimizer.

    Args:
        loss: the loss, also in `DistributedDataParallel`.
        optimizer: an optimizer, or several.

    Raises:
        fidtool.InputError: if some parameters are in no group; the message names them.
    """
    optimizers = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else optimizer
    trained = set[nn.Parameter]()
    for one in optimizers:
        for group in one.param_groups:
            trained.update(group["params"])
    if isinstance(loss, DistributedDataParallel):
        loss = loss.module
    missing = [
        name
        for name, parameter in loss.named_parameters()
        if parameter.requires_grad and parameter not in trained
    ]
    if missing:
        raise InputError(
            f"no optimizer trains {', '.join(missing)} of {type(loss).__name__}:",
            "move the loss to its device and then pass loss.parameters() to the optimizer too",
        )
