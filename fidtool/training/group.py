"""The ranks of a training program: who they are, how they wait for each other, and what carries their tensors."""

from __future__ import annotations

import atexit
import contextlib
import json
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from fidtool.distributed.failure import LostContactError
from fidtool.distributed.launch import Launch, discover, restart_count
from fidtool.distributed.rendezvous import connect_to_store_of, first_line
from fidtool.distributed.signals import call_with_timeout
from fidtool.distributed.world import World
from fidtool.errors import InputError, RunError, on_every_rank, warn_program
from fidtool.torch_internals import default_store, new_gloo_group
from fidtool.validation import LONGEST_SECONDS

if TYPE_CHECKING:
    from torch.distributed import Store

Group = Any
"""A ``torch.distributed.ProcessGroup``, or None for all ranks."""
DEFAULT_TIMEOUT = 60.0
"""Seconds that ranks wait for each other by default."""
_TRANSPORT_SECONDS = 300.0
"""Once all ranks are there, how long one of them may keep the others waiting inside a collective."""
_LONGEST_POLL_SECONDS = 0.1
_ANSWER_SECONDS = 10.0
_LEAVING_SECONDS = 1.0
_MOST_NAMED = 8

_rounds: dict[tuple[int, ...], int] = {}
"""How many meetings this process has had with which ranks, over all its process groups."""
_warned_without_group = False
_known: dict[tuple[int, ...], tuple[Group, Ranks]] = {}
"""Of each group of ranks: torch's default group when they first met, and their `Ranks`."""


