"""Watchdog: detects a failed rank and ends this one.

The ranks share these keys of the rendezvous store: ``heartbeat/R``, a time that rank R renews every
second and the number of collectives that it has entered; ``left/R``, after which the silence and
the exit of rank R are no failures; ``failed``, the first failure of the run; ``printing``, which
the rank that prints the failure claims.

1. Watching: a thread, the guard, exchanges the heartbeats and looks for a failure: one in the
   store; a process on this machine that has ended; a signal; a lost or silent store; a silent rank.
   Rank 0 watches all others, and they watch rank 0.
2. Failed: the first failure is that of all ranks. The main thread stops at the next `must_stop` or
   collective, and `end_run` prints the failure. In a calling program it first abandons a
   collective that still waits.
3. Ended by force, by the guard: a main thread that does not stop in time, because it is inside a
   collective or LAPACK.

The store may stop responding at any time: the guard and the main thread wait for it only a short
time (`_query_store`). In a run of one process the guard only looks for signals.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from fidtool.distributed import signals
from fidtool.distributed.launch import launcher_serves_store, lost_store
from fidtool.errors import FidtoolError, RunError, StoppedError, as_fidtool_error, option
from fidtool.system.background import call_with_timeout

if TYPE_CHECKING:
    from torch.distributed import Store

T = TypeVar("T")
OnFailure = Callable[[FidtoolError, bool], None]
"""Called on a rank with the error that ends the run and whether this rank must print it."""

GRACE_SECONDS = 5.0
"""After a failure, time for the main thread to save its work and stop."""
SIGNAL_GRACE_SECONDS = 2.5
"""The same after a signal."""
PRINT_SECONDS = 2.0
"""How long to wait until another rank prints the cause, and how long printing it may take."""
_HEARTBEAT_SECONDS = 1.0
_GUARD_SECONDS = 0.25
# How long the store may take to respond.
_ANSWER_SECONDS = 1.5
# How long a rank whose collective failed waits for the cause before it reports its own failure.
_EXPLANATION_SECONDS = 3.5


class LostContactError(RunError):
    """A collective failed. This is a symptom: the cause is on another rank."""

    location = ""

    @staticmethod
    def from_error(rank: int, error: RuntimeError) -> LostContactError:
        return LostContactError(
            f"rank {rank} lost the connection to another rank ({first_line(error)})"
        )


class TooSlowError(LostContactError):
    """The other ranks are alive but did not enter a collective in time."""


class Failure(NamedTuple):
    """The first failure of a run, which ends it. Every rank reads it from the store.

    Attributes:
        rank: the rank that failed, was lost or received the signal.
        error: what every rank raises.
        lost: whether the rank is dead or frozen, as reported by another rank.
    """

    rank: int
    error: FidtoolError
    lost: bool = False

    def post(self, store: Store) -> Failure:
        """Record this failure unless the run already has one. Returns the run's failure."""
        return Failure._unpickle(store.compare_set("failed", "", pickle.dumps(self).hex()))

    @staticmethod
    def read(store: Store) -> Failure | None:
        """Return the run's failure; None if there is none."""
        return Failure._unpickle(store.get("failed")) if store.check(["failed"]) else None

    @staticmethod
    def _unpickle(value: bytes) -> Failure:
        failure: Failure = pickle.loads(bytes.fromhex(value.decode()))
        return failure


def add_location(error: FidtoolError, rank: int, size: int) -> FidtoolError:
    """Add this rank and its host to ``error``, unless there is one rank or ``error`` already has a
    location.
    """
    if size > 1 and error.location is None:
        error.location = f" (rank {rank} on {socket.gethostname()})"
    return error


class Process(NamedTuple):
    """A rank's process.

    Attributes:
        pid_namespace: the machine's boot id and the namespace of ``pid``; empty without /proc.
        started: start time in clock ticks, to detect a reused process id.
    """

    host: str
    pid: int
    pid_namespace: str = ""
    started: str = ""

    @staticmethod
    def current() -> Process:
        host = socket.gethostname()
        pid = os.getpid()
        try:
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            pid_namespace = f"{boot} {os.readlink('/proc/self/ns/pid')}"
            _, started = _read_state(pid)
        except OSError:
            return Process(host, pid)
        return Process(host, pid, pid_namespace, started)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def _read_state(pid: int) -> tuple[str, str]:
    """Return a process's state and start time from /proc/PID/stat."""
    content = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    fields = content.rpartition(")")[2].split()  # the name before it may contain spaces
    return fields[0], fields[19]


