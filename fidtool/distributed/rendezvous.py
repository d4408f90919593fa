"""How ranks meet: connections to torch's key-value store, and the wait there until all of them have come."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from fidtool.distributed.failure import (
    Failure,
    add_location,
    post_failure,
    printing_claimed,
    read_failure,
)
from fidtool.distributed.launch import Launch, discover, launcher_serves_store, restart_count
from fidtool.distributed.signals import call_with_timeout, raise_if_received
from fidtool.distributed.watchdog import Process
from fidtool.errors import FidtoolError, InputError, LaunchError, RunError, on_every_rank
from fidtool.validation import LONGEST_SECONDS

if TYPE_CHECKING:
    from torch.distributed import Store, TCPStore

_RETRY_SECONDS = 0.3
_GROUP_STORE_SECONDS = 30.0
_LONGEST_POLL_SECONDS = 0.1
_ANSWER_SECONDS = 10.0
_LEAVING_SECONDS = 1.0
_MOST_NAMED = 8
_stores: dict[tuple[str, int], TCPStore] = {}
"""Stores by address. Rank zero serves its own for as long as the process lives."""


def _address(launch: Launch) -> tuple[str, int]:
    """Host and port at which rank zero, or torchrun, serves the store.

    Raises:
        RunError: the port is not a number.
    """
    if launch.init_method.startswith("tcp://"):
        host, _, port = launch.init_method.removeprefix("tcp://").rpartition(":")
    else:
        host, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    try:
        return host, int(port)
    except ValueError:
        raise RunError(f"MASTER_PORT should be a number but is {port!r}") from None


def key_prefix(run: int) -> str:
    """Prefix of the keys of this process's run number ``run``, which differs where torchrun restarts the ranks."""
    return f"fidtool/{restart_count()}/{run}"


def connect(launch: Launch, seconds: float) -> TCPStore:
    """Serves the store, on rank zero without torchrun, or connects to it.

    Raises:
        RunError: no store answers within ``seconds``, or its port is taken.
    """
    address = _address(launch)
    if address not in _stores:
        serve = launch.rank == 0 and not (launcher_serves_store() and launch.init_method == "env://")
        deadline = time.monotonic() + seconds
        if not serve:
            problem = _await_server(address, deadline, interruptible=True)
            if problem:
                raise RunError(_no_contact(launch, address, seconds, problem))
        try:
            left = max(deadline - time.monotonic(), 1.0)
            _stores[address] = call_with_timeout(lambda: _connect_to(address, left, serve), left, interruptible=True)
        except TimeoutError:
            problem = "no such address here" if serve else "whatever answers there is no store of torch's"
            raise RunError(_no_contact(launch, address, seconds, problem)) from None
        except (RuntimeError, ValueError) as error:
            advice = "; is the port taken? choose another MASTER_PORT" if serve else ""
            raise RunError(_no_contact(launch, address, seconds, f"{first_line(error)}{advice}")) from error
    return _stores[address]


def _connect_to(address: tuple[str, int], seconds: float, serve: bool = False) -> TCPStore:
    """A new connection: a client that waits blocks every other thread that uses it."""
    from torch.distributed import TCPStore

    return TCPStore(
        *address, is_master=serve, timeout=timedelta(seconds=seconds), wait_for_workers=False, multi_tenant=True
    )


def connect_again(launch: Launch, seconds: float) -> TCPStore:
    """A second connection to the store that `connect` returned.

    Raises:
        RunError: it does not answer within ``seconds``.
    """
    address = _address(launch)
    try:
        return call_with_timeout(lambda: _connect_to(address, seconds), seconds, interruptible=True)
    except (TimeoutError, RuntimeError, ValueError) as error:
        raise RunError(_no_contact(launch, address, seconds, first_line(error))) from error


def connect_to_store_of(store: Store) -> Store | None:
    """A new connection to ``store``, that of a process group; None if it is not a TCPStore.

    Raises:
        RunError: it does not answer.
    """
    from torch.distributed import PrefixStore, TCPStore

    while isinstance(store, PrefixStore):
        store = store.underlying_store
    if not isinstance(store, TCPStore):
        return None
    address = (store.host, store.port)
    try:
        return call_with_timeout(lambda: _connect_to(address, _GROUP_STORE_SECONDS), _GROUP_STORE_SECONDS)
    except (TimeoutError, RuntimeError) as error:
        raise RunError(f"the store of the process group at {address[0]}:{address[1]} does not answer") from error


def _await_server(address: tuple[str, int], deadline: float, interruptible: bool) -> str:
    """Tries plain sockets until one connects: torch's own client goes on beyond its deadline, and fills the log.

    Returns:
        Why no server could be reached; empty if one could.
    """
    while (problem := _connection_problem(address, deadline)) and time.monotonic() < deadline:
        if interruptible:
            raise_if_received()
        time.sleep(_RETRY_SECONDS)
    return problem


