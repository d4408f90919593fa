"""What the ranks' metrics do together: they meet, are of one mind, and put their images together for a while."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from fidtool.errors import InputError, RunError, as_fidtool_error
from fidtool.training.base import PlainMetric, metric_base
from fidtool.training.group import Group, Ranks, ranks_of, refuse_failed
from fidtool.training.sums import Sums, check_agreement
from fidtool.validation import LONGEST_SECONDS

if TYPE_CHECKING:
    Base = PlainMetric
else:
    Base = metric_base()

_made, _made_local = itertools.count(1), itertools.count(1)
"""Number metrics without a name, so that one rank's cannot be taken for another of the next rank's."""
_REMEDY = (
    "call it on every rank, outside `if rank == 0` and @rank_zero_only; or make the metric with sync_on_compute=False "
    "to have this rank's own value"
)


class SyncedMetric(Base):
    """A metric whose `Sums` can be those of all ranks.

    Args:
        sums: this rank's.
        sync_on_compute, sync_timeout, process_group, name: see `FrechetInceptionDistance`.

    Raises:
        InputError: a time-out that is no time.
    """

    def __init__(
        self, sums: Sums, sync_on_compute: bool, sync_timeout: float, process_group: Group, name: str | None
    ) -> None:
        super().__init__(sync_on_compute=sync_on_compute, process_group=process_group, compute_with_cache=False)
        if not (isinstance(sync_timeout, (int, float)) and 0 < sync_timeout <= LONGEST_SECONDS):
            limits = f"above 0, {LONGEST_SECONDS:g} at most"
            raise InputError(f"sync_timeout must be a number of seconds {limits}, not {sync_timeout!r}")
        self._to_sync = False  # torchmetrics' own synchronising has no part in this
        self.sync_timeout = sync_timeout
        self._name, self._called_by = name, name or _numbered(sync_on_compute)
        self._sums = sums
        self._own: Sums | None = None  # while `_sums` are those of all ranks
        self._updates = 0

    def _called(self, method: str) -> str:
        """What the ranks meet for."""
        return f"FrechetInceptionDistance.{method} of metric {self._called_by}"

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy is a metric of its own."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._called_by = self._name or _numbered(self.sync_on_compute)

    def merge_state(self, incoming_state: object) -> None:
        """Adds another metric's images to this one's.

        Raises:
            fidtool.InputError: it is no metric of this kind, or has another network, protocol or real statistics.
        """
        self._refuse_while_synced("merge_state()")
        if not isinstance(incoming_state, SyncedMetric):
            raise InputError("merge_state takes another fidtool.training.FrechetInceptionDistance")
        with aside():
            self._sums.absorb(incoming_state._sums)
        self._updates += incoming_state._updates

    def abandon(self, reason: str) -> None:
        """In the place of ``compute``, on a rank that cannot: the others learn why, at once. They raise; this does not.

        Args:
            reason: what went wrong here.
        """
        ranks = ranks_of(self.process_group)
        if self.sync_on_compute:
            with contextlib.suppress(RunError):
                ranks.meet(
                    self._called("compute()"),
                    {**self._sums.word(), "failed": reason, "lost": False},
                    self.sync_timeout,
                    _REMEDY,
                )

    def _meet(self, ranks: Ranks, purpose: str) -> bool:
        """All ranks are here, of one mind, and have nothing left to do on their own.

        Returns:
            Whether a rank lost images when a checkpoint was read.
        """
        failure: Exception | None = None
        try:
            self._sums.flush()
        except Exception as error:  # out of memory, say: the others are told of anything
            failure = error
        failed = "" if failure is None else str(as_fidtool_error(failure))
        word = {**self._sums.word(), "failed": failed, "lost": self._sums.lost}
        words = ranks.meet(purpose, word, self.sync_timeout, _REMEDY)
        if failure is not None:
            raise failure
        refuse_failed(words, ranks.ranks)
        check_agreement(words, [f"rank {rank}" for rank in ranks.ranks])
        return any(word["lost"] for word in words)

    def _refuse_while_synced(self, call: str) -> None:
        if self._own is not None:
            raise InputError(f"{call} between sync() and unsync() would be forgotten")

    def sync(
        self,
        dist_sync_fn: object = None,
        process_group: Group = None,
        should_sync: bool = True,
        distributed_available: object = None,
    ) -> None:
        """Puts the images of all ranks in the place of this one's until ``unsync``. A collective like ``compute``.

        Args:
            dist_sync_fn, process_group, distributed_available: as torchmetrics has them, of no effect here.
            should_sync: False does nothing.
        """
        ranks = ranks_of(self.process_group)
        if not should_sync or ranks.size == 1:
            return
        if self._own is not None:
            raise InputError("the metric is synced already: unsync() comes first")
        with aside():
            purpose = self._called("sync()")
            self._meet(ranks, purpose)
            with ranks.world(purpose) as world:
                self._own, self._sums = self._sums, self._sums.merged(world)

    def unsync(self, should_unsync: bool = True) -> None:
        """Back to this rank's own images."""
        if should_unsync and self._own is not None:
            self._sums, self._own = self._own, None

    @contextlib.contextmanager
    def sync_context(
        self,
        dist_sync_fn: object = None,
        process_group: Group = None,
        should_sync: bool = True,
        should_unsync: bool = True,
        distributed_available: object = None,
    ) -> Iterator[None]:
        """``sync`` for the length of a ``with`` block: a ``state_dict`` taken in it holds the images of all ranks."""
        self.sync(should_sync=should_sync)
        try:
            yield
        finally:
            self.unsync(should_sync and should_unsync)


def _numbered(synced: bool) -> str:
    """Metrics of one rank alone, made on that rank only, do not shift the numbers of the others."""
    return str(next(_made)) if synced else f"{next(_made_local)} of those made with sync_on_compute=False"


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """Neither the program's graph nor its inference mode, whose tensors cannot be added to later."""
    with torch.inference_mode(False), torch.no_grad():
        yield
