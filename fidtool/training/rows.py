"""What is known of the images or pairs that were added: each sample once, merged over ranks, saved
and restored.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fidtool.distributed.rendezvous import format_ranks
from fidtool.distributed.world import World
from fidtool.errors import ResultWarning

State = dict[str, Tensor]
Rows = TypeVar("Rows", bound="SampleRows")
Records = NDArray[np.void]
Mask = NDArray[np.bool_]
Numbers = NDArray[np.int64]

# In place of the number of a sample.
UNKNOWN = -1
# Why several ranks have the same samples.
PADDED = (
    "a sampler repeats samples so that all ranks have equally many (DistributedSampler, which "
    "Lightning inserts, or accelerate's even_batches): pass the numbers of the samples to "
    "update(…, index=), and each sample counts once"
)
LEFT_OUT = "left_out"


class SampleRows:
    """A row for each image or pair that was added on one rank, or after a merge on all ranks.

    Attributes:
        columns: what is known of each: a hash, and the number of its sample or `UNKNOWN`. A
            subclass may have more. The array also has ``restored``, whether it is from a
            checkpoint.
        compared: the column by which the copies of a sample that two ranks have are compared.
        noun: what a row stands for, in the plural.
        reset: how to discard the rows, for messages.
        parts: the rows in the order in which they were added; after a merge, those of each rank.
        left_out: number of those that were left out although another one has their number.
        lost: some were lost when a checkpoint was loaded.
    """

    columns: ClassVar[dict[str, type[np.generic]]] = {"hash": np.int64, "sample": np.int64}
    compared: ClassVar[str] = "hash"
    noun: str
    reset: str = "call reset()"
    _device = torch.device("cpu")

    def empty_copy(self: Rows) -> Rows:
        """Return one like this, without rows."""
        other = copy.copy(self)
        other.clear()
        return other

    def clear(self) -> None:
        self.parts: list[Records] = []
        self.left_out = 0
        self.lost = False
        self._hashes: dict[int, int] = {}  # by the numbers of the samples

    def to(self, device: torch.device) -> None:
        self._device = device

    def flush(self) -> None:
        """Finish the work on what was added."""

    def _blank(self, count: int) -> Records:
        return np.zeros(count, [*self.columns.items(), ("restored", np.bool_)])

    @property
    def seen(self) -> Records:
        """The rows, a structured array of shape (n,)."""
        return np.concatenate([self._blank(0), *self.parts])

    @property
    def count(self) -> int:
        return sum(map(len, self.parts))

    def _append(self, rows: Records) -> None:
        """Add rows, except those of samples that were added before."""
        samples = find_new_samples(rows, "hash", self._hashes)
        self.parts.append(rows[samples.new])
        self._record_samples(samples)

    def _record_samples(self, samples: NewSamples) -> None:
        self._hashes |= samples.added
        self.left_out += samples.different

    # Synchronisation of all ranks.

    def merge_ranks(self: Rows, world: World) -> Rows:
        """Return those of all ranks, without changing this object. A collective; call `flush`
        first.

        A sample of which several ranks have a copy counts once.
        """
        return self._merge_rows(world, self.count)[0]

    def _merge_rows(self: Rows, world: World, free: int) -> tuple[Rows, Mask]:
        """Return a copy with the rows of all ranks, and which of this rank's last ``free`` rows
        remain: only these can be left out. A collective.
        """
        bound, rest = np.split(self.seen, [self.count - free])
        of_ranks = world.gather((bound, rest, self.left_out, self.lost))
        all_bound, all_rest, left_out, lost = zip(*of_ranks, strict=True)
        new_samples = select_new_samples(all_bound, all_rest, self.compared)
        other = self.empty_copy()
        for own, rows, samples in zip(all_bound, all_rest, new_samples, strict=True):
            other.parts.append(np.concatenate([own, rows[samples.new]]))
        other.left_out = sum(left_out)
        other.lost = any(lost)
        different = sum(samples.different for samples in new_samples)
        if different > other._most_random_copies():
            other.left_out += different
        return other, new_samples[world.rank].new

    def _most_random_copies(self) -> int:
        """How many copies of samples may differ between ranks without a warning."""
        return 0

    def warnings(self, ranks: Sequence[int]) -> Iterator[ResultWarning]:
        """Warnings about those that are missing, count twice, or that several of the ``ranks``
        have.
        """
        if self.lost:
            yield ResultWarning(
                "", f"{self.noun} from before the checkpoint are missing from the value"
            )
        if again := count_readded(self.seen):
            yield ResultWarning(
                "",
                f"{again} {self.noun} that were added after loading a checkpoint are in the "
                f"checkpoint too and count twice: {self.reset} after loading it, or omit "
                "persistent(True)",
            )
        if self.left_out:
            yield ResultWarning(
                "",
                f"{self.left_out} {self.noun} were left out, because others have the same index: "
                f"{self.reset} before the next epoch and after loading a checkpoint, and give each "
                "sample of all ranks and datasets its own number (if a sampler repeated samples "
                "whose images are random, none is missing)",
            )

    # Checkpoints.

    def totals(self) -> State:
        """What `absorb` adds, as CPU tensors. Call `flush` first."""
        seen = self.seen
        totals = {name: torch.from_numpy(seen[name].copy()) for name in self.columns}
        totals[LEFT_OUT] = torch.tensor(self.left_out, device="cpu")
        return totals

    def absorb(self, totals: State, restored: bool | Mask) -> None:
        """Add what `totals` returned; ``restored`` is which rows are from a checkpoint."""
        self._append(self._make_rows(totals, restored))
        self.left_out += int(totals[LEFT_OUT])

    def _make_rows(self, totals: State, restored: bool | Mask) -> Records:
        rows = self._blank(len(totals["hash"]))
        rows["restored"] = restored
        for name in self.columns:
            rows[name] = totals[name].cpu().numpy()
        return rows

    def join(self: Rows, other: Rows) -> None:
        """Add those of another metric."""
        self.lost |= other.lost
        if other.count:
            self.absorb(other.totals(), other.seen["restored"])


class NewSamples(NamedTuple):
    """Which rows of an array are of new samples.

    Attributes:
        new: whether a row is to be added: bool array of shape (n,).
        added: what was compared of these rows, by the number of the sample.
        different: how many of the others differ from the first row of their sample.
    """

    new: Mask
    added: dict[int, int]
    different: int


def find_new_samples(rows: Records, compared: str, known: Mapping[int, int]) -> NewSamples:
    """Find the rows of samples that are neither ``known`` nor those of earlier rows, or whose
    sample is unknown.
    """
    new = np.ones(len(rows), dtype=bool)
    added: dict[int, int] = {}
    different = 0
    for place, (sample, mark) in enumerate(rows[["sample", compared]].tolist()):
        first = known.get(sample, added.get(sample))
        if first is not None:
            new[place] = False
            different += first != mark
        elif sample != UNKNOWN:
            added[sample] = mark
    return NewSamples(new, added, different)


def select_new_samples(
    bound: Sequence[Records], rest: Sequence[Records], compared: str
) -> list[NewSamples]:
    """Return which of the ``rest`` of each rank's rows to keep, so that each sample remains once.

    The ``bound`` rows of each rank remain in any case.
    """
    known = find_new_samples(np.concatenate(bound), compared, {}).added
    of_ranks = []
    for rows in rest:
        samples = find_new_samples(rows, compared, known)
        known |= samples.added
        of_ranks.append(samples)
    return of_ranks


def count_readded(rows: Records) -> int:
    """Return how many of the added hashes a checkpoint had as well; 0 if they can be those of
    duplicates.
    """
    hashes = rows["hash"]
    restored = hashes[rows["restored"]]
    added = hashes[~rows["restored"]]
    again = len(np.intersect1d(added, restored))
    usual = max(3, min(len(restored), len(added)) // 4)
    return again if again > usual else 0


def count_shared(of_ranks: Sequence[Records], ranks: Sequence[int]) -> tuple[int, str]:
    """Return how many hashes of each of the ``ranks`` are on another one too, and which ranks
    these are.
    """
    distinct = np.concatenate([np.unique(rows["hash"]) for rows in of_ranks])
    hashes, owners = np.unique(distinct, return_counts=True)
    total = 0
    sharing = []
    for rank, rows in zip(ranks, of_ranks, strict=False):
        if shared := int(np.isin(rows["hash"], hashes[owners > 1]).sum()):
            total += shared
            sharing.append(rank)
    return total, format_ranks(sharing)
