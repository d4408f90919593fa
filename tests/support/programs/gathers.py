"""Four ranks gather with gradients, in every mode and with every fault; each rank checks its own
part.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from common import fidtool, refused, say

from fidtool.training import AbsentRanksError, dist_sync_fn, gather_outputs, gather_with_grad

SIZES = [3, 5, 0, 2]
WEIGHTS = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
"""The loss differs between ranks, so that no mode gives the gradient of another by chance."""
VAIN = 3.0
"""Seconds that ranks wait for absent ranks."""


def joined_batch() -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return ten rows, and each rank's share of them."""
    rows = torch.randn(
        sum(SIZES), 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    return rows, list(rows.split(SIZES))


def loss_of(joined: torch.Tensor) -> torch.Tensor:
    """Return a loss that depends on all pairs of rows."""
    flat = joined.flatten(1)
    return (flat @ flat.T).tanh().sum() + flat.sum()


def check_modes(rank: int) -> None:
    """Check the sizes 3, 5, 0 and 2, with tensors that are not contiguous, and with a rank that
    needs no gradient.
    """
    for idle in (None, 0):
        whole, shares = joined_batch()
        reference = whole.clone().requires_grad_()
        loss_of(reference).backward()
        assert reference.grad is not None
        for grad, factor in (
            ("sum", WEIGHTS.sum()),
            ("mean", WEIGHTS.mean()),
            ("local", WEIGHTS[rank]),
        ):
            own = (
                shares[rank]
                .transpose(1, 2)
                .contiguous()
                .transpose(1, 2)
                .requires_grad_(rank != idle)
            )
            joined = gather_with_grad(own, grad=grad)
            assert torch.equal(joined, whole)
            (WEIGHTS[rank] * loss_of(joined)).backward()
            if rank != idle:
                wanted = factor * reference.grad.split(SIZES)[rank]
                assert own.grad is not None
                torch.testing.assert_close(own.grad, wanted, rtol=1e-6, atol=0)


def check_dtypes(rank: int) -> None:
    """Check that every dtype is transferred unchanged."""
    for dtype in (torch.bfloat16, torch.int64, torch.bool, torch.complex64):
        own = torch.full((rank, 3), rank).to(dtype)
        joined = gather_with_grad(own)
        assert joined.dtype == dtype
        assert torch.equal(
            joined, torch.cat([torch.full((number, 3), number).to(dtype) for number in range(4)])
        )
    half = torch.ones(2, 3, dtype=torch.bfloat16, requires_grad=True)
    gather_with_grad(half, grad="mean").float().square().sum().backward()
    assert half.grad is not None
    assert half.grad.dtype == torch.bfloat16
    assert torch.equal(half.grad, torch.full_like(half, 2.0))
    with torch.inference_mode():
        assert gather_with_grad(torch.tensor([rank])).tolist() == [0, 1, 2, 3]


def check_adapter(rank: int) -> None:
    """Check calls as in torchmetrics: states of any shape, and an empty one-dimensional tensor
    without an update.
    """
    assert [float(share) for share in dist_sync_fn(torch.tensor(rank / 2))] == [0.0, 0.5, 1.0, 1.5]
    assert gather_with_grad(torch.tensor(rank / 2)).tolist() == [0.0, 0.5, 1.0, 1.5]
    mine = (
        torch.tensor([], requires_grad=True)
        if rank == 1
        else torch.ones(rank, 3, dtype=torch.float64)
    )
    parts = dist_sync_fn(mine)
    assert [tuple(part.shape) for part in parts] == [(0, 3), (0, 3), (2, 3), (3, 3)]
    assert {part.dtype for part in parts} == {torch.float64}
    joined = gather_with_grad(mine)
    assert joined.shape == (5, 3)
    joined.sum().backward()
    assert rank != 1 or mine.grad is not None, "the graph is kept"


def check_refusals(rank: int) -> None:
    """Check that every rank gets the same message, which names a rank at fault."""
    error = fidtool.InputError
    shape = (2, 3) if rank != 2 else (2, 4)
    refused(
        error,
        lambda: gather_with_grad(torch.zeros(shape)),
        "trailing shape",
        "[3] on rank 0",
        "[4] on rank 2",
    )
    dtype = torch.float32 if rank < 3 else torch.float64
    refused(
        error, lambda: gather_with_grad(torch.zeros(1, dtype=dtype)), "dtype", "float64 on rank 3"
    )
    mode = "sum" if rank != 1 else "mean"
    refused(error, lambda: gather_with_grad(torch.zeros(1), grad=mode), "grad", "mean on rank 1")
    with torch.set_grad_enabled(rank != 3):
        need = torch.zeros(1, requires_grad=True)
        refused(error, lambda: gather_with_grad(need), "rank 3", "no_grad")


def check_recovery(own: torch.Tensor) -> None:
    """A rank that has missed a call must not join the next one with the payload of the missed one:
    all raise once.
    """
    refused(
        fidtool.RunError,
        lambda: gather_with_grad(own),
        "call number",
        " missed a call that failed",
    )
    assert gather_with_grad(own).tolist() == [0, 1, 2, 3]


def said_to_be_missing(outputs: list[Any], index: Sequence[int]) -> tuple[Any, list[str]]:
    """Return the first joined output, and how many samples warnings say to be missing."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        joined, *_ = gather_outputs(*outputs, index=index)
    return joined, [str(warning.message).partition(" were left out")[0] for warning in caught]


def check_outputs(rank: int) -> None:
    """Check that each sample is there once and in order, with its gradient, although ranks share
    samples.
    """
    samples = [[4, 1, 9], [0, 4, 2, 7, 3], [], [9, 8]][rank]
    whole = torch.randn(10, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    reference = whole[[0, 1, 2, 3, 4, 7, 8, 9]].requires_grad_()
    loss_of(reference).backward()
    assert reference.grad is not None
    rows = whole[samples].requires_grad_()
    index = torch.tensor(samples, dtype=torch.int64)
    names = [f"sample {sample} é\n" for sample in samples]
    batches = [index[:2], index[2:]] if samples else []
    joined, sames, words, numbers = gather_outputs(
        rows, batches, names, samples, index=batches, grad="sum"
    )
    assert torch.equal(joined, reference)
    assert sames.tolist() == numbers == [0, 1, 2, 3, 4, 7, 8, 9]
    assert words == [f"sample {sample} é\n" for sample in numbers]
    loss_of(joined).backward()
    assert rows.grad is not None
    wanted = torch.zeros_like(rows)
    for place, sample in enumerate(samples):
        if (rank, sample) not in ((1, 4), (3, 9)):  # the first rank has these
            wanted[place] = 4 * reference.grad[numbers.index(sample)]
    torch.testing.assert_close(rows.grad, wanted, rtol=1e-12, atol=0)

    # Each rank begins at 0.
    shares, words = said_to_be_missing([torch.full((3, 2), rank)], range(3))
    assert shares.tolist() == [[0, 0]] * 3
    assert words == ["9 of 12 samples"] * (rank == 0)
    # A sampler repeats samples: floats may differ, but not the labels.
    floats = torch.arange(24.0).reshape(12, 2)
    labels = torch.arange(12)
    equal = torch.cat([labels[:6], labels[:6]])
    for outputs, repeated, missing in (
        ([floats], 3, False),
        ([floats, equal], 4, False),
        ([labels], 4, False),
        ([labels], 5, True),
        ([floats, labels], 5, True),
        ([floats], 6, True),
        ([floats, equal], 6, True),
    ):
        numbers = [*range(6), *range(repeated), *range(6 + repeated, 12)]
        share = slice(3 * rank, 3 * rank + 3)
        _, words = said_to_be_missing([output[share] for output in outputs], numbers[share])
        assert words == [f"{repeated} of 12 samples"] * (missing and rank == 0)

    error, one = fidtool.InputError, [rank]
    floats = [0.5] if rank == 1 else one
    failed = error if rank == 1 else fidtool.RunError
    refused(
        failed,
        lambda: gather_outputs(floats, index=one),
        "list of float",
        "encode other labels as integers",
    )
    refused(
        failed,
        lambda: gather_outputs(one, index=[0] * (1 + (rank == 1))),
        "has 1 elements, but index has 2",
    )
    mixed = torch.ones(1) if rank == 3 else ["one"]
    refused(
        error,
        lambda: gather_outputs(mixed, index=one),
        "elements of output 1 differ",
        "str and tensor",
    )


def check_absence(rank: int) -> None:
    """Check that no rank waits longer than the timeout, and that later calls work again.

    Ranks that wait together start from a barrier, so that they do not also wait for each other's
    delays.
    """
    own = torch.tensor([float(rank)], requires_grad=True)
    dist.barrier()
    if rank != 1:
        refused(AbsentRanksError, lambda: gather_with_grad(own, timeout=VAIN))
    dist.barrier()  # so late that the others have given up
    check_recovery(own)

    dist.barrier()
    joined = gather_with_grad(own, timeout=VAIN)
    dist.barrier()
    if rank in (0, 3):  # the others never call backward
        refused(AbsentRanksError, joined.sum().backward)
    dist.barrier()
    joined = gather_with_grad(own)
    call = joined.sum().backward if rank == 2 else lambda: gather_with_grad(own)
    refused(
        fidtool.RunError,
        call,
        "different calls",
        "rank 2 in the backward of",
        "ranks 0, 1, 3 in gather",
    )
    check_recovery(own)


def check_groups(rank: int) -> None:
    """Check that groups of some ranks can gather before the first call of all ranks, and at the
    same time.
    """
    some = dist.new_group([1, 2, 3])
    if rank:
        assert gather_with_grad(torch.tensor([rank]), group=some).tolist() == [1, 2, 3]
    assert gather_with_grad(torch.tensor([rank])).tolist() == [0, 1, 2, 3]
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    own = torch.full((rank + 1,), float(rank), requires_grad=True)
    joined = gather_with_grad(own, group=halves[rank // 2])
    assert joined.tolist() == [0.0, 1.0, 1.0] if rank < 2 else [2.0, 2.0, 2.0, 3.0, 3.0, 3.0, 3.0]
    joined.square().sum().backward()
    assert own.grad is not None
    assert own.grad.tolist() == [4.0 * rank] * (rank + 1)
    outside = halves[1 - rank // 2]
    refused((ValueError, fidtool.InputError), lambda: gather_with_grad(own, group=outside), "rank")  # type: ignore[arg-type]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    checks = (
        check_groups,
        check_modes,
        check_dtypes,
        check_adapter,
        check_refusals,
        check_outputs,
        check_absence,
    )
    for check in checks:
        check(rank)
        say(f"{check.__name__} {rank} done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
