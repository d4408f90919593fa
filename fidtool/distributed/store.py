"""The key-value store in which the ranks meet: how to reach it, and questions to it that cannot block for ever."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from fidtool.distributed import signals
from fidtool.distributed.launch import Launch
from fidtool.errors import RunError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store, TCPStore

T = TypeVar("T")

_RETRY_SECONDS = 0.3
_CALLERS_SECONDS = 30.0
_served: dict[tuple[str, int], TCPStore] = {}
"""Stores that this process reached or serves: rank zero serves its own for as long as the process lives."""


class NoAnswerError(Exception):
    """The store did not answer in time."""


def bounded(question: Callable[[], T], seconds: float, stoppable: bool = False) -> T:
    """Runs ``question`` in a thread of its own and waits for it at most ``seconds``.

    torch's clients wait without a deadline for a server that is frozen.

    Args:
        question: what to ask.
        seconds: how long the answer may take.
        stoppable: raise KeyboardInterrupt where a signal is noted meanwhile.

    Raises:
        NoAnswerError: no answer in time; the thread is left behind.
    """
    answers: list[T] = []
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            answers.append(question())
        except BaseException as error:  # handed to the caller's thread
            errors.append(error)

    thread = threading.Thread(target=ask, name="fidtool-ask", daemon=True)
    thread.start()
    deadline = time.monotonic() + seconds
    while thread.is_alive() and (left := deadline - time.monotonic()) > 0:
        thread.join(min(left, _RETRY_SECONDS) if stoppable else left)
        if stoppable:
            stop_if_asked()
    if errors:
        raise errors[0]
    if not answers:
        raise NoAnswerError
    return answers[0]


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


def served_by_agent() -> bool:
    """Whether torchrun's agent serves the store, and not rank zero."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def attempt() -> str:
    """How often torchrun has restarted the ranks: keys of an earlier attempt must not be read."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


def keys_prefix(run: int) -> str:
    """What the keys of this process's run number ``run`` begin with."""
    return f"fidtool/{attempt()}/{run}"


def agent() -> str:
    """The launcher, for messages: where it serves the store."""
    return f"the launcher at {os.environ.get('MASTER_ADDR', '')}:{os.environ.get('MASTER_PORT', '')}"


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
            _wait_for_server(place, launch, deadline)
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


def _wait_for_server(place: tuple[str, int], launch: Launch, deadline: float) -> None:
    """Tries plain sockets until one connects: torch's own client goes on long beyond its deadline, and loudly."""
    started = time.monotonic()
    while True:
        problem = problem_of_server(place, deadline)
        if not problem:
            return
        if time.monotonic() >= deadline:
            raise RunError(_not_met(launch, place, deadline - started, problem))
        stop_if_asked()
        time.sleep(_RETRY_SECONDS)


def problem_of_server(place: tuple[str, int], deadline: float) -> str:
    """Why nobody can be reached at ``place``, tried once; empty if somebody can."""
    try:
        socket.create_connection(place, timeout=max(0.5, min(5.0, deadline - time.monotonic()))).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def stop_if_asked() -> None:
    """Raises KeyboardInterrupt where a signal has been noted."""
    if signals.received() is not None:
        raise KeyboardInterrupt


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