def _connection_problem(address: tuple[str, int], deadline: float) -> str:
    """Why no server can be reached at ``address`` now; empty if one can."""
    try:
        socket.create_connection(address, timeout=max(0.5, min(5.0, deadline - time.monotonic()))).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _no_contact(launch: Launch, address: tuple[str, int], seconds: float, problem: str) -> str:
    hint = f"; {launch.hint}" if launch.hint else ""
    question = "is rank 0 started, and can this machine reach that address?"
    if launch.rank == 0:
        question = "MASTER_ADDR must be an address of rank 0's machine, and MASTER_PORT a free port"
    return (
        f"rank {launch.rank} of {launch.world_size} could not meet the other ranks at {address[0]}:{address[1]} within "
        f"{seconds:.0f} s ({problem}): {question}{hint}"
    )


def first_line(error: BaseException) -> str:
    """The first line of a message from torch; the others are frames of C++."""
    with contextlib.suppress(IndexError):
        return str(error).strip().splitlines()[0][:200]
    return type(error).__name__


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
    """Where the ranks of one group meet before a collective: torch's key-value store, where waiting can end.

    A rank cannot leave a collective that another rank never enters. So each rank first writes into the store what it
    has come for. The last to come finds all of them there and decides that they go on; a rank that has waited too long
    decides that they give up. The first decision in the store holds for all: either every rank enters the collective,
    or none does.

    Args:
        store: a client that nobody else uses, with keys that no other group uses.
        ranks: the group's ranks in the numbers of the whole run.
        group_rank: this rank's place among them.
        check: called repeatedly while this rank waits; what it raises ends the wait.

    Attributes:
        round: number of the next exchange.
    """

    def __init__(
        self, store: Store, ranks: Sequence[int], group_rank: int, check: Callable[[], None] | None = None
    ) -> None:
        self._store, self._ranks, self._group_rank, self._check = store, tuple(ranks), group_rank, check
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
        """Takes back the entry of a rank that was interrupted while it waited."""
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
            if self._check is not None:
                self._check()
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
            raise on_every_rank(RunError(f"the ranks are at different points: {', '.join(parts)}", advice))


def _listed(ranks: Sequence[int]) -> str:
    more = len(ranks) - _MOST_NAMED
    named = ", ".join(map(str, ranks[:_MOST_NAMED])) + (f" and {more} others" if more > 0 else "")
    return f"rank {named}" if len(ranks) == 1 else f"ranks {named}"


def rendezvous(store: Store, launch: Launch, seconds: float) -> list[Process]:
    """Waits until every rank of the run has come. A collective, the first one.

    Args:
        store: where they meet.
        launch: this rank, and how many there are.
        seconds: how long the others may take.

    Returns:
        The process of each rank, in rank order.

    Raises:
        RunError: some ranks did not come, or one of them has failed.
        LaunchError: a rank came twice, or ranks were told different world sizes.
        KeyboardInterrupt: a signal was recorded meanwhile.
    """
    rank, size = launch.rank, launch.world_size
    if store.add(f"started/{rank}", 1) > 1:
        raise _refusal(
            store, LaunchError(f"rank {rank} was started twice:", "give every process a RANK of its own"), rank
        )
    first_rank, first_size = json.loads(store.compare_set("size", "", json.dumps([rank, size])))
    if first_size != size:
        message = f"rank {first_rank} was told that there are {first_size} ranks and rank {rank} that there are {size}"
        raise _refusal(store, LaunchError(f"{message}:", "give all of them the same WORLD_SIZE"), rank)

    def check() -> None:
        raise_if_received()
        if (failure := read_failure(store)) is not None:
            raise on_every_rank(failure.to_error())

    meeting = GroupRendezvous(store, range(size), rank, check)
    try:
        return [Process(**entry) for entry in meeting.exchange("the start", asdict(Process.current()), seconds, "")]
    except AbsentRanksError as error:
        absent = f"{_listed(error.missing)} of {size} did not come within {seconds:.0f} s"
        advice = "look whether they were started and what they say; all must reach the address of rank 0"
        hint = f"; {launch.hint}" if launch.hint else ""
        raise _refusal(store, RunError(f"{absent}: {advice}{hint}"), rank) from None


def _refusal(store: Store, error: FidtoolError, rank: int) -> FidtoolError:
    """Posts why the run cannot begin, and returns the error that every rank raises."""
    return on_every_rank(post_failure(store, Failure.from_error(error, rank)).to_error())


def report_absence(error: FidtoolError, seconds: float) -> bool:
    """Posts ``error`` to the ranks that wait for this one, which has failed before it met them.

    Args:
        error: why it failed.
        seconds: how long to try, and to wait until another rank has printed it.

    Returns:
        Whether one has.
    """
    deadline = time.monotonic() + seconds

    def report() -> bool:
        from torch.distributed import PrefixStore

        launch = discover()
        address = _address(launch)
        if _await_server(address, deadline, interruptible=False):
            return False
        store = PrefixStore(key_prefix(0), _connect_to(address, max(1.0, deadline - time.monotonic())))
        post_failure(store, Failure.from_error(add_location(error, launch.rank, launch.world_size), launch.rank))
        while not printing_claimed(store) and time.monotonic() < deadline:
            time.sleep(_LONGEST_POLL_SECONDS)
        return printing_claimed(store)

    with contextlib.suppress(Exception):  # a rank that cannot tell the others still tells its own terminal
        return call_with_timeout(report, seconds)
    return False
