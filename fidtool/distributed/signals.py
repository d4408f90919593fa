"""Handlers for SIGINT and SIGTERM, which the command line installs, and calls with a timeout.

Within `deferred` a signal is only recorded: the run stops between two batches and saves its work. If it does not stop,
`fidtool.distributed.watchdog` ends the process. A byte in a socket wakes the watchdog immediately, even while the main
thread is inside a collective or LAPACK. Outside `deferred` a signal raises KeyboardInterrupt.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")

STOPPING = (signal.SIGINT, signal.SIGTERM)
_POLL_SECONDS = 0.3

_wake: socket.socket | None = None
"""Receives the number of each signal from the interpreter's C handler; None until `take_over`."""
_writer: socket.socket | None = None  # referenced here so that it stays open
_first: int | None = None
_deferrals = 0
_ignoring = False


def take_over() -> None:
    """Installs the handlers, once. Does nothing outside the main thread."""
    global _wake, _writer
    if _wake is not None or threading.current_thread() is not threading.main_thread():
        return
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    _wake, _writer = reader, writer
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    for number in STOPPING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # background jobs of a shell ignore SIGINT
            signal.signal(number, _on_signal)


def _on_signal(number: int, _: FrameType | None) -> None:
    _record(number)
    if not _deferrals and not _ignoring:
        raise KeyboardInterrupt


def _record(number: int) -> None:
    global _first
    if _first is None:
        _first = number


def ignore() -> None:
    """Stops signals from raising: the run has failed, and launchers then send SIGTERM to the remaining ranks."""
    global _ignoring
    _ignoring = True


def taken_over() -> bool:
    """Whether `take_over` has installed the handlers."""
    return _wake is not None


def received() -> int | None:
    """The first signal that was received."""
    return _first


def raise_if_received() -> None:
    if received() is not None:
        raise KeyboardInterrupt


def in_background(work: Callable[[], T]) -> Future[T]:
    """Calls ``work`` in a daemon thread, so that the program can exit even if it never returns."""
    from concurrent.futures import Future

    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # raised in the thread that asks for the result
            future.set_exception(error)

    threading.Thread(target=run, daemon=True, name="fidtool-call").start()
    return future


def call_with_timeout(function: Callable[[], T], seconds: float, interruptible: bool = False) -> T:
    """Calls ``function`` in a new thread and waits at most ``seconds`` for its return value.

    Needed because clients of torch's store wait indefinitely for a frozen server.

    Raises:
        TimeoutError: if it does not return in time. The thread keeps running.
        KeyboardInterrupt: if a signal is recorded during the wait and ``interruptible``.
    """
    from concurrent.futures import wait as wait_for  # lazily, so that --help is fast

    future, deadline = in_background(function), time.monotonic() + seconds
    while not future.done() and (left := deadline - time.monotonic()) > 0:
        wait_for([future], min(left, _POLL_SECONDS) if interruptible else left)
        if interruptible:
            raise_if_received()
    if not future.done():
        raise TimeoutError(f"no response within {seconds:g} s")
    return future.result()


def wait(seconds: float) -> None:
    """Sleeps until a signal is received, at most ``seconds``. For the watchdog's thread."""
    if _wake is None:
        threading.Event().wait(seconds)
        return
    _wake.settimeout(seconds)
    with contextlib.suppress(TimeoutError):
        for number in _wake.recv(64):
            if number in STOPPING:
                _record(number)


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Within the block, signals are recorded and do not raise; the caller checks `received`."""
    global _deferrals
    _deferrals += 1
    try:
        yield
    finally:
        _deferrals -= 1


def reset_in_worker() -> None:
    """Makes a decoding worker ignore SIGINT, and under the command line SIGTERM, which may go to the whole group.

    Its parent handles them and ends the worker.
    """
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN if taken_over() else signal.SIG_DFL)
