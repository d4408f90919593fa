"""Rendezvous of ranks: connections to torch's key-value store, and waiting there until all ranks have joined."""

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

from fidtool.distributed import signals
from fidtool.distributed.failure import Failure, add_location, post_failure, printing_claimed, read_failure
from fidtool.distributed.launch import Launch, discover, launcher_serves_store, restart_count
from fidtool.distributed.signals import call_with_timeout, raise_if_received
from fidtool.distributed.watchdog import Process
from fidtool.errors import FidtoolError, InputError, LaunchError, RunError, on_every_rank, option
from fidtool.validation import LONGEST_SECONDS

if TYPE_CHECKING:
    from torch.distributed import Store, TCPStore

_RETRY_SECONDS = 0.3
_GROUP_STORE_SECONDS = 30.0
_LONGEST_POLL_SECONDS = 0.1
_ANSWER_SECONDS = 10.0
_WITHDRAW_SECONDS = 1.0
_MOST_NAMED = 8
_stores: dict[tuple[str, int], TCPStore] = {}
"""Stores by address. Rank zero serves its store until the process exits."""


def _address(launch: Launch) -> tuple[str, int]:
    """Host and port of the store that rank zero or torchrun serves."""
    if launch.init_method.startswith("tcp://"):
        host, _, port = launch.init_method.removeprefix("tcp://").rpartition(":")
    else:
        host, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    try:
        return host, int(port)
    except ValueError:
        raise RunError(f"MASTER_PORT must be a number, not {port!r}") from None


def key_prefix(run: int) -> str:
    """Prefix of the store's keys for this process's run number ``run``; different after a restart by torchrun."""
    return f"fidtool/{restart_count()}/{run}"


def connect(launch: Launch, seconds: float) -> TCPStore:
    """Connects to the store. Rank zero serves it if torchrun does not."""
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
            problem = "this machine has no such address" if serve else "the server there is not a torch TCPStore"
            raise RunError(_no_contact(launch, address, seconds, problem)) from None
        except (RuntimeError, ValueError) as error:
            advice = "; if the port is in use, choose another MASTER_PORT" if serve else ""
            raise RunError(_no_contact(launch, address, seconds, f"{first_line(error)}{advice}")) from error
    return _stores[address]


def _connect_to(address: tuple[str, int], seconds: float, serve: bool = False) -> TCPStore:
    """A new connection to the store. A client that waits blocks all other threads that use the same client."""
    from torch.distributed import TCPStore

    return TCPStore(
        *address, is_master=serve, timeout=timedelta(seconds=seconds), wait_for_workers=False, multi_tenant=True
    )


def connect_again(launch: Launch, seconds: float) -> TCPStore:
    """A second connection to the store that `connect` returned."""
    address = _address(launch)
    try:
        return call_with_timeout(lambda: _connect_to(address, seconds), seconds, interruptible=True)
    except (TimeoutError, RuntimeError, ValueError) as error:
        raise RunError(_no_contact(launch, address, seconds, first_line(error))) from error


def connect_to_store_of(store: Store) -> Store | None:
    """A connection to a process group's ``store`` that is not shared, or a file's store; None for other stores."""
    from torch.distributed import FileStore, PrefixStore, TCPStore

    while isinstance(store, PrefixStore):
        store = store.underlying_store
    if isinstance(store, FileStore):
        return store  # a thread that waits in it does not block the others
    if not isinstance(store, TCPStore):
        return None
    address = (store.host, store.port)
    try:
        return call_with_timeout(lambda: _connect_to(address, _GROUP_STORE_SECONDS), _GROUP_STORE_SECONDS)
    except (TimeoutError, RuntimeError) as error:
        raise RunError(f"the process group's store at {address[0]}:{address[1]} does not respond") from error


