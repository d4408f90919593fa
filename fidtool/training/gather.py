"""Differentiable all-gather for tensors of unequal lengths."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import torch
from torch.autograd.function import once_differentiable

from fidtool.errors import InputError, RunError, on_every_rank
from fidtool.training.group import DEFAULT_TIMEOUT, Group, Ranks, ranks_of, refuse_failed, warn_without_group

Grad = Literal["sum", "mean", "local"]
_MODES = ("sum", "mean", "local")
_FORWARD = "gather_with_grad()"
_FORWARD_REMEDY = (
    "every rank must call it; a rank without samples passes an empty tensor with the same trailing dimensions"
)
_BACKWARD_REMEDY = (
    "backward() through gather_with_grad() is a collective: every rank, also one without samples, must call it on a "
    "loss that depends on the gathered tensor; or gather with grad='local'"
)


def gather_with_grad(
    tensor: torch.Tensor, group: Group = None, grad: Grad = "sum", *, timeout: float = DEFAULT_TIMEOUT
) -> torch.Tensor:
    """Concatenates the ranks' tensors along dimension 0, in rank order, with gradients. A collective.

    Unless ``grad`` is ``local``, backward is also a collective, even for a rank whose tensor has no rows or needs no
    gradient. Double backward is not supported. Not thread-safe.

    Args:
        tensor: shape (n, …); n may differ between ranks and may be 0. The trailing dimensions and the dtype must be the
            same on all ranks.
        group: process group; None is all ranks. Without a process group the tensor is returned unchanged.
        grad: the gradient of this rank's tensor, where each rank r has a loss L_r of the gathered tensor:
            ``sum``: the sum over r of dL_r/dtensor. With DDP, which averages the parameters' gradients over the ranks,
            the result is the gradient of the loss of the joined batch.
            ``mean``: the mean over r: without DDP, the gradient that a single process computes for the joined batch.
            ``local``: dL_r/dtensor of this rank only; the other ranks' rows are constants. No communication.
        timeout: seconds to wait for the other ranks, in forward and in backward.

    Returns:
        Tensor of shape (sum of n, …) on the device of ``tensor``, the same on every rank.

    Raises:
        fidtool.InputError: on every rank, if shapes or dtypes do not match; the message names the ranks.
        fidtool.training.AbsentRanksError: if some ranks did not call it in time.
        fidtool.RunError: if the ranks made different calls, or a rank was lost.
    """
    return _gathered(tensor, group, grad, timeout, allow_empty=False)[0]


def dist_sync_fn(
    tensor: torch.Tensor, group: Group = None, *, grad: Grad = "sum", timeout: float = DEFAULT_TIMEOUT
) -> list[torch.Tensor]:
    """`gather_with_grad` in the form that ``torchmetrics.Metric`` takes as ``dist_sync_fn``.

    With ``dist_sync_on_step=True``, ``metric(…)`` is then a differentiable loss of the joined batch. Use
    ``functools.partial(dist_sync_fn, grad="mean")`` for another mode.

    Args:
        tensor: one state of the metric, of any shape.
        group, grad, timeout: see `gather_with_grad`.

    Returns:
        The state of each rank, in rank order.

    Raises:
        See `gather_with_grad`.
    """
    scalar = tensor.ndim == 0
    joined, lengths = _gathered(tensor.reshape(1) if scalar else tensor, group, grad, timeout, allow_empty=True)
    return list(joined.unbind()) if scalar else list(torch.split(joined, lengths))


def _gathered(
    tensor: torch.Tensor, group: Group, grad: Grad, timeout: float, allow_empty: bool
) -> tuple[torch.Tensor, list[int]]:
    """The gathered tensor and each rank's number of rows.

    With ``allow_empty``, a one-dimensional tensor without elements, which is the state of a torchmetrics metric that
    was never updated, counts as zero rows of the other ranks' shape and dtype.
    """
    if grad not in _MODES:
        raise InputError(f"grad must be one of {', '.join(_MODES)}, not {grad!r}")
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
        what = f"a {tensor.layout} tensor" if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise InputError(f"only dense tensors can be gathered, not {what}")
    ranks = ranks_of(group)
    if ranks.size == 1:
        warn_without_group(_FORWARD)
        return tensor, [len(tensor)]
    grad_enabled = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    payload = {
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "grad": grad,
        "requires_grad": grad_enabled and tensor.requires_grad,
        "grad_enabled": grad_enabled,
        "failed": "",
    }
    payloads = ranks.exchange(_FORWARD, payload, timeout, _FORWARD_REMEDY)
    refuse_failed(payloads, ranks.ranks)
    reference = _check_compatible(ranks, payloads, allow_empty)
    if allow_empty and not tensor.numel():
        tensor = tensor.new_empty((0, *reference["shape"][1:]), dtype=getattr(torch, reference["dtype"]))
    lengths = [int(entry["shape"][0]) if prod(entry["shape"]) or entry["shape"][1:] else 0 for entry in payloads]
    call = _GatherCall(ranks, grad, timeout, lengths, ranks.calls(_FORWARD))
    if not any(entry["requires_grad"] for entry in payloads):
        return torch.cat(call.parts(tensor)), lengths
    if grad == "local" and payload["requires_grad"]:
        parts = call.parts(tensor)
        parts[ranks.group_rank] = tensor
        return torch.cat(parts), lengths
    # The anchor requires a gradient, so that backward, a collective, is called even if this rank's tensor does not.
    anchor = torch.zeros((), dtype=torch.float32, device=tensor.device, requires_grad=True)
    joined: torch.Tensor = _Gather.apply(tensor, anchor, call)
    return joined, lengths


def abandon_gathering(group: Group, reason: str, timeout: float) -> None:
    """Called by a rank instead of `gather_with_grad` if it failed: the others immediately raise with ``reason``."""
    with contextlib.suppress(RunError):
        ranks_of(group).exchange(_FORWARD, {"failed": reason}, timeout, _FORWARD_REMEDY)


def _check_compatible(ranks: Ranks, payloads: list[dict[str, Any]], allow_empty: bool) -> dict[str, Any]:
    """Returns a payload whose trailing shape, dtype and ``grad`` are those of all ranks."""
    candidates = [entry for entry in payloads if not (allow_empty and entry["shape"] == [0])] or payloads
    reference = candidates[0]
    first = ranks.ranks[payloads.index(reference)]
    for rank, entry in zip(ranks.ranks, payloads, strict=True):
        if not entry["shape"]:
            problem = f"the tensor to gather has no dimensions on rank {rank}:"
            raise on_every_rank(InputError(problem, "add one with reshape(1)"))
        if allow_empty and entry["shape"] == [0]:
            continue
        for what, mine, theirs in (
            ("trailing shape", entry["shape"][1:], reference["shape"][1:]),
            ("dtype", entry["dtype"], reference["dtype"]),
            ("grad", entry["grad"], reference["grad"]),
        ):
            if mine != theirs:
                message = f"the tensors to gather differ in {what}: {theirs} on rank {first}, {mine} on rank {rank}"
                raise on_every_rank(InputError(message))
    if reference["grad"] != "local" and any(entry["requires_grad"] for entry in payloads):
        for rank, entry in zip(ranks.ranks, payloads, strict=True):
            if not entry["grad_enabled"]:
                message = f"the tensor to gather needs a gradient on other ranks but rank {rank} is in torch.no_grad()"
                raise on_every_rank(InputError(f"{message}: backward is a collective of all ranks"))
    return reference


@dataclass(frozen=True)
class _GatherCall:
    """One call of `gather_with_grad`, for its backward. ``lengths`` has each rank's number of rows."""

    ranks: Ranks
    grad: Grad
    timeout: float
    lengths: list[int]
    number: int

    def parts(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        row = prod(tensor.shape[1:]) * tensor.element_size()
        sizes = [length * row for length in self.lengths]
        shapes = [(length, *tensor.shape[1:]) for length in self.lengths]
        if not any(sizes):
            return [tensor.new_empty(shape) for shape in shapes]
        with self.ranks.world(_FORWARD) as world:
            flat = tensor.detach().resolve_conj().resolve_neg().contiguous().flatten()
            parts = world.gather_bytes(flat.view(torch.uint8), sizes)
            # Cloned because a view as a wider dtype needs aligned memory.
            return [part.clone().view(tensor.dtype).view(shape) for part, shape in zip(parts, shapes, strict=True)]

    def own_gradient(self, joined: torch.Tensor) -> torch.Tensor:
        """The gradient of this rank's tensor, from ``joined``, the gradient of its loss for the gathered tensor."""
        start = sum(self.lengths[: self.ranks.group_rank])
        mine = slice(start, start + self.lengths[self.ranks.group_rank])
        if self.grad == "local":
            return joined[mine]
        purpose = f"the backward of {_FORWARD} call number {self.number}"
        self.ranks.exchange(purpose, {}, self.timeout, _BACKWARD_REMEDY, counted=False)
        # Summing in half precision would lose digits.
        wide = joined.to(torch.promote_types(joined.dtype, torch.float32)).clone(memory_format=torch.contiguous_format)
        with self.ranks.world(purpose) as world:
            world.sum_(wide)
        own = wide[mine]
        return (own / self.ranks.size if self.grad == "mean" else own).to(joined.dtype)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, anchor: torch.Tensor, call: _GatherCall) -> torch.Tensor:
        ctx.call = call
        return torch.cat(call.parts(tensor))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, joined: torch.Tensor) -> tuple[torch.Tensor | None, None, None]:
        own = ctx.call.own_gradient(joined)
        return own if ctx.needs_input_grad[0] else None, None, None
