"""How the ranks meet: connections to torch's key-value store, and the wait for all ranks before anything else."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING

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
from fidtool.errors import FidtoolError, LaunchError, RunError

if TYPE_CHECKING:
    from torch.distributed import Store, TCPStore

_RETRY_SECONDS = 0.3
_GROUP_STORE_SECONDS = 30.0
_POLL_SECONDS = 0.05
_MARGIN_SECONDS = 5.0
"""Rank zero, whose error names the missing ranks, gives up this much earlier than the others."""
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


def rendezvous(store: Store, rank: int, size: int, seconds: float, hint: str = "") -> list[Process]:
    """Waits until every rank has come. A collective, the first one.

    Args:
        store: where they meet.
        rank, size: this rank, and the number of ranks.
        seconds: how long they may take.
        hint: what to do if the others never come.

    Returns:
        The process of each rank, in rank order.

    Raises:
        RunError: some ranks did not come, and rank zero names them; or one of them has failed.
        LaunchError: a rank came twice, or ranks were told different world sizes.
        KeyboardInterrupt: a signal was recorded meanwhile.
    """
    mine = {"process": asdict(Process.current()), "size": size}
    if store.add(f"seat/{rank}", 1) > 1:
        raise _refusal(store, LaunchError(f"rank {rank} was started twice: give every process a RANK of its own"), rank)
    store.set(f"here/{rank}", json.dumps(mine))
    if rank == 0:
        _gather(store, size, seconds, hint)
    deadline = time.monotonic() + seconds + _MARGIN_SECONDS
    while not store.check(["all-here"]):
        if (known := read_failure(store)) is not None:
            raise _agreed_error(known)
        if time.monotonic() > deadline:
            raise RunError(f"rank {rank} of {size} waited {seconds:.0f} s for rank 0 to call the roll, in vain")
        raise_if_received()
        time.sleep(_POLL_SECONDS)
    entries = [json.loads(entry) for entry in json.loads(store.get("all-here"))]
    if len(entries) != size:
        raise LaunchError(f"rank {rank} was told that there are {size} ranks, but there are {len(entries)}")
    return [Process(**entry["process"]) for entry in entries]


def _gather(store: Store, size: int, seconds: float, hint: str) -> None:
    deadline = time.monotonic() + seconds
    missing = list(range(1, size))
    while missing:
        missing = [rank for rank in missing if not store.check([f"here/{rank}"])]
        if not missing:
            break
        if (known := read_failure(store)) is not None:
            raise _agreed_error(known)
        if time.monotonic() > deadline:
            raise _refusal(store, RunError(_absence_message(missing, size, seconds, hint)), 0)
        raise_if_received()
        time.sleep(_POLL_SECONDS)
    entries = [store.get(f"here/{rank}").decode() for rank in range(size)]
    for rank, entry in enumerate(entries):
        other = json.loads(entry)["size"]
        if other != size:
            message = f"rank 0 was told that there are {size} ranks and rank {rank} that there are {other}"
            raise _refusal(store, LaunchError(f"{message}: give all of them the same WORLD_SIZE"), 0)
    store.set("all-here", json.dumps(entries))


def _absence_message(missing: list[int], size: int, seconds: float, hint: str) -> str:
    ranks = ", ".join(map(str, missing[:8])) + (" and others" if len(missing) > 8 else "")
    hint = f"; {hint}" if hint else ""
    verb = "rank" if len(missing) == 1 else "ranks"
    return (
        f"{verb} {ranks} of {size} did not come within {seconds:.0f} s: look whether they were started and what they "
        f"say; all must reach the address of rank 0{hint}"
    )


def _refusal(store: Store, error: FidtoolError, rank: int) -> FidtoolError:
    """Posts why the run cannot begin, and returns the error that every rank raises."""
    return _agreed_error(post_failure(store, Failure.from_error(error, rank)))


def _agreed_error(known: Failure) -> FidtoolError:
    error = known.to_error()
    error.agreed = True
    return error


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
            time.sleep(_POLL_SECONDS)
        return printing_claimed(store)

    with contextlib.suppress(Exception):  # a rank that cannot tell the others still tells its own terminal
        return call_with_timeout(report, seconds)
    return False