def _await_server(address: tuple[str, int], deadline: float, interruptible: bool) -> str:
    """Why no server could be reached until the deadline; empty if one could.

    Plain sockets are tried first: torch's own client keeps trying after its deadline and floods the log.
    """
    while True:
        try:
            socket.create_connection(address, timeout=max(0.5, min(5.0, deadline - time.monotonic()))).close()
            return ""
        except OSError as error:
            problem = error.strerror or str(error)
        if time.monotonic() >= deadline:
            return problem
        if interruptible:
            raise_if_received()
        time.sleep(_RETRY_SECONDS)


def _no_contact(launch: Launch, address: tuple[str, int], seconds: float, problem: str) -> str:
    hint = f"; {launch.hint}" if launch.hint else ""
    advice = "check that rank 0 was started and that this machine can reach that address"
    if launch.rank == 0:
        advice = "MASTER_ADDR must be an address of rank 0's machine, and MASTER_PORT a free port"
    return (
        f"rank {launch.rank} of {launch.world_size} could not join the other ranks at {address[0]}:{address[1]} within "
        f"{seconds:.0f} s ({problem}): {advice}{hint}"
    )


def first_line(error: BaseException) -> str:
    """The first line of a message from torch; the other lines are a C++ stack trace."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0][:200]


class AbsentRanksError(RunError):
    """Some ranks, whose global numbers are in ``missing``, did not enter a collective in time."""

    def __init__(self, message: str, missing: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.missing = tuple(missing)


@dataclass
class _Arrival:
    """One rank's wait for the others, until ``deadline`` on the monotonic clock."""

    entry: dict[str, Any]
    seconds: float
    deadline: float
    settled: bool = False  # whether there is a verdict
    # Set if the rank was interrupted; the waiting thread must then end.
    interrupted: threading.Event = field(default_factory=threading.Event)


