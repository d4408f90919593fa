"""SIGINT and SIGTERM, taken over by the command line, and waits that end. Imports no torch.

While a run is watched (`deferred`), a signal is only noted: the run stops between two batches and keeps its work, and
`fidtool.distributed.watchdog` ends the process should it not come to that. A byte in a socket wakes the guard at once,
also while the main thread is inside a collective or LAPACK. At all other times a signal raises KeyboardInterrupt.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TypeVar

T = TypeVar("T")

STOPPING = (signal.SIGINT, signal.SIGTERM)
_LOOK_SECONDS = 0.3

_wake: socket.socket | None = None
"""Where the interpreter's own handler writes the number of each signal; None until `take_over`."""
_writer: socket.socket | None = None  # kept, so that it stays open
_first: int | None = None
_watched = 0
_ending = False


def take_over() -> None:
    """Installs the handlers, once. Other threads than the main one may not, and do without."""
    global _wake, _writer
    if _wake is not None or threading.current_thread() is not threading.main_thread():
        return
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    _wake, _writer = reader, writer
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    for number in STOPPING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, and a shell's background jobs, ignore SIGINT
            signal.signal(number, _on_signal)


def _on_signal(number: int, _: FrameType | None) -> None:
    _note(number)
    if not _watched and not _ending:
        raise KeyboardInterrupt


def _note(number: int) -> None:
    global _first
    if _first is None:
        _first = number


def disregard() -> None:
    """From now on nothing is raised: the run has failed, and launchers send SIGTERM to what remains of it."""
    global _ending
    _ending = True


def taken_over() -> bool:
    """Whether this process's signals are ours."""
    return _wake is not None


def received() -> int | None:
    """The first stopping signal that came, or None."""
    return _first


def stop_if_asked() -> None:
    """Raises KeyboardInterrupt where a signal has been noted."""
    if received() is not None:
        raise KeyboardInterrupt


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
        thread.join(min(left, _LOOK_SECONDS) if stoppable else left)
        if stoppable:
            stop_if_asked()
    if errors:
        raise errors[0]
    if not answers:
        raise NoAnswerError
    return answers[0]


def wait(seconds: float) -> None:
    """Sleeps until a signal comes, at most ``seconds``. For the guard's thread."""
    if _wake is None:
        threading.Event().wait(seconds)
        return
    _wake.settimeout(seconds)
    with contextlib.suppress(TimeoutError):
        for number in _wake.recv(64):
            if number in STOPPING:
                _note(number)


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """While the block runs, signals are noted and nothing is raised: somebody watches `received`."""
    global _watched
    _watched += 1
    try:
        yield
    finally:
        _watched -= 1


def reset_in_worker() -> None:
    """In a decoding process: Ctrl-C, and a launcher's SIGTERM to the whole group, are its parent's to answer."""
    if taken_over():
        signal.set_wakeup_fd(-1)
        for number in STOPPING:
            signal.signal(number, signal.SIG_IGN)
