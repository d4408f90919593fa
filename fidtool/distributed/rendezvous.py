"""Where the ranks meet: the key-value store, and the roll that is called there before anything else."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from fidtool.distributed import failure
from fidtool.distributed.failure import Cause
from fidtool.distributed.launch import Launch, attempt, discover, served_by_agent
from fidtool.distributed.signals import NoAnswerError, bounded, stop_if_asked
from fidtool.distributed.watchdog import Process
from fidtool.errors import FidtoolError, LaunchError, RunError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store, TCPStore

_RETRY_SECONDS = 0.3
_CALLERS_SECONDS = 30.0
_POLL_SECONDS = 0.05
_MARGIN_SECONDS = 5.0
"""Rank zero gives up this much earlier than the others, so that its word, which names the missing, is the first."""
_served: dict[tuple[str, int], TCPStore] = {}
"""Stores that this process reached or serves: rank zero serves its own for as long as the process lives."""


def address(launch: Launch) -> tuple[str, int]:
    """Host and port where rank zero, or torchrun's agent, serves the store.

    Raises:
        RunError: the port is no number.
    """
    if launch.init_method.startswith("tcp://"):
        host, _, port = launch.init_method.removeprefix("tcp://").rpartition(":")
    else:
        host, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    try:
        return host, int(port)
    except ValueError:
        raise RunError(f"MASTER_PORT should be a number but is {port!r}") from None


def keys_prefix(run: int) -> str:
    """What the keys of this process's run number ``run`` begin with."""
    return f"fidtool/{attempt()}/{run}"


def reach(launch: Launch, seconds: float) -> TCPStore:
    """Serves the store, on rank zero without torchrun, or connects to it.

    Raises:
        RunError: nobody serves it within ``seconds``, or its port is taken.
    """
    place = address(launch)
    if place not in _served:
        serve = launch.rank == 0 and not (served_by_agent() and launch.init_method == "env://")
        deadline = time.monotonic() + seconds
        if not serve:
            problem = _await_server(place, deadline, stoppable=True)
            if problem:
                raise RunError(_not_met(launch, place, seconds, problem))
        try:
            left = max(deadline - time.monotonic(), 1.0)
            _served[place] = bounded(lambda: client(place, left, serve), left, stoppable=True)
        except NoAnswerError:
            problem = "no such address here" if serve else "whatever answers there is no store of torch's"
            raise RunError(_not_met(launch, place, seconds, problem)) from None
        except (RuntimeError, ValueError) as error:
            advice = "; is the port taken? choose another MASTER_PORT" if serve else ""
            raise RunError(_not_met(launch, place, seconds, f"{first_line(error)}{advice}")) from error
    return _served[place]


def client(place: tuple[str, int], seconds: float, serve: bool = False) -> TCPStore:
    """A connection of its own: a client that waits blocks every other thread that uses it."""
    from torch._C._distributed_c10d import TCPStore

    return TCPStore(
        *place, is_master=serve, timeout=timedelta(seconds=seconds), wait_for_workers=False, multi_tenant=True
    )


def another_client(launch: Launch, seconds: float) -> TCPStore:
    """A second connection to the store that `reach` gave.

    Raises:
        RunError: it does not answer within ``seconds``.
    """
    place = address(launch)
    try:
        return bounded(lambda: client(place, seconds), seconds, stoppable=True)
    except (NoAnswerError, RuntimeError, ValueError) as error:
        raise RunError(_not_met(launch, place, seconds, first_line(error))) from error


def second_client(store: Store) -> Store | None:
    """Another client of the store behind a process group that the caller has made; None where it is no TCPStore.

    Raises:
        RunError: it does not answer.
    """
    from torch._C._distributed_c10d import PrefixStore, TCPStore

    while isinstance(store, PrefixStore):
        store = store.underlying_store
    if not isinstance(store, TCPStore):
        return None
    place = (store.host, store.port)
    try:
        return bounded(lambda: client(place, _CALLERS_SECONDS), _CALLERS_SECONDS)
    except (NoAnswerError, RuntimeError) as error:
        raise RunError(f"the store of the process group at {place[0]}:{place[1]} does not answer") from error


def _await_server(place: tuple[str, int], deadline: float, stoppable: bool) -> str:
    """Tries plain sockets until one connects: torch's own client goes on long beyond its deadline, and loudly.

    Returns:
        Why nobody could be reached; empty where somebody could.
    """
    while (problem := _problem_of_server(place, deadline)) and time.monotonic() < deadline:
        if stoppable:
            stop_if_asked()
        time.sleep(_RETRY_SECONDS)
    return problem


def _problem_of_server(place: tuple[str, int], deadline: float) -> str:
    """Why nobody can be reached at ``place``, tried once; empty if somebody can."""
    try:
        socket.create_connection(place, timeout=max(0.5, min(5.0, deadline - time.monotonic()))).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _not_met(launch: Launch, place: tuple[str, int], seconds: float, problem: str) -> str:
    hint = f"; {launch.doubt}" if launch.doubt else ""
    question = "is rank 0 started, and can this machine reach that address?"
    if launch.rank == 0:
        question = "MASTER_ADDR must be an address of rank 0's machine, and MASTER_PORT a free port"
    return (
        f"rank {launch.rank} of {launch.world_size} could not meet the other ranks at {place[0]}:{place[1]} within "
        f"{seconds:.0f} s ({problem}): {question}{hint}"
    )


