"""Rendezvous of ranks: connections to torch's key-value store, and waiting there until all ranks
have joined.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from fidtool.distributed import signals
from fidtool.distributed.launch import (
    Launch,
    discover,
    launcher_serves_store,
    lost_store,
    restart_count,
)
from fidtool.distributed.watchdog import (
    Failure,
    LostContactError,
    Process,
    Watchdog,
    first_line,
    get_all,
)
from fidtool.errors import (
    FidtoolError,
    InputError,
    LaunchError,
    RunError,
    format_reason,
    mark_agreed,
    option,
)
from fidtool.system.background import call_with_timeout
from fidtool.validation import MAX_SECONDS

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Store, TCPStore

START_SECONDS = 120.0
"""How long to wait for the other ranks to join."""
RETRY_SECONDS = 0.3
"""Pause between two attempts to connect to the store."""
MAX_POLL_SECONDS = 0.1
"""Longest pause between two looks at the store."""
ANSWER_SECONDS = 10.0
"""How long the store may take to respond."""
_MAX_NAMED = 8
# Numbers this process's runs. Each run uses its own keys and does not read those of an earlier run.
_run_numbers = itertools.count()
# The stores that this process serves until it exits, by address.
_served_stores: dict[tuple[str, int], TCPStore] = {}


def _connect(launch: Launch, seconds: float) -> TCPStore:
    """A new connection to the store, which rank 0 serves if torchrun does not.

    Raises:
        RunError: if no store could be reached within ``seconds``.
    """
    address = launch.store
    serve = launch.rank == 0 and not launcher_serves_store()
    deadline = time.monotonic() + seconds
    try:
        if not serve:
            _await_server(address, deadline)
        store = _connect_to(address, max(deadline - time.monotonic(), 1.0), serve)
        if serve:
            _served_stores.setdefault(address, store)
        return store
    except TimeoutError:
        problem = "the server there is not a torch TCPStore"
        if serve:
            problem = "this machine has no such address"
    except (RuntimeError, ValueError) as error:
        problem = first_line(error)
    advice = "check that rank 0 was started and that this machine can reach that address"
    if launch.rank == 0:
        advice = "MASTER_ADDR must be an address of rank 0's machine, and MASTER_PORT a free port"
    raise RunError(
        f"rank {launch.rank} of {launch.world_size} could not join the other ranks at "
        f"{address[0]}:{address[1]} within {seconds:.0f} s ({problem}): {advice}"
    )


def _connect_to(address: tuple[str, int], seconds: float, serve: bool = False) -> TCPStore:
    """A connection that no other thread uses: a client that waits blocks all threads that use
    it.
    """
    from torch.distributed import TCPStore

    options: dict[str, Any] = {
        "timeout": timedelta(seconds=seconds),
        "wait_for_workers": False,
        "multi_tenant": True,
    }
    return call_with_timeout(lambda: TCPStore(*address, is_master=serve, **options), seconds)


def connect_to_store_of(store: Store) -> Store | None:
    """A connection to a process group's ``store`` that is not shared, or a file's store; else
    None.
    """
    from torch.distributed import FileStore, PrefixStore, TCPStore

    while isinstance(store, PrefixStore):
        store = store.underlying_store
    if isinstance(store, FileStore):
        return store  # a thread that waits in it does not block the others
    if not isinstance(store, TCPStore):
        return None
    address = (store.host, store.port)
    try:
        return _connect_to(address, 30.0)
    except (TimeoutError, RuntimeError) as error:
        raise RunError(
            f"the process group's store at {address[0]}:{address[1]} does not respond"
        ) from error


def _await_server(address: tuple[str, int], deadline: float) -> None:
    """Wait for a server; a RuntimeError says why none could be reached until the deadline.

    Plain sockets are tried first: torch's own client keeps trying after its deadline and floods the
    log.
    """
    while True:
        try:
            seconds = max(0.5, min(5.0, deadline - time.monotonic()))
            socket.create_connection(address, timeout=seconds).close()
            return
        except OSError as error:
            if time.monotonic() >= deadline:
                raise RuntimeError(format_reason(error)) from error
        time.sleep(RETRY_SECONDS)


class AbsentRanksError(RunError):
    """Some ranks did not enter a collective in time.

    Attributes:
        missing: the global numbers of these ranks, a tuple of integers.
    """

    def __init__(self, message: str, missing: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.missing = tuple(missing)


class Decision(NamedTuple):
    """What the ranks of a group do after a round of `GroupRendezvous`: proceed if all have arrived,
    else give up.

    Attributes:
        entries: the purpose and the payload of each rank; None if it had not arrived.
        by: index of the rank that decided.
        seconds: how long that rank waits.
    """

    entries: list[Any]
    decider: int
    seconds: float


class GroupRendezvous:
    """Rendezvous of a group's ranks before a collective, in torch's key-value store, where a wait
    can time out.

    A rank cannot leave a collective that another rank never enters. Each rank therefore first
    writes its purpose to the store. The last rank to arrive finds all others there and decides that
    all proceed; a rank that times out decides that all give up. The first decision in the store is
    binding: either every rank enters the collective, or none does.

    Args:
        store: the client must not be shared, and no other group may use its keys.
        ranks: the group's members, as global ranks; ``group_rank`` is this rank's index among them.
        check: called repeatedly while this rank waits; an exception that it raises ends the wait.

    Attributes:
        round: number of the next round. A rank that comes late may have missed some.
    """

    def __init__(
        self,
        store: Store,
        ranks: Sequence[int],
        group_rank: int,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._ranks = tuple(ranks)
        self._group_rank = group_rank
        self._check = check
        self.round = 0
        self._one_at_a_time = threading.Lock()

    def exchange(
        self, purpose: str, payload: dict[str, Any], seconds: float, remedy: str
    ) -> list[dict[str, Any]]:
        """Wait until every rank has arrived and return all payloads, in the group's order. Cannot
        hang.

        Args:
            purpose: name of the call, for messages; must be the same on all ranks.
            payload: this rank's data for the others, JSON-serialisable.
            remedy: what to do if some do not arrive, for the message.

        Raises:
            InputError: if ``seconds`` is out of range.
            AbsentRanksError: if some ranks did not arrive in time.
            RunError: if the ranks' purposes differ, or the store does not respond.
        """
        if not 0 < seconds <= MAX_SECONDS:
            raise InputError(
                f"a timeout must be above 0 and at most {MAX_SECONDS:g} seconds, not {seconds}"
            )
        entry = {"purpose": purpose, "payload": payload}
        deadline = time.monotonic() + seconds

        def join() -> tuple[int, Decision]:
            number = self.round
            while True:
                decision = self._join_round(number, entry, seconds, deadline)
                number += 1
                if decision.entries[self._group_rank] is not None:
                    return number, decision
                # The others gave up on that round before this rank arrived, and may be in a later
                # one.

        with self._one_at_a_time:
            try:
                self.round, decision = call_with_timeout(join, seconds + ANSWER_SECONDS)
            except TimeoutError:
                raise RunError(
                    f"{purpose}: the rendezvous store does not respond: check that rank 0 is still "
                    "running"
                ) from None
            except FidtoolError:
                raise
            except RuntimeError as error:
                lost = lost_store(first_line(error), "rank 0 or the launcher may have exited")
                raise RunError(f"{purpose}: {lost}") from None
        entries = zip(self._ranks, decision.entries, strict=True)
        missing = [rank for rank, entry in entries if entry is None]
        if missing:
            absent = f"{format_ranks(missing)} of {len(self._ranks)}"
            if decision.decider != self._group_rank:
                absent += f" (reported by rank {self._ranks[decision.decider]})"
            raise AbsentRanksError(
                f"{purpose} timed out after {decision.seconds:g} s waiting for {absent}: {remedy}",
                missing,
            )
        self._check_purposes(decision.entries)
        return [entry["payload"] for entry in decision.entries]

    def _join_round(
        self, number: int, entry: dict[str, Any], seconds: float, deadline: float
    ) -> Decision:
        """Return the decision on a round: this rank's own if all are there or the time is up,
        unless there is one.
        """
        key = f"decision/{number}"
        began = time.monotonic()
        self._store.set(f"here/{self._group_rank}", json.dumps({**entry, "round": number}))
        while None in self._read_entries(number) and not self._store.check([key]):
            now = time.monotonic()
            if now >= deadline:
                break
            self._check()
            # Ranks in step arrive within milliseconds. The longer the wait, the longer the polling
            # interval. The store's own wait floods the log with warnings.
            time.sleep(min(MAX_POLL_SECONDS, 0.0002 + 0.1 * (now - began), deadline - now))
        mine = Decision(self._read_entries(number), self._group_rank, seconds)
        decision = Decision(*json.loads(self._store.compare_set(key, "", json.dumps(mine))))
        if number and None not in decision.entries:  # all ranks have read the previous decision
            with contextlib.suppress(RuntimeError):  # a FileStore cannot delete keys
                self._store.delete_key(f"decision/{number - 1}")
        return decision

    def _read_entries(self, number: int) -> list[Any]:
        """The entries of the group's ranks in this round, see `Decision`."""
        keys = [f"here/{index}" for index in range(len(self._ranks))]
        known = keys
        if not self._store.check(keys):
            known = [key for key in keys if self._store.check([key])]
        arrived = {}
        for key, value in zip(known, get_all(self._store, known), strict=True):
            entry = json.loads(value)
            if entry["round"] == number:
                arrived[key] = entry
        return [arrived.get(key) for key in keys]

    def _check_purposes(self, entries: Sequence[dict[str, Any]]) -> None:
        by_purpose: dict[str, list[int]] = {}
        for rank, entry in zip(self._ranks, entries, strict=True):
            by_purpose.setdefault(entry["purpose"], []).append(rank)
        if len(by_purpose) > 1:
            parts = [f"{format_ranks(ranks)} in {purpose}" for purpose, ranks in by_purpose.items()]
            advice = "every rank must make the same calls in the same order"
            if any(" of metric " in purpose for purpose in by_purpose):
                advice += (
                    "; pass name=... to a metric that only some ranks create, because unnamed "
                    "metrics are numbered on each rank"
                )
            raise mark_agreed(
                RunError(f"the ranks are in different calls: {', '.join(parts)}", advice)
            )


