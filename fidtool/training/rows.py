"""What is known of the images or pairs that were added: each sample once, merged over ranks, saved and restored."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.distributed.rendezvous import listed_ranks
from fidtool.distributed.world import World
from fidtool.statistics.set_statistics import Statistics

State = dict[str, torch.Tensor]
Rows = TypeVar("Rows", bound="SampleRows")
UNKNOWN = -1
"""In place of the number of a sample."""
PADDED = (
    "a sampler repeats samples so that all ranks have equally many (DistributedSampler, which Lightning inserts, or "
    "accelerate's even_batches): pass the numbers of the samples to update(…, index=), and each counts once"
)
"""Why several ranks have the same samples."""
_LEFT_OUT = "left_out"


class SampleRows(ABC):
    """A row for each image or pair that was added on one rank, or after a merge on all ranks.

    Attributes:
        columns: what is known of each: a hash, and the number of its sample or `UNKNOWN`. A subclass may have more.
            The array also has ``restored``, whether it is from a checkpoint.
        compared: the column by which the copies of a sample that two ranks have are compared.
        names: keys of `totals`.
        noun: what a row stands for, in the plural.
        reset: how to discard the rows, for messages.
        fixed: statistics in place of rows.
        left_out: number of those that were left out although another one has their number.
        lost: some were lost when a checkpoint was loaded.
        of_ranks: the rows of each rank after a merge.
    """

    columns: ClassVar[dict[str, type[np.generic]]] = {"hash": np.int64, "sample": np.int64}
    compared: ClassVar[str] = "hash"
    noun: str
    reset: str = "call reset()"
    fixed: Statistics | None = None
    _device = torch.device("cpu")

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.columns, _LEFT_OUT)

    def clear(self) -> None:
        self._parts: list[NDArray[np.void]] = []
        self._hashes: dict[int, int] = {}  # by the numbers of the samples
        self.left_out = 0
        self.lost = False
        self.of_ranks: list[NDArray[np.void]] = []

    def _blank(self, count: int) -> NDArray[np.void]:
        return np.zeros(count, [*self.columns.items(), ("restored", np.bool_)])

    @property
    def seen(self) -> NDArray[np.void]:
        """The rows, a structured array of shape (n,), in the order in which they were added."""
        return np.concatenate([self._blank(0), *self._parts])

    @property
    def count(self) -> int | None:
        """Number of rows; None if that of the fixed statistics is unknown."""
        return sum(map(len, self._parts))

    @property
    def length(self) -> int:
        """Length of a feature vector; 0 if it is not known yet, or there are none."""
        return 0

    # Each sample once.

    def _find_new(self, rows: NDArray[np.void]) -> tuple[list[int], int]:
        """Returns the places of the rows to add, and how many of the others have not the hash of their number."""
        places, new, different = [], dict[int, int](), 0
        for place, (sample, mark) in enumerate(zip(rows["sample"].tolist(), rows["hash"].tolist(), strict=True)):
            earlier = self._hashes.get(sample, new.get(sample))
            if sample == UNKNOWN or earlier is None:
                places.append(place)
                new[sample] = mark
            else:
                different += earlier != mark
        return places, different

    def _note(self, rows: NDArray[np.void], different: int) -> None:
        """Notes the samples of rows that are added, and that ``different`` others were left out."""
        numbered = rows[rows["sample"] != UNKNOWN]
        self._hashes.update(zip(numbered["sample"].tolist(), numbered["hash"].tolist(), strict=True))
        self.left_out += different

    # Synchronisation of all ranks.

    @abstractmethod
    def to(self, device: torch.device) -> None: ...

    @abstractmethod
    def flush(self) -> None:
        """Finishes the work on what was added."""

    @abstractmethod
    def merged(self: Rows, world: World) -> Rows:
        """Returns those of all ranks, without changing this object. A collective; call `flush` first.

        A sample of which several ranks have a copy counts once.
        """

    def _merged_rows(self: Rows, world: World, free: int) -> tuple[Rows, NDArray[np.bool_]]:
        """Returns a copy with the rows of all ranks, and which of this rank's remain: bool, shape (n,). A collective.

        Only the last ``free`` rows of this rank can be left out.
        """
        every = world.gather((self.seen, free, self.left_out, self.lost))
        of_rows, of_free, of_left_out, of_lost = zip(*every, strict=True)
        kept, different = each_once(of_rows, of_free, self.compared)
        other = copy.copy(self)
        SampleRows.clear(other)
        other.of_ranks = [rows[own] for rows, own in zip(of_rows, kept, strict=True)]
        other._parts = other.of_ranks
        other.left_out = sum(of_left_out)
        if different > other._most_random_copies():
            other.left_out += different
        other.lost = any(of_lost)
        return other, kept[world.rank]

    def _most_random_copies(self) -> int:
        """How many copies of samples may differ between ranks without a warning."""
        return 0

    def warnings(self, ranks: Sequence[int]) -> Iterator[str]:
        """Warnings about those that are missing, count twice, or that several of the ``ranks`` have."""
        if self.lost:
            yield f"{self.noun} from before the checkpoint are missing from the value"
        if again := added_again(self.seen):
            yield (
                f"{again} {self.noun} that were added after a checkpoint was loaded are in it too and count twice: "
                f"{self.reset} after loading it, or omit persistent(True)"
            )
        if self.left_out:
            yield (
                f"{self.left_out} {self.noun} were left out, because other ones have the same index: {self.reset} "
                "before the next epoch and after loading a checkpoint, and give each sample of all ranks and data sets "
                "a number of its own (if a sampler repeated samples whose images are random, none is missing)"
            )

    # Checkpoints.

    def totals(self) -> State:
        """What `absorb` adds, as CPU tensors. Call `flush` first."""
        seen = self.seen
        columns = {name: torch.from_numpy(seen[name].copy()) for name in self.columns}
        return {**columns, _LEFT_OUT: torch.tensor(self.left_out, device="cpu")}

    @abstractmethod
    def absorb(self, totals: State, restored: bool = False) -> None:
        """Adds what `totals` returned, ``restored`` from a checkpoint or of another metric.

        An AttributeError, IndexError, KeyError, TypeError or ValueError is raised if it is damaged.
        """

    def _rows_of(self, totals: State, restored: bool) -> tuple[NDArray[np.void], int]:
        """Returns the rows that are in `totals`, and how many were left out."""
        rows = self._blank(len(totals["hash"]))
        for name, kind in self.columns.items():
            column = totals[name].cpu().numpy()
            if column.shape != rows.shape or column.dtype != kind or not np.isfinite(column).all():
                raise ValueError(f"{name} has {column.dtype} of shape {column.shape}")
            rows[name] = column
        rows["restored"] = restored
        return rows, int(totals[_LEFT_OUT])

    def join(self: Rows, other: Rows) -> None:
        """Adds those of another metric."""
        self.lost |= other.lost
        if other.count:
            self.absorb(other.totals())


def each_once(
    of_ranks: Sequence[NDArray[np.void]], free: Sequence[int], compared: str
) -> tuple[list[NDArray[np.bool_]], int]:
    """Returns which rows of each rank to keep, so that each sample remains once: bool arrays, one for each rank.

    Also returns how many of the others differ in the ``compared`` column from the one that is kept of their sample. Of
    each rank only the last ``free`` rows can be left out. Rows whose sample is unknown remain.
    """
    rows = np.concatenate(of_ranks)
    samples, marks = rows["sample"], rows[compared]
    must = np.concatenate([np.arange(len(own)) < len(own) - last for own, last in zip(of_ranks, free, strict=True)])
    order = np.lexsort((~must, samples))  # those that must remain come first, then those of the first rank
    starts = np.ones(len(order), dtype=bool)
    starts[1:] = np.diff(samples[order]) != 0
    keep = must | (samples == UNKNOWN)
    keep[order[starts]] = True
    kept = order[starts][np.cumsum(starts) - 1]  # of the sample of each row in this order
    different = int(((marks[kept] != marks[order]) & ~keep[order]).sum())
    return np.split(keep, np.cumsum([len(own) for own in of_ranks])[:-1]), different


def added_again(rows: NDArray[np.void]) -> int:
    """Returns how many of the added hashes a checkpoint had as well; 0 if they can be those of duplicates."""
    restored, added = (rows["hash"][rows["restored"] == old] for old in (True, False))
    again = len(np.intersect1d(added, restored))
    return again if again > max(3, min(len(restored), len(added)) // 4) else 0


def on_several(of_ranks: Sequence[NDArray[np.void]], ranks: Sequence[int]) -> tuple[int, str]:
    """Returns how many hashes of each of the ``ranks`` are on another one too, and which ranks these are."""
    distinct = [np.unique(rows["hash"]) for rows in of_ranks]
    hashes, owners = np.unique(np.concatenate([np.empty(0, np.int64), *distinct]), return_counts=True)
    shared = [int(np.isin(rows["hash"], hashes[owners > 1]).sum()) for rows in of_ranks]
    return sum(shared), listed_ranks([rank for rank, number in zip(ranks, shared, strict=False) if number])
