"""Each sample of a dataset once, although samplers repeat some: its number, and its outputs on
every rank.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, IterableDataset

from fidtool.errors import InputError, mark_agreed, prefix_errors, warn_program
from fidtool.training.group import (
    DEFAULT_TIMEOUT,
    Grad,
    Group,
    dist_sync_fn,
    gather_with_grad,
    ranks_of,
)

Sample = TypeVar("Sample", covariant=True)
# Numbers of samples.
Index = torch.Tensor | Sequence[int]
Output = torch.Tensor | Sequence[torch.Tensor] | Sequence[str] | Sequence[int]
_PURPOSE = "gather_outputs()"
_ENCODE = (
    "pass numbers as a tensor, and encode other labels as integers, such as their places in a list"
)


class WithIndex(Dataset[tuple[int, Sample]]):
    """Dataset that returns each sample together with its number: ``(i, dataset[i])``.

    A `DataLoader` then yields ``index, batch``, where ``index`` is an int64 tensor of shape (n,).
    Pass it to ``update`` of the metrics, or to `gather_outputs`, so that samples that a sampler
    repeats count once.

    Args:
        dataset: a dataset with ``__getitem__`` and ``__len__``.

    Raises:
        fidtool.InputError: if it is a ``torch.utils.data.IterableDataset``, which has no numbers.
    """

    def __init__(self, dataset: Dataset[Sample]) -> None:
        if isinstance(dataset, IterableDataset):
            raise InputError(
                f"{type(dataset).__name__} is an IterableDataset, whose samples have no numbers:",
                "let it return the number of each sample itself",
            )
        self.dataset = dataset

    def __getitem__(self, index: int) -> tuple[int, Sample]:
        return index, self.dataset[index]

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]


def sample_numbers(index: object, count: int | None, what: str) -> NDArray[np.int64]:
    """Validate the numbers of ``count`` samples, or of any number, and return an array of shape
    (count,).
    """
    numbers = np.asarray(index.detach().cpu() if isinstance(index, torch.Tensor) else index)
    if numbers.size == 0:
        numbers = numbers.astype(np.int64)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or count not in (None, len(numbers)):
        if count is not None:
            what = f"{count} {what}"
        raise InputError(
            f"index must be integers, one for each of the {what}, not {numbers.dtype} of shape "
            f"{numbers.shape}",
            setting="index",
        )
    numbers = numbers.astype(np.int64)  # a number beyond int64 becomes negative
    if numbers.min(initial=0) < 0:
        raise InputError(
            f"index must be the number of each sample in the dataset, from 0, not {numbers.min()}",
            setting="index",
        )
    return numbers


def gather_outputs(
    *outputs: Output,
    index: Index | Sequence[torch.Tensor],
    group: Group = None,
    grad: Grad = "sum",
    timeout: float = DEFAULT_TIMEOUT,
) -> tuple[Any, ...]:
    """Return the outputs for all samples on every rank, each sample once, in the order of
    ``index``. A collective.

    The result is what a single process would have, for example the predictions and labels of a
    whole validation set, from which any metric can be computed. Ranks may have unequal numbers of
    samples, or none. If several ranks have the same sample, as with a sampler that pads, the output
    of the first of these ranks is returned.

    Args:
        outputs: each is a tensor of shape (n, …) on any device; a list of such tensors, one per
            batch; or a list of n strings, of any length, or of n integers. For n and the trailing
            dimensions, see `gather_with_grad`. A rank without samples passes an empty tensor, or an
            empty list, for which it gets tensors on the CPU.
        index: number of each sample in the dataset, from 0: an integer tensor of shape (n,), a list
            of integers, or a list of such tensors, one per batch. See `WithIndex`.
        group, grad, timeout: see `gather_with_grad`. Tensors keep their graph.

    Returns:
        The joined outputs: tensors of shape (N, …) and lists of length N, where N is the number of
            different samples.

    A warning is issued on the first rank if different samples seem to have the same number, so that
    some samples are missing. With several ranks, it is issued if the outputs of more than half of
    the samples differ, or if all outputs of some samples differ and labels are among the outputs.
    In one process, it is issued if any outputs differ. Random outputs of a repeated sample differ
    as well.

    Raises:
        fidtool.InputError: if an output has another length than ``index``, or elements of another
            type.
        fidtool.training.AbsentRanksError, fidtool.RunError: see `gather_with_grad`.
    """
    ranks = ranks_of(group)
    with ranks.before_exchange(_PURPOSE, timeout):
        numbers = sample_numbers(_join_batches(index), None, "samples")
        parts = {
            f"output {number}": _join_batches(output) for number, output in enumerate(outputs, 1)
        }
        kinds = [_check_elements(part, len(numbers), name) for name, part in parts.items()]
    payloads = ranks.exchange(
        _PURPOSE, {"kinds": kinds}, timeout, "every rank must call it, even one without samples"
    )
    kinds_by_output = zip(*(payload["kinds"] for payload in payloads), strict=True)
    every = gather_with_grad(torch.from_numpy(numbers), group, "local", timeout=timeout).numpy()
    joined: list[Any] = []
    for (name, part), kinds_of_ranks in zip(parts.items(), kinds_by_output, strict=True):
        if _common_kind(kinds_of_ranks, name) == "tensor":
            own = part if isinstance(part, torch.Tensor) else torch.zeros(0)
            with prefix_errors(name):
                joined.append(gather_with_grad(own, group, grad, timeout=timeout))
        else:
            joined.append(_gather_list(part, group, timeout))
    # The places of the first of equal numbers.
    _, places, inverse = np.unique(every, return_index=True, return_inverse=True)
    again = np.setdiff1d(np.arange(len(every)), places)
    if len(again) and ranks.group_rank == 0:
        _warn_of_other_samples(joined, again, places[inverse[again]], ranks.size)
    return tuple(_take_rows(values, places) for values in joined)


def _take_rows(values: Any, places: NDArray[Any]) -> Any:
    if isinstance(values, torch.Tensor):
        return values[torch.from_numpy(places).to(values.device)]
    return [values[place] for place in places]


def _warn_of_other_samples(
    joined: list[Any], again: NDArray[Any], first: NDArray[Any], ranks: int
) -> None:
    """Warn if the rows ``again`` are of other samples than the ``first`` ones of their numbers.

    A sampler repeats samples on several ranks, whose outputs differ if the model is random, but
    whose labels do not.
    """
    if not joined:
        return
    unequal = np.array(
        [_find_different(_take_rows(values, again), _take_rows(values, first)) for values in joined]
    )
    differ_in_some = unequal.any(0).sum()
    differ_in_all = unequal.all(0).sum()
    floats_only = all(
        isinstance(values, torch.Tensor) and values.is_floating_point() for values in joined
    )
    count = len(joined[0])
    most_in_some = 0
    most_in_all = 0
    if ranks > 1:
        most_in_some = max(3, (count - len(again)) // 2)
        most_in_all = max(3, ranks)
    if differ_in_some > most_in_some or (differ_in_all > most_in_all and not floats_only):
        warn_program(
            f"{differ_in_some} of {count} samples were left out, because others have the same "
            "index: give each sample of all ranks and datasets its own number (if a sampler "
            "repeated samples whose outputs are random, none is missing)"
        )


def _find_different(rows: Any, others: Any) -> NDArray[np.bool_]:
    """Return which elements of two outputs differ, shape (n,). NaNs are equal."""
    if not isinstance(rows, torch.Tensor):
        return np.array([row != other for row, other in zip(rows, others, strict=True)])
    same = torch.isclose(rows, others, rtol=0, atol=0, equal_nan=True)
    return (~same).reshape(len(rows), -1).any(1).cpu().numpy()


def _join_batches(values: Any) -> Any:
    """Concatenate a list of tensors; anything else is returned as it is."""
    if isinstance(values, (list, tuple)) and any(
        isinstance(value, torch.Tensor) for value in values
    ):
        batches = [value.reshape(value.shape or (1,)) for value in values]
        # Without those such as torch.tensor([]), which fit to no others.
        return torch.cat([batch for batch in batches if batch.shape != (0,)] or batches)
    return values


def _check_elements(output: Output, count: int, name: str) -> str:
    """Return what the elements of an output are: ``tensor``, ``str`` or ``int``; empty for an
    empty list.
    """
    if len(output) != count:
        raise InputError(f"{name} has {len(output)} elements, but index has {count}")
    if isinstance(output, torch.Tensor):
        return "tensor"
    types = {type(value) for value in output}
    if not types:
        return ""
    if types == {str}:
        return "str"
    if bool not in types and all(issubclass(kind, (int, np.integer)) for kind in types):
        return "int"
    kinds = " and ".join(sorted(kind.__name__ for kind in types))
    raise InputError(
        f"{name} is a list of {kinds}, but only lists of tensors, strings or integers can be "
        "gathered:",
        _ENCODE,
    )


def _common_kind(kinds: Sequence[str], name: str) -> str:
    """The kind of an output, which must be the same on all ranks; an empty list may be of any
    kind.
    """
    known = sorted({*kinds} - {""})
    if len(known) > 1:
        raise mark_agreed(
            InputError(f"the elements of {name} differ between the ranks: {' and '.join(known)}")
        )
    return known[0] if known else ""


def _gather_list(values: Sequence[str] | Sequence[int], group: Group, timeout: float) -> list[Any]:
    """Every rank's values, in rank order. They travel as JSON: nothing that a rank sends is
    unpickled.
    """
    encoded = bytearray(json.dumps(list(values), default=int).encode())
    sent = torch.frombuffer(encoded, dtype=torch.uint8)
    joined = []
    for part in dist_sync_fn(sent, group, grad="local", timeout=timeout):
        joined += json.loads(part.numpy().tobytes())
    return joined