class Watchdog:
    """One rank's watchdog.

    Args:
        peer_timeout: seconds to wait for another rank's heartbeat.
        timeout: seconds in one collective, including the wait for the slowest rank.
        on_failure: prints the failure of several ranks of the command line, and of a process that
            is ended by force. Called on all of these ranks, on one of them with True.

    Attributes:
        failed: set when a rank has failed or a signal was received.
        abandon_at: when to abandon a collective that still waits, so that the calling program gets
            its exception.
        collectives: number of collectives that this rank has entered.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        peer_timeout: float,
        timeout: float,
        on_failure: OnFailure = lambda *_: None,
    ) -> None:
        self._rank = rank
        self._size = size
        self._on_failure = on_failure
        self._peer_timeout = peer_timeout
        self.timeout = timeout
        self._store: Any = None
        self._store_error = ""
        self._processes: list[Process] = []
        self._visible: dict[int, Process] = {}  # those that this rank sees in /proc, with its own
        self._heartbeats: dict[int, tuple[bytes, float]] = {}
        self._last_contact = 0.0
        self._failure: Failure | None = None
        self.failed = threading.Event()
        self._closed = threading.Event()
        self._ending = threading.RLock()
        self._printed = False
        self.abandon_at = self._exit_at = float("inf")
        self.collectives = 0

    def attach(self, store: Store) -> None:
        """Set the store and send the first heartbeat. The client must not be shared.

        Call it before the rendezvous: a rank that reads a heartbeat that was never written blocks
        for a long time.
        """
        self._store = store
        store.set(f"heartbeat/{self._rank}", "0 0")

    def start(self, processes: list[Process]) -> None:
        """Start the guard. ``processes`` are those of all ranks; empty for a run of one
        process.
        """
        self._processes = processes
        here = processes[self._rank].pid_namespace if processes else ""
        self._visible = {
            rank: process
            for rank, process in enumerate(processes)
            if here and process.pid_namespace == here
        }
        watched = range(1, self._size) if self._rank == 0 else [0]
        self._last_contact = time.monotonic()
        self._heartbeats = dict.fromkeys(watched if processes else (), (b"", self._last_contact))
        threading.Thread(target=self._run_guard, name="fidtool-guard", daemon=True).start()

    # Called by the main thread.

    def report(self, error: FidtoolError) -> None:
        """Report to the other ranks that this one has failed."""
        self._set_failure(Failure(self._rank, error))

    def first_error(self, seconds: float = _EXPLANATION_SECONDS) -> FidtoolError | None:
        """The exception for the run's failure; None if there is none within ``seconds``."""
        self.failed.wait(seconds)
        return None if self._failure is None else self._failure.error

    def end_run(self, caught: BaseException) -> FidtoolError:
        """End the run on this rank after ``caught``. Returns the run's first error.

        Of several ranks of the command line one prints it, as long as the store is reachable.
        """
        error = as_fidtool_error(caught)
        if isinstance(caught, KeyboardInterrupt):
            error = signals.stopped_error()
        if self._size == 1:
            return error
        signals.ignore()
        first = self._wait_for_cause(error)
        if first is None:
            self.report(add_location(error, self._rank, self._size))
            known = self._failure
            first = error
            if known is not None and known.error.text != error.text and not error.agreed:
                first = known.error
        if signals.taken_over:
            self._print_once(first)
            first.printed = True
        else:
            # The calling program has its exception and decides what to do with it.
            self._exit_at = float("inf")
        self.leave(succeeded=False)
        return first

    def _wait_for_cause(self, error: FidtoolError) -> FidtoolError | None:
        """Return the failure of another rank that ``error`` may be a symptom of, if it is known in
        time.
        """
        if isinstance(error, TooSlowError):
            return self.first_error()
        if isinstance(error, LostContactError):
            # A lost rank on another machine is detected only by its silence.
            return self.first_error(self._peer_timeout + 3 * _HEARTBEAT_SECONDS)
        return None

    def find_late_ranks(self) -> str:
        """The ranks that have not entered this rank's current collective, for a message."""
        heartbeats: dict[int, bytes] = self._query_store(
            lambda _: self._read_heartbeats(range(self._size)), {}
        )
        late = []
        for rank, heartbeat in heartbeats.items():
            _, collectives = heartbeat.split()
            if int(collectives) < self.collectives:
                late.append(f"rank {rank} ({self._processes[rank]})")
        return ", ".join(late[:8]) or "the other ranks"

    def leave(self, succeeded: bool) -> None:
        """Announce that this rank leaves. Rank 0, which may serve the store, waits for the
        others to leave first.

        After a success it waits up to the peer deadline, and the guard ends.
        """
        if succeeded:
            self._closed.set()
        self._query_store(lambda store: store.set(f"left/{self._rank}", "1"), None)
        deadline = time.monotonic() + (self._peer_timeout if succeeded else PRINT_SECONDS)
        if self._rank != 0 or self._store is None:
            return
        for rank in range(1, self._size):
            while not self._has_left(rank) and not self._has_ended(rank):
                if time.monotonic() >= deadline:
                    return
                time.sleep(0.02)

    def stop(self) -> None:
        """End the guard. Does not return if the guard is ending this process."""
        with self._ending:
            self._closed.set()

    # The guard's thread.

    def _run_guard(self) -> None:
        last = next_heartbeat = time.monotonic()
        posted: Failure | None = None
        while not self._closed.is_set():
            now = time.monotonic()
            if now - last > self._peer_timeout / 2:  # this process was itself suspended
                self._last_contact = now
                self._heartbeats = dict.fromkeys(self._heartbeats, (b"", now))
            if self._processes and now >= next_heartbeat:
                next_heartbeat = now + _HEARTBEAT_SECONDS
                posted = self._query_store(self._exchange_heartbeats, None)
            if self._failure is None:
                failure = posted or self.detect_failure(now)
                if failure is not None:
                    self._set_failure(failure)
            if self._failure is not None and now >= self._exit_at:
                self._force_exit(self._failure)
            last = time.monotonic()
            signals.wait(_GUARD_SECONDS)

    def _exchange_heartbeats(self, store: Store) -> Failure | None:
        """Send this rank's heartbeat and read those of the others. Returns the run's failure, if
        there is one.
        """
        store.set(f"heartbeat/{self._rank}", f"{time.monotonic()} {self.collectives}")
        values = self._read_heartbeats(self._heartbeats)
        failure = Failure.read(store)
        now = self._last_contact = time.monotonic()
        for rank, value in values.items():
            if value != self._heartbeats[rank][0]:
                self._heartbeats[rank] = (value, now)
        return failure

    def _read_heartbeats(self, ranks: Collection[int]) -> dict[int, bytes]:
        heartbeats = get_all(self._store, [f"heartbeat/{rank}" for rank in ranks])
        return dict(zip(ranks, heartbeats, strict=True))

    def detect_failure(self, now: float) -> Failure | None:
        """A failure that this rank can detect."""
        for rank in self._visible:
            # Checked before signals: a launcher that has lost one rank sends SIGTERM to the others.
            if rank != self._rank and self._has_ended(rank) and not self._has_left(rank):
                if self._store_error and launcher_serves_store():
                    break  # without the store the rank could not announce that it left
                what = (
                    "exited without reporting an error: it crashed or was killed (out of memory?)"
                )
                return self._lost_rank_failure(rank, what)
        if signals.received:
            return Failure(
                self._rank, add_location(signals.stopped_error(), self._rank, self._size)
            )
        return self._detect_silence(now) if self._processes else None

    def _detect_silence(self, now: float) -> Failure | None:
        """A lost or silent store, or a silent rank."""
        server = "rank 0"
        if launcher_serves_store():
            host = os.environ.get("MASTER_ADDR", "")
            port = os.environ.get("MASTER_PORT", "")
            server = f"the launcher at {host}:{port}"
        if self._store_error:
            error = RunError(
                lost_store(self._store_error, f"{server} exited or its machine is down")
            )
            return Failure(0, error, lost=0 not in self._visible)
        limit = (
            f"for {self._peer_timeout:g} s ({option('peer_timeout')}): it is frozen, or its "
            "machine or the network is down"
        )
        silent = [
            rank
            for rank, (_, seen) in self._heartbeats.items()
            if self._last_contact - seen > self._peer_timeout
        ]
        if now - self._last_contact > self._peer_timeout:  # the store does not respond
            if launcher_serves_store():
                return Failure(0, RunError(f"{server} did not respond {limit}"))
            silent = [0]  # also on rank 0, whose program may have its store elsewhere
        for rank in silent:
            if not self._has_left(rank):
                return self._lost_rank_failure(rank, f"sent no heartbeat {limit}")
        return None

    def _lost_rank_failure(self, rank: int, what: str) -> Failure:
        return Failure(rank, RunError(f"rank {rank} ({self._processes[rank]}) {what}"), lost=True)

    def _has_ended(self, rank: int) -> bool:
        """Whether this rank sees that the process of ``rank`` has ended. True for a zombie."""
        process = self._visible.get(rank)
        if process is None:
            return False
        try:
            state, started = _read_state(process.pid)
        except (FileNotFoundError, ProcessLookupError):
            return True
        except OSError:  # for example, this process has too many open files
            return False
        return state in "ZX" or started != process.started

    def _has_left(self, rank: int) -> bool:
        return self._query_store(lambda store: bool(store.check([f"left/{rank}"])), False)

    def _query_store(self, question: Callable[[Store], T], default: T) -> T:
        """``question(store)``; ``default`` if there is no store, or it is lost or does not
        respond.
        """
        if self._store is None or self._store_error:
            return default
        try:
            return call_with_timeout(lambda: question(self._store), _ANSWER_SECONDS)
        except TimeoutError:
            return default
        except Exception as error:
            self._store_error = type(error).__name__
            return default

    def _set_failure(self, failure: Failure) -> None:
        """Make ``failure`` the run's failure, unless there already is one, and set when this
        process must end.
        """
        if self._failure is None:
            failure = self._query_store(failure.post, failure)
        if self._failure is not None:  # the other thread may have declared one meanwhile
            return
        # That of the rank is in the message where it matters.
        failure.error.location = failure.error.location or ""
        now = time.monotonic()
        if not signals.taken_over:  # the calling program gets its exception if possible
            self.abandon_at = now + (GRACE_SECONDS if failure.lost else self._peer_timeout)
            self._exit_at = self.abandon_at + GRACE_SECONDS
        elif isinstance(failure.error, StoppedError):
            self._exit_at = now + SIGNAL_GRACE_SECONDS
        else:
            self._exit_at = now + GRACE_SECONDS
        self._failure = failure
        self.failed.set()
        if failure.lost and failure.rank != self._rank and failure.rank in self._visible:
            if failure.rank == 0 and not launcher_serves_store():
                time.sleep(1.5)  # so that all ranks first detect that it is frozen
            if not self._has_ended(failure.rank):  # a frozen process would never exit
                with contextlib.suppress(OSError):
                    os.kill(self._visible[failure.rank].pid, signal.SIGKILL)

    def _print_once(self, error: FidtoolError) -> None:
        """Print the error on one rank, preferably rank 0 if it runs, because users read its
        log.

        Without the store every rank prints, as none can know whether another rank did.
        """
        with self._ending:
            if self._printed:
                return
            self._printed = True
            failure = self._failure
            rank_zero_lost = failure is not None and failure.lost and failure.rank == 0
            deadline = time.monotonic()
            if self._rank != 0 and not rank_zero_lost:
                deadline += PRINT_SECONDS
            while time.monotonic() < deadline:
                if self._query_store(lambda store: store.check(["printing"]), True):
                    break
                time.sleep(0.05)
            prints = self._query_store(lambda store: store.add("printing", 1) == 1, True)
            with contextlib.suppress(Exception):
                call_with_timeout(lambda: self._on_failure(error, prints), PRINT_SECONDS)

    def _force_exit(self, failure: Failure) -> None:
        """End this process while its main thread is busy."""
        with self._ending:
            if self._closed.is_set():  # the main thread has stopped in the meantime
                return
            self._print_once(failure.error)
            self.leave(succeeded=False)
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    call_with_timeout(stream.flush, 0.5)
            signals.end_process(failure.error.exit_code)


def get_all(store: Store, keys: list[str]) -> list[bytes]:
    """The values of keys that the store has."""
    if store.has_extended_api():  # type: ignore[attr-defined]
        return list(store.multi_get(keys))
    return [store.get(key) for key in keys]


def first_line(error: BaseException) -> str:
    """The first line of a message from torch; the other lines are a C++ stack trace."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip()[:200]