class AbsentRanksError(RunError):
    """Some ranks did not come to a collective in time.

    Attributes:
        missing: the ranks that did not come, in the numbers of the whole run.
    """

    def __init__(self, message: str, missing: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.missing = tuple(missing)


@dataclass
class _Arrival:
    """One rank's wait for the others.

    Attributes:
        entry: what the rank has come for, and what it brings.
        seconds: how long it waits.
        deadline: when that is over, on the monotonic clock.
        settled: there is a verdict.
        over: the rank was interrupted, and the thread that waits for it must end.
    """

    entry: dict[str, Any]
    seconds: float
    deadline: float
    settled: bool = False
    over: threading.Event = field(default_factory=threading.Event)


class GroupRendezvous:
    """Where the ranks of one process group meet before a collective: torch's key-value store, where waiting can end.

    A rank cannot leave a collective that another rank never enters. So each rank first writes into the store what it
    has come for. The last to come finds all of them there and decides that they go on; a rank that has waited too long
    decides that they give up. The first decision in the store holds for all: either every rank enters the collective,
    or none does.

    Args:
        store: a client for this object alone, with keys that no other group uses.
        ranks: the group's ranks in the numbers of the whole run.
        group_rank: this rank's place among them.

    Attributes:
        round: number of the next exchange.
    """

    def __init__(self, store: Store, ranks: Sequence[int], group_rank: int) -> None:
        self._store, self._ranks, self._group_rank = store, tuple(ranks), group_rank
        self.round = 0
        self._one_at_a_time = threading.Lock()

    def continue_from(self, earlier: int) -> None:
        """Takes up an earlier process group's count of rounds where this store has seen them, too.

        A program may give up its process group and make another, which finds the first one's keys, or an empty store.
        """
        marker = f"used/{self._group_rank}"
        self.round = earlier if self._store.check([marker]) else 0
        self._store.set(marker, "1")

    def exchange(self, purpose: str, payload: dict[str, Any], seconds: float, remedy: str) -> list[dict[str, Any]]:
        """Waits until every rank has come, and returns what each brought. A collective that cannot hang.

        Args:
            purpose: what this rank has come for, for messages; all must have come for the same.
            payload: what it lets the others know, JSON.
            seconds: how long the others may take.
            remedy: what to do if they do not come.

        Returns:
            Every rank's payload, in the group's order.

        Raises:
            InputError: ``seconds`` is out of range.
            AbsentRanksError: some did not come in time.
            RunError: they came for different things, or the store does not answer.
        """
        if not 0 < seconds <= LONGEST_SECONDS:
            raise InputError(f"a time-out is a number of seconds from 0 to {LONGEST_SECONDS:g}, not {seconds}")
        with self._one_at_a_time:
            arrival = _Arrival({"purpose": purpose, "payload": payload}, seconds, time.monotonic() + seconds)
            try:
                self.round, verdict = call_with_timeout(
                    lambda: self._meet(self.round, arrival), seconds + _ANSWER_SECONDS
                )
            except TimeoutError:
                raise RunError(f"{purpose}: the ranks' meeting point does not answer: is rank 0 alive?") from None
            except RuntimeError as error:
                gone = f"the ranks' meeting point is gone ({first_line(error)}): did rank 0 or the launcher end?"
                raise RunError(f"{purpose}: {gone}") from None
            finally:
                self._leave(arrival)
        if "missing" in verdict:
            raise self._absent(purpose, verdict, remedy)
        self._check_purposes(verdict["came"])
        return [entry["payload"] for entry in verdict["came"]]

    def _leave(self, arrival: _Arrival) -> None:
        """A rank that was interrupted while it waited is not there any more."""
        if not arrival.settled:
            arrival.over.set()
            key, nowhere = f"here/{self._group_rank}", json.dumps({"round": -1})
            with contextlib.suppress(TimeoutError, RuntimeError):
                call_with_timeout(lambda: self._store.set(key, nowhere), _LEAVING_SECONDS)

    def _meet(self, number: int, arrival: _Arrival) -> tuple[int, dict[str, Any]]:
        """The verdict of the first round from ``number`` on that this rank was in time for, and the next round."""
        while True:
            verdict = self._join_round(number, arrival)
            number += 1
            if "came" in verdict or self._group_rank in verdict["here"]:
                arrival.settled = True
                return number, verdict
            # The others had given that round up before this rank came, and may be in a later one.

    def _join_round(self, number: int, arrival: _Arrival) -> dict[str, Any]:
        key, size = f"verdict/{number}", len(self._ranks)
        self._store.set(f"here/{self._group_rank}", json.dumps({**arrival.entry, "round": number}))
        if len(self._present(number)) == size or not self._is_decided(key, arrival):
            return self._decide(number, arrival)
        verdict: dict[str, Any] = json.loads(self._store.get(key))
        return verdict

    def _is_decided(self, key: str, arrival: _Arrival) -> bool:
        """Whether ``key`` appears before the deadline. The store's own way of waiting fills the log with warnings."""
        began = time.monotonic()
        while not self._store.check([key]):
            now = time.monotonic()
            if arrival.over.is_set():
                raise RunError("interrupted")
            if now >= arrival.deadline:
                return False
            # Ranks that are in step meet within milliseconds; a longer wait may be noticed a tenth later.
            time.sleep(min(_LONGEST_POLL_SECONDS, 0.0002 + 0.1 * (now - began), arrival.deadline - now))
        return True

    def _present(self, number: int) -> dict[int, dict[str, Any]]:
        """The entries of those who have come to this round, by group rank."""
        keys = [f"here/{place}" for place in range(len(self._ranks))]
        if self._store.check(keys) and self._store.has_extended_api():  # type: ignore[attr-defined]
            values = dict(enumerate(self._store.multi_get(keys)))
        else:
            values = {place: self._store.get(key) for place, key in enumerate(keys) if self._store.check([key])}
        entries = {place: json.loads(value) for place, value in values.items()}
        return {place: entry for place, entry in entries.items() if entry["round"] == number}

    def _decide(self, number: int, arrival: _Arrival) -> dict[str, Any]:
        """Makes what this rank sees the round's verdict, unless another was first."""
        came = self._present(number)
        missing = [place for place in range(len(self._ranks)) if place not in came]
        verdict: dict[str, Any] = {"came": [came[place] for place in sorted(came)]}
        if missing:
            verdict = {"here": sorted(came), "missing": missing, "by": self._group_rank, "seconds": arrival.seconds}
        verdict = json.loads(self._store.compare_set(f"verdict/{number}", "", json.dumps(verdict)))
        if "came" in verdict and number:  # everybody has read the last one
            with contextlib.suppress(RuntimeError):  # stores of files cannot delete
                self._store.delete_key(f"verdict/{number - 1}")
        return verdict

    def _absent(self, purpose: str, verdict: dict[str, Any], remedy: str) -> AbsentRanksError:
        missing = [self._ranks[place] for place in verdict["missing"]]
        by = "" if verdict["by"] == self._group_rank else f", says rank {self._ranks[verdict['by']]}"
        waited = f"waited {verdict['seconds']:g} s in vain for {_listed(missing)} of {len(self._ranks)}{by}"
        return AbsentRanksError(f"{purpose} {waited}: {remedy}", missing)

    def _check_purposes(self, came: Sequence[dict[str, Any]]) -> None:
        wanted: dict[str, list[int]] = {}
        for rank, entry in zip(self._ranks, came, strict=True):
            wanted.setdefault(entry["purpose"], []).append(rank)
        if len(wanted) > 1:
            parts = [f"{_listed(ranks)} came to {purpose}" for purpose, ranks in wanted.items()]
            advice = "every rank must make the same calls in the same order"
            raise on_every_rank(RunError(f"the ranks are at different points: {', '.join(parts)}; {advice}"))


def _listed(ranks: Sequence[int]) -> str:
    more = len(ranks) - _MOST_NAMED
    named = ", ".join(map(str, ranks[:_MOST_NAMED])) + (f" and {more} others" if more > 0 else "")
    return f"rank {named}" if len(ranks) == 1 else f"ranks {named}"


class Ranks:
    """The ranks of a process group of torch's, or this process alone where there is none.

    Attributes:
        ranks: the group's ranks in the numbers of the whole run.
        group_rank: this rank's place among them.
    """

    def __init__(self, group: Group) -> None:
        self.ranks: tuple[int, ...] = (0,)
        self.group_rank = 0
        self._rendezvous: GroupRendezvous | None = None
        self._store: Any = None
        self._gloo: Any = None
        self._calls: dict[str, int] = {}
        if _initialized():
            self.ranks = tuple(dist.get_process_group_ranks(group or dist.group.WORLD))
            if dist.get_rank() not in self.ranks:
                raise InputError(f"rank {dist.get_rank()} is not in the process group of ranks {list(self.ranks)}")
            self.group_rank = self.ranks.index(dist.get_rank())

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def rank(self) -> int:
        """This rank, in the numbers of the whole run."""
        return self.ranks[self.group_rank]

    def calls(self, purpose: str) -> int:
        """How often the ranks have met, or were to meet, for ``purpose``."""
        return self._calls.get(purpose, 0)

    def exchange(
        self, purpose: str, payload: dict[str, Any], seconds: float, remedy: str, counted: bool = True
    ) -> list[dict[str, Any]]:
        """See `GroupRendezvous.exchange`; a process alone gets its own payload back.

        Args:
            counted: ranks must agree on how often they have come to ``purpose``. One that is a call behind, after an
                error that its program has caught, would bring what belongs to another call: each rank then raises
                once, and the next call is the same one for all.

        Raises:
            RunError: ranks that are a call behind, besides what `GroupRendezvous.exchange` raises.
        """
        if self.size == 1:
            return [payload]
        rendezvous = self._rendezvous or self._begin()
        number = 0
        if counted:
            number = self._calls[purpose] = self.calls(purpose) + 1
        try:
            mine = {"call": number, "gloo": self._gloo is not None, "payload": payload}
            entries = rendezvous.exchange(purpose, mine, seconds, remedy)
        finally:
            _rounds[self.ranks] = rendezvous.round
        if not all(entry["gloo"] for entry in entries):
            self._gloo = None  # some rank has lost it: all make a new one
        latest = max(entry["call"] for entry in entries)
        for rank, entry in zip(self.ranks, entries, strict=True):
            if entry["call"] != latest:
                self._calls[purpose] = latest
                behind = f"rank {rank} comes to {purpose} for call number {entry['call']}, others for number {latest}"
                raise on_every_rank(RunError(f"{behind}: it missed one that failed; nothing was exchanged, call again"))
        return [entry["payload"] for entry in entries]

    def _begin(self) -> GroupRendezvous:
        default = default_store()
        if default is None:
            raise RunError(f"torch {torch.__version__} does not tell the store of its process group")
        name = f"fidtool-training/{restart_count()}/{'-'.join(map(str, self.ranks))}"
        self._store = dist.PrefixStore(name, connect_to_store_of(default) or default)
        self._rendezvous = GroupRendezvous(self._store, self.ranks, self.group_rank)
        self._rendezvous.continue_from(_rounds.get(self.ranks, 0))
        return self._rendezvous

    @contextlib.contextmanager
    def world(self, purpose: str, nccl: Group = None) -> Iterator[World]:
        """The ranks as the rest of fidtool knows them, for the length of a ``with`` block right after a rendezvous.

        Args:
            purpose: what to call it where a collective breaks.
            nccl: an NCCL group for tensors of GPUs; None is a gloo group that nobody else uses.

        Raises:
            RunError: a rank was lost.
        """
        if self.size == 1:
            yield World(Launch())
            return
        # Views must hold their base while gloo has them, which they do not in inference mode.
        with outside_autograd():
            try:
                if nccl is None and self._gloo is None:
                    self._gloo = self._new_gloo()
                # One for each time: a World that has seen a failure is of no use any more.
                launch = Launch("env", self.group_rank, self.size, self.group_rank, self.size)
                world = World(launch, group=self._gloo if nccl is None else nccl)
                world.backend = "gloo" if nccl is None else "nccl"
                yield world
            except LostContactError as error:
                self._gloo = None
                lost = f"a rank was lost, or kept the others waiting for more than {_TRANSPORT_SECONDS:.0f} s"
                raise RunError(f"{purpose}: {lost} ({first_line(error.__cause__ or error)})") from error

    def _new_gloo(self) -> Any:
        assert self._rendezvous is not None
        try:  # under keys of its own: those of an earlier one name sockets that are gone
            store = dist.PrefixStore(f"gloo/{self._rendezvous.round}", self._store)
            return new_gloo_group(store, self.group_rank, self.size, _TRANSPORT_SECONDS)
        except RuntimeError as error:
            raise LostContactError(first_line(error)) from error


@contextlib.contextmanager
def outside_autograd() -> Iterator[None]:
    """Neither autograd nor inference mode, whose tensors could not be changed in place later."""
    with torch.inference_mode(False), torch.no_grad():
        yield


def _initialized() -> bool:
    return dist.is_available() and dist.is_initialized()


def nccl_group(tensor: torch.Tensor, group: Group) -> Group:
    """``group`` itself where ``tensor`` lives on a GPU and NCCL can carry it; else None."""
    if tensor.device.type != "cuda" or not _initialized():
        return None
    group = group or dist.group.WORLD
    return group if "cuda:nccl" in str(dist.get_backend_config(group)) else None


def ranks_of(group: Group = None) -> Ranks:
    """The ranks of ``group``; the same object as long as the program keeps its process group.

    Raises:
        InputError: this process is not in the group.
    """
    made = Ranks(group)
    if made.size == 1:
        return made
    default, known = _known.get(made.ranks, (None, made))
    if default is not dist.group.WORLD:  # torch was given another process group since
        known = made
        _known[made.ranks] = (dist.group.WORLD, made)
    return known


def refuse_failed(payloads: Sequence[dict[str, Any]], ranks: Sequence[int]) -> None:
    """Raises a RunError with what went wrong on the first rank whose payload says that it cannot go on."""
    for rank, payload in zip(ranks, payloads, strict=True):
        if payload["failed"]:
            raise RunError(f"rank {rank} failed: {payload['failed']}")


def group_rank_and_size(group: Group) -> tuple[int, int]:
    """This rank's place in ``group`` and the group's size; ``(0, 1)`` for a rank outside, which has only itself."""
    try:
        ranks = ranks_of(group)
    except InputError:
        return 0, 1
    return ranks.group_rank, ranks.size


@atexit.register
def _let_go() -> None:
    """gloo's threads must have ended before the interpreter does."""
    _known.clear()


def warn_without_group(what: str) -> None:
    """Warns once where the launcher started several processes and torch has no process group."""
    global _warned_without_group
    if not _warned_without_group and (size := launched_without_group()):
        _warned_without_group = True
        warn_program(f"{what} is that of one process of {size}: call torch.distributed.init_process_group first")


def launched_without_group() -> int:
    """How many processes the launcher started, if several and torch has no process group; else 0."""
    if _initialized():
        return 0
    with contextlib.suppress(InputError):
        size = discover().world_size
        return size if size > 1 else 0
    return 0