class GroupRendezvous:
    """Rendezvous of a group's ranks before a collective, in torch's key-value store, where a wait can time out.

    A rank cannot leave a collective that another rank never enters. Each rank therefore first writes its purpose to the
    store. The last rank to arrive finds all others there and decides that all proceed; a rank that times out decides
    that all give up. The first decision in the store is binding: either every rank enters the collective, or none does.

    Args:
        store: the client must not be shared, and no other group may use its keys.
        ranks: the group's members, as global ranks; ``group_rank`` is this rank's index among them.
        check: called repeatedly while this rank waits; an exception that it raises ends the wait.
    """

    def __init__(
        self, store: Store, ranks: Sequence[int], group_rank: int, check: Callable[[], None] | None = None
    ) -> None:
        self._store, self._ranks, self._group_rank, self._check = store, tuple(ranks), group_rank, check
        self.round = 0
        self._one_at_a_time = threading.Lock()

    def continue_from(self, earlier: int) -> None:
        """Continues an earlier process group's count of rounds if this store was also used by that group.

        A program may destroy its process group and create another, whose store is empty or has the first one's keys.
        """
        marker = f"used/{self._group_rank}"
        self.round = earlier if self._store.check([marker]) else 0
        self._store.set(marker, "1")

    def exchange(self, purpose: str, payload: dict[str, Any], seconds: float, remedy: str) -> list[dict[str, Any]]:
        """Waits until every rank has arrived and returns all payloads, in the group's order. Cannot hang.

        Args:
            purpose: name of the call, for messages; must be the same on all ranks.
            payload: this rank's data for the others, JSON-serialisable.
            remedy: what to do if some do not arrive, for the message.

        Raises:
            InputError: if ``seconds`` is out of range.
            AbsentRanksError: if some ranks did not arrive in time.
            RunError: if the ranks' purposes differ, or the store does not respond.
        """
        if not 0 < seconds <= LONGEST_SECONDS:
            raise InputError(f"a timeout must be above 0 and at most {LONGEST_SECONDS:g} seconds, not {seconds}")
        with self._one_at_a_time:
            arrival = _Arrival({"purpose": purpose, "payload": payload}, seconds, time.monotonic() + seconds)
            try:
                self.round, verdict = call_with_timeout(
                    lambda: self._await_verdict(self.round, arrival), seconds + _ANSWER_SECONDS
                )
            except TimeoutError:
                frozen = "the rendezvous store does not respond: check that rank 0 is still running"
                raise RunError(f"{purpose}: {frozen}") from None
            except FidtoolError:
                raise
            except RuntimeError as error:
                lost = f"lost the connection to the rendezvous store ({first_line(error)})"
                raise RunError(f"{purpose}: {lost}: rank 0 or the launcher may have exited") from None
            finally:
                self._withdraw(arrival)
        if "missing" in verdict:
            raise self._absent(purpose, verdict, remedy)
        self._check_purposes(verdict["came"])
        return [entry["payload"] for entry in verdict["came"]]

    def _withdraw(self, arrival: _Arrival) -> None:
        """Removes this rank's entry if it was interrupted while it waited."""
        if not arrival.settled:
            arrival.interrupted.set()
            key, no_round = f"here/{self._group_rank}", json.dumps({"round": -1})
            with contextlib.suppress(TimeoutError, RuntimeError):
                call_with_timeout(lambda: self._store.set(key, no_round), _WITHDRAW_SECONDS)

    def _await_verdict(self, number: int, arrival: _Arrival) -> tuple[int, dict[str, Any]]:
        """The number of the next round, and the verdict of the first round from ``number`` that this rank joined."""
        while True:
            verdict = self._join_round(number, arrival)
            number += 1
            if "came" in verdict or self._group_rank in verdict["here"]:
                arrival.settled = True
                return number, verdict
            # The others gave up on that round before this rank arrived, and may be in a later one.

    def _join_round(self, number: int, arrival: _Arrival) -> dict[str, Any]:
        key, size = f"verdict/{number}", len(self._ranks)
        self._store.set(f"here/{self._group_rank}", json.dumps({**arrival.entry, "round": number}))
        if len(self._present(number)) == size or not self._is_decided(key, arrival):
            return self._decide(number, arrival)
        verdict: dict[str, Any] = json.loads(self._store.get(key))
        return verdict

    def _is_decided(self, key: str, arrival: _Arrival) -> bool:
        """Whether ``key`` appears before the deadline. The store's own wait floods the log with warnings."""
        began = time.monotonic()
        while not self._store.check([key]):
            now = time.monotonic()
            if arrival.interrupted.is_set():
                raise RunError("interrupted")
            if now >= arrival.deadline:
                return False
            if self._check is not None:
                self._check()
            # Ranks in step arrive within milliseconds. The longer the wait, the longer the polling interval.
            time.sleep(min(_LONGEST_POLL_SECONDS, 0.0002 + 0.1 * (now - began), arrival.deadline - now))
        return True

    def _present(self, number: int) -> dict[int, dict[str, Any]]:
        """The entries of the ranks that have joined this round, by group rank."""
        keys = [f"here/{index}" for index in range(len(self._ranks))]
        if self._store.check(keys) and self._store.has_extended_api():  # type: ignore[attr-defined]
            values = dict(enumerate(self._store.multi_get(keys)))
        else:
            values = {index: self._store.get(key) for index, key in enumerate(keys) if self._store.check([key])}
        entries = {index: json.loads(value) for index, value in values.items()}
        return {index: entry for index, entry in entries.items() if entry["round"] == number}

    def _decide(self, number: int, arrival: _Arrival) -> dict[str, Any]:
        """Makes this rank's view of the round its verdict, unless another rank did so first. Returns the verdict."""
        came = self._present(number)
        missing = [index for index in range(len(self._ranks)) if index not in came]
        verdict: dict[str, Any] = {"came": [came[index] for index in sorted(came)]}
        if missing:
            verdict = {"here": sorted(came), "missing": missing, "by": self._group_rank, "seconds": arrival.seconds}
        verdict = json.loads(self._store.compare_set(f"verdict/{number}", "", json.dumps(verdict)))
        if "came" in verdict and number:  # all ranks have read the previous verdict
            with contextlib.suppress(RuntimeError):  # a FileStore cannot delete keys
                self._store.delete_key(f"verdict/{number - 1}")
        return verdict

    def _absent(self, purpose: str, verdict: dict[str, Any], remedy: str) -> AbsentRanksError:
        missing = [self._ranks[index] for index in verdict["missing"]]
        by = "" if verdict["by"] == self._group_rank else f" (reported by rank {self._ranks[verdict['by']]})"
        problem = f"timed out after {verdict['seconds']:g} s waiting for {_listed(missing)} of {len(self._ranks)}{by}"
        return AbsentRanksError(f"{purpose} {problem}: {remedy}", missing)

    def _check_purposes(self, came: Sequence[dict[str, Any]]) -> None:
        by_purpose: dict[str, list[int]] = {}
        for rank, entry in zip(self._ranks, came, strict=True):
            by_purpose.setdefault(entry["purpose"], []).append(rank)
        if len(by_purpose) > 1:
            parts = [f"{_listed(ranks)} in {purpose}" for purpose, ranks in by_purpose.items()]
            advice = "every rank must make the same calls in the same order"
            if any(" of metric " in purpose for purpose in by_purpose):
                advice += "; pass name=... to a metric that only some ranks create, because those without are counted"
            raise on_every_rank(RunError(f"the ranks are in different calls: {', '.join(parts)}", advice))