def format_ranks(ranks: Sequence[int]) -> str:
    """The numbers of some ranks for a message: ``rank 3``, or ``ranks 0, 1 and 2 others``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    listed = "ranks " + ", ".join(map(str, ranks[:_MAX_NAMED]))
    if len(ranks) > _MAX_NAMED:
        listed += f" and {len(ranks) - _MAX_NAMED} others"
    return listed


def join(launch: Launch, watchdog: Watchdog) -> ProcessGroup | None:
    """Join the other ranks, and start the watchdog if the store is known.

    Returns a new process group for `leave`; None if it is the default one.

    Raises:
        RunError: if some ranks did not join, or one has failed.
        LaunchError: if two processes have the same rank, or the ranks' world sizes differ.
    """
    import torch.distributed as dist

    from fidtool.system.torch_internals import default_store

    seconds = min(START_SECONDS, watchdog.timeout)
    collective = timedelta(seconds=watchdog.timeout)
    prefix = f"fidtool/{restart_count()}/{next(_run_numbers)}"
    has_group = dist.is_initialized()
    if has_group:
        store = connect_to_store_of(default_store())
    else:
        group_store = dist.PrefixStore(f"{prefix}/gloo", _connect(launch, seconds))
        store = _connect(launch, seconds)
    if store is not None:
        store = dist.PrefixStore(prefix, store)
        watchdog.attach(store)
        watchdog.start(_wait_for_ranks(store, launch, seconds))
    if has_group:
        # The caller's group may only have NCCL; control traffic always uses gloo.
        return dist.new_group(backend="gloo", timeout=collective)  # type: ignore[return-value]
    group_store.set_timeout(timedelta(seconds=seconds))
    try:
        dist.init_process_group(
            "gloo", None, collective, launch.world_size, launch.rank, group_store
        )
    except RuntimeError as error:
        raise LostContactError.from_error(launch.rank, error) from error
    return None


def leave(group: ProcessGroup | None) -> None:
    """Destroy the process group of `join`."""
    import torch.distributed as dist

    with contextlib.suppress(Exception):
        dist.destroy_process_group(group)


def _wait_for_ranks(store: Store, launch: Launch, seconds: float) -> list[Process]:
    """Wait until every rank of the run has joined; returns their processes. See `join`."""
    rank = launch.rank
    size = launch.world_size
    advice = (
        "check that every rank was started and can reach rank 0's address, and read the missing "
        "ranks' output"
    )
    if not signals.taken_over:
        advice = (
            f"every rank must make the call, or pass {option('alone', True)} to compute on one "
            "rank alone"
        )
    if launch.hint:
        advice += f"; {launch.hint}"

    def check() -> None:
        failure = Failure.read(store)
        if failure is not None:
            raise mark_agreed(failure.error)

    try:
        if store.add(f"started/{rank}", 1) > 1:
            raise LaunchError(
                f"rank {rank} was started twice:", "give every process a different RANK"
            )
        first_rank, first_size = json.loads(store.compare_set("size", "", json.dumps([rank, size])))
        if first_size != size:
            raise LaunchError(
                f"rank {first_rank} was started with a world size of {first_size} and rank {rank} "
                f"with {size}:",
                "give all ranks the same WORLD_SIZE",
            )
        group = GroupRendezvous(store, range(size), rank, check)
        processes = group.exchange("the start", Process.current()._asdict(), seconds, advice)
        return [Process(**process) for process in processes]
    except (LaunchError, AbsentRanksError) as error:
        raise mark_agreed(Failure(rank, error).post(store).error) from None


def report_absence(error: FidtoolError, seconds: float) -> bool:
    """Post ``error`` to the other ranks, which wait for this one, after it failed before the
    rendezvous.

    Returns whether another rank has printed it within ``seconds``.
    """

    def report() -> bool:
        from torch.distributed import PrefixStore

        launch = discover()
        store = PrefixStore(f"fidtool/{restart_count()}/0", _connect(launch, seconds))
        Failure(launch.rank, error).post(store)
        while not store.check(["printing"]):
            time.sleep(MAX_POLL_SECONDS)
        return True

    with contextlib.suppress(Exception):  # the caller then prints the error itself
        return call_with_timeout(report, seconds)
    return False