def first_line(error: BaseException) -> str:
    """The first line of a message of torch's; the rest are frames of C++."""
    with contextlib.suppress(IndexError):
        return str(error).strip().splitlines()[0][:200]
    return type(error).__name__


def namespaced(store: Store, prefix: str) -> Any:
    """``store`` with keys of its own."""
    from torch._C._distributed_c10d import PrefixStore

    return PrefixStore(prefix, store)


def roll_call(store: Store, rank: int, size: int, seconds: float, doubt: str = "") -> list[Process]:
    """Waits until every rank has come. A collective, the first one.

    Args:
        store: where they meet.
        rank, size: this rank's place.
        seconds: how long they may take.
        doubt: what to do should the others never come.

    Returns:
        The process of each rank, in rank order.

    Raises:
        RunError: somebody did not come; rank zero knows who.
        LaunchError: a rank came twice, or ranks were told different world sizes.
        KeyboardInterrupt: a signal was noted meanwhile.
    """
    mine = {"process": asdict(Process.this()), "size": size}
    if store.add(f"seat/{rank}", 1) > 1:
        raise _refused(store, LaunchError(f"rank {rank} was started twice: give every process a RANK of its own"), rank)
    store.set(f"here/{rank}", json.dumps(mine))
    if rank == 0:
        _gather(store, size, seconds, doubt)
    deadline = time.monotonic() + seconds + _MARGIN_SECONDS
    while not store.check(["all-here"]):
        if (known := failure.read(store)) is not None:
            raise _agreed(known)
        if time.monotonic() > deadline:
            raise RunError(f"rank {rank} of {size} waited {seconds:.0f} s for rank 0 to call the roll, in vain")
        stop_if_asked()
        time.sleep(_POLL_SECONDS)
    entries = [json.loads(entry) for entry in json.loads(store.get("all-here"))]
    if len(entries) != size:
        raise LaunchError(f"rank {rank} was told that there are {size} ranks, but there are {len(entries)}")
    return [Process(**entry["process"]) for entry in entries]


def _gather(store: Store, size: int, seconds: float, doubt: str) -> None:
    deadline = time.monotonic() + seconds
    missing = list(range(1, size))
    while missing:
        missing = [rank for rank in missing if not store.check([f"here/{rank}"])]
        if not missing:
            break
        if (known := failure.read(store)) is not None:
            raise _agreed(known)
        if time.monotonic() > deadline:
            raise _refused(store, RunError(_absent(missing, size, seconds, doubt)), 0)
        stop_if_asked()
        time.sleep(_POLL_SECONDS)
    entries = [store.get(f"here/{rank}").decode() for rank in range(size)]
    for rank, entry in enumerate(entries):
        other = json.loads(entry)["size"]
        if other != size:
            message = f"rank 0 was told that there are {size} ranks and rank {rank} that there are {other}"
            raise _refused(store, LaunchError(f"{message}: give all of them the same WORLD_SIZE"), 0)
    store.set("all-here", json.dumps(entries))


def _absent(missing: list[int], size: int, seconds: float, doubt: str) -> str:
    ranks = ", ".join(map(str, missing[:8])) + (" and others" if len(missing) > 8 else "")
    hint = f"; {doubt}" if doubt else ""
    verb = "rank" if len(missing) == 1 else "ranks"
    return (
        f"{verb} {ranks} of {size} did not come within {seconds:.0f} s: look whether they were started and what they "
        f"say; all must reach the address of rank 0{hint}"
    )


def _refused(store: Store, error: FidtoolError, rank: int) -> FidtoolError:
    """Tells the other ranks why nothing begins."""
    return _agreed(failure.post(store, Cause.of(error, rank)))


def _agreed(known: Cause) -> FidtoolError:
    error = known.error()
    error.agreed = True
    return error


def tell_absence(error: FidtoolError, seconds: float) -> bool:
    """Leaves ``error`` where the ranks meet: why this one fails before it has met the others, and will not come.

    Args:
        error: this rank's failure.
        seconds: how long to try, and to wait until another rank has told the user.

    Returns:
        Whether one has.
    """
    deadline = time.monotonic() + seconds

    def tell() -> bool:
        launch = discover()
        place = address(launch)
        if _await_server(place, deadline, stoppable=False):
            return False
        store = namespaced(client(place, max(1.0, deadline - time.monotonic())), keys_prefix(0))
        failure.post(store, Cause.of(failure.located(error, launch.rank, launch.world_size), launch.rank))
        while not failure.claimed(store) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        return failure.claimed(store)

    with contextlib.suppress(Exception):  # a rank that cannot tell the others still tells its own terminal
        return bounded(tell, seconds)
    return False