def _listed(ranks: Sequence[int]) -> str:
    more = len(ranks) - _MOST_NAMED
    named = ", ".join(map(str, ranks[:_MOST_NAMED])) + (f" and {more} others" if more > 0 else "")
    return f"rank {named}" if len(ranks) == 1 else f"ranks {named}"


def rendezvous(store: Store, launch: Launch, seconds: float) -> list[Process]:
    """Waits until every rank of the run has joined; returns their processes. The run's first collective.

    Raises:
        RunError: if some ranks did not join, or one has failed.
        LaunchError: if two processes have the same rank, or the ranks' world sizes differ.
        KeyboardInterrupt: if a signal is recorded during the wait.
    """
    rank, size = launch.rank, launch.world_size
    if store.add(f"started/{rank}", 1) > 1:
        raise _refusal(
            store, LaunchError(f"rank {rank} was started twice:", "give every process a different RANK"), rank
        )
    first_rank, first_size = json.loads(store.compare_set("size", "", json.dumps([rank, size])))
    if first_size != size:
        message = f"rank {first_rank} was started with a world size of {first_size} and rank {rank} with {size}"
        raise _refusal(store, LaunchError(f"{message}:", "give all ranks the same WORLD_SIZE"), rank)

    def check() -> None:
        raise_if_received()
        if (failure := read_failure(store)) is not None:
            raise on_every_rank(failure.to_error())

    group = GroupRendezvous(store, range(size), rank, check)
    try:
        return [Process(**entry) for entry in group.exchange("the start", asdict(Process.current()), seconds, "")]
    except AbsentRanksError as error:
        absent = f"{_listed(error.missing)} of {size} did not join within {seconds:.0f} s"
        advice = "check that every rank was started and can reach rank 0's address, and read the missing ranks' output"
        if not signals.taken_over():
            advice = f"every rank must make the call, or pass {option('alone', True)} to compute on one rank alone"
        hint = f"; {launch.hint}" if launch.hint else ""
        raise _refusal(store, RunError(f"{absent}: {advice}{hint}"), rank) from None


def _refusal(store: Store, error: FidtoolError, rank: int) -> FidtoolError:
    """Posts why the run cannot start and returns the error that every rank raises."""
    return on_every_rank(post_failure(store, Failure.from_error(error, rank)).to_error())


def report_absence(error: FidtoolError, seconds: float) -> bool:
    """Posts ``error`` to the other ranks, which wait for this one, after it failed before the rendezvous.

    Returns whether another rank has printed it within ``seconds``.
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

    with contextlib.suppress(Exception):  # the caller then prints the error itself
        return call_with_timeout(report, seconds)
    return False
