"""Handlers for SIGINT and SIGTERM, which the command line installs.

Within `defer` a signal is only recorded: the run stops between two batches and saves its work.
If it does not stop, `fidtool.distributed.watchdog` ends the process. A byte in a socket wakes the
watchdog immediately, even while the main thread is inside a collective or LAPACK. Outside
`defer` a signal raises KeyboardInterrupt.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import NoReturn

from fidtool.errors import FidtoolError, ProgramError, StoppedError

STOPPING = (signal.SIGINT, signal.SIGTERM)
SIGNALLED = 128
"""Exit status of a process that a signal ended, minus the signal's number, as in a shell."""

end_process = os._exit
"""`os._exit` for fidtool itself, also after `refuse_exits`."""
taken_over = False
"""Whether `take_over` has installed the handlers."""
received: list[int] = []
"""The signals that were received, the first one first."""
# Receives the number of each signal from the interpreter's C handler.
_wake: socket.socket
_deferrals = 0


def take_over() -> None:
    """Install the handlers, once. Does nothing outside the main thread."""
    global _wake, taken_over
    if taken_over or threading.current_thread() is not threading.main_thread():
        return
    _wake, writer = socket.socketpair()
    taken_over = True
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.detach(), warn_on_full_buffer=False)
    for number in STOPPING:
        # Background jobs of a shell ignore SIGINT.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _on_signal)


def refuse_exits() -> None:
    """Make `os._exit` in custom code a failure. With status 0, a gate would otherwise pass without
    a result.
    """
    process = os.getpid()

    def refused(status: int) -> NoReturn:
        if os.getpid() == process:
            os.write(2, b"error: custom code ended the process with os._exit(%d)\n" % status)
            status = status or 1
        end_process(status)

    os._exit = refused


def _on_signal(number: int, _: object) -> None:
    received.append(number)
    if not _deferrals:
        raise KeyboardInterrupt


def ignore() -> None:
    """Stop signals from raising: the run has failed, and launchers then send SIGTERM to the
    remaining ranks.
    """
    global _deferrals
    _deferrals += 1


def stopped_error() -> FidtoolError:
    """Return the exception for a KeyboardInterrupt: for the first signal that was received, or
    custom code's own.
    """
    if taken_over and not received:
        return ProgramError(
            "KeyboardInterrupt was raised by custom code, and no signal was received"
        )
    number = received[0] if received else signal.SIGINT
    return StoppedError(f"stopped by {signal.Signals(number).name}", SIGNALLED + number)


def wait(seconds: float) -> None:
    """Sleep until a signal is received, at most ``seconds``. For the watchdog's thread."""
    if not taken_over:
        time.sleep(seconds)
        return
    _wake.settimeout(seconds)
    with contextlib.suppress(TimeoutError):
        received.extend(number for number in _wake.recv(64) if number in STOPPING)


@contextlib.contextmanager
def defer() -> Iterator[None]:
    """Within the block, signals are recorded and do not raise; the caller checks `received`."""
    global _deferrals
    _deferrals += 1
    try:
        yield
    finally:
        _deferrals -= 1


def reset_in_worker() -> None:
    """Make a decoding worker ignore SIGINT, and under the command line SIGTERM, which may go to
    the whole group.

    Its parent handles them and ends the worker.
    """
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN if taken_over else signal.SIG_DFL)
