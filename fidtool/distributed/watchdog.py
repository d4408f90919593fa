"""Watchdog: detects a failed rank and stops all ranks.

Each rank runs two threads. The heartbeat thread writes a new number to the store every second, and reads the other
ranks' numbers and any failure that a rank has posted. The guard thread checks what the heartbeat thread has read, the
processes of the ranks on this machine, and signals. After a failure it ends this process if the main thread does not
exit on its own, which it cannot do inside a collective or LAPACK. No call in the guard thread blocks for long.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fidtool.distributed import signals
from fidtool.distributed.failure import (
    Failure,
    LostContactError,
    TooSlowError,
    add_location,
    claim_printing,
    post_failure,
    printing_claimed,
    read_failure,
    received_signal,
)
from fidtool.distributed.launch import describe_launcher, launcher_serves_store
from fidtool.distributed.signals import call_with_timeout
from fidtool.errors import FidtoolError, RunError, as_fidtool_error, option

OnFailure = Callable[[FidtoolError, bool], None]
"""Called on a rank with the error that ends the run and whether this rank must print it."""

_HEARTBEAT_SECONDS = 1.0
_GUARD_SECONDS = 0.25
_GRACE_SECONDS = 5.0
"""After a failure, time for the main thread to save its work and stop."""
_SIGNAL_GRACE_SECONDS = 2.5
"""The same after a signal."""
_ANSWER_SECONDS = 1.5
"""How long the store may take to respond."""
_PRINT_SECONDS = 2.0
_KILL_DELAY_SECONDS = 1.5
"""Delay before killing a frozen rank zero that serves the store, so that all ranks first detect that it is frozen."""
_EXPLANATION_SECONDS = 3.5
"""How long a rank whose collective failed waits for the cause before it reports its own failure."""


@dataclass(frozen=True)
class Deadlines:
    """How long a rank waits, in seconds.

    Attributes:
        peer: for another rank's heartbeat.
        collective: in one collective, including the wait for the slowest rank.
    """

    peer: float = 20.0
    collective: float = 1800.0

    @property
    def start(self) -> float:
        """For the other ranks to join."""
        return min(120.0, self.collective)


@dataclass(frozen=True)
class Process:
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
        """The calling process."""
        pid = os.getpid()
        try:
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            return Process(socket.gethostname(), pid, f"{boot} {os.readlink('/proc/self/ns/pid')}", _stat(pid)[1])
        except OSError:
            return Process(socket.gethostname(), pid)

    def is_visible_to(self, other: Process) -> bool:
        """Whether the two processes see each other in /proc."""
        return bool(self.pid_namespace) and self.pid_namespace == other.pid_namespace

    def has_ended(self) -> bool:
        """Whether this process, which must be visible to the caller, has ended. True for a zombie."""
        try:
            state, started = _stat(self.pid)
        except (FileNotFoundError, ProcessLookupError):
            return True
        except OSError:  # for example, the caller has too many open files
            return False
        return state in "ZX" or started != self.started

    def kill(self) -> None:
        """Kills this process, which must be visible to the caller, even if it is frozen."""
        if not self.has_ended():
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def _stat(pid: int) -> tuple[str, str]:
    """State and start time from /proc/PID/stat. The name before them may contain spaces and brackets."""
    rest = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return rest[0], rest[19]


class Watchdog:
    """One rank's watchdog.

    Args:
        on_failure: prints the failure. None leaves it to the exception, unless the process is ended by force.

    Attributes:
        collectives: number of collectives that this rank has entered.
    """

    def __init__(self, rank: int, size: int, deadlines: Deadlines, on_failure: OnFailure | None) -> None:
        self._rank, self._size, self.deadlines, self._on_failure = rank, size, deadlines, on_failure
        self._store: Any = None
        self._store_error = ""
        self._processes: list[Process] = []
        self._failure: Failure | None = None
        self._failed = threading.Event()
        self._closed = threading.Event()
        self._accepting, self._printing = threading.Lock(), threading.Lock()
        self._printed = False
        self._abandon_at = self._exit_at = float("inf")
        self._heartbeats: dict[int, tuple[bytes, float]] = {}
        self._last_check = self._last_contact = time.monotonic()
        self.collectives = 0

    def attach(self, store: Any) -> None:
        """Sets the store and sends the first heartbeat. The client must not be shared.

        Call it before the rendezvous: a rank that reads a heartbeat that was never written blocks for a long time.
        """
        self._store = store
        self._send_heartbeat(0)

    def start(self, processes: list[Process]) -> None:
        """Starts the threads. ``processes`` are those of all ranks; empty for a run of one process."""
        self._processes = processes
        now = time.monotonic()
        self._last_check = self._last_contact = now
        self._heartbeats = dict.fromkeys(self._watched_ranks(), (b"", now))
        for run in [self._run_guard, *([self._run_heartbeat] if processes else [])]:
            threading.Thread(target=run, name=f"fidtool{run.__name__}", daemon=True).start()

    def _watched_ranks(self) -> list[int]:
        """Rank zero watches all other ranks, and they watch rank zero."""
        if not self._processes:
            return []
        return list(range(1, self._size)) if self._rank == 0 else [0]

    # Called by the main thread.

    def must_stop(self) -> bool:
        """Whether a rank has failed or a signal was received. No communication."""
        return self._failed.is_set() or signals.received() is not None

    def must_abandon(self) -> bool:
        """Whether to abandon a collective that still waits, so that the calling program gets its exception."""
        return time.monotonic() > self._abandon_at

    def report(self, error: FidtoolError) -> None:
        """Reports to the other ranks that this one has failed."""
        self._declare(Failure.from_error(error, self._rank))

    def first_error(self, seconds: float = _EXPLANATION_SECONDS) -> FidtoolError | None:
        """The exception for the run's failure; None if there is none within ``seconds``."""
        self._failed.wait(seconds)
        return None if self._failure is None else self._failure.to_error()

    def conclude(self, caught: BaseException) -> FidtoolError:
        """Ends the run on this rank after ``caught``. Prints and returns the run's first error.

        Only one rank prints the error, as long as the store is reachable.
        """
        stopped = received_signal(self._rank, self._size) if isinstance(caught, KeyboardInterrupt) else None
        error = as_fidtool_error(caught) if stopped is None else stopped.to_error()
        first = self._explain(error) if isinstance(error, LostContactError) else None
        if first is None:
            error = add_location(error, self._rank, self._size)
            self._declare(Failure.from_error(error, self._rank))
            known = self._failure
            first = error if error.agreed or known is None or known.message == str(error) else known.to_error()
        signals.ignore()
        if not signals.taken_over():
            self._exit_at = float("inf")  # the calling program has its exception and decides what to do with it
        self._print_once(first, forced=False)
        first.printed = self._on_failure is not None
        return first

    def _explain(self, lost: LostContactError) -> FidtoolError | None:
        """The cause of a failed collective. A lost rank on another machine is detected only by missing heartbeats."""
        elsewhere = any(not self._is_here(rank) for rank in range(len(self._processes)))
        silence = self.deadlines.peer + 3 * _HEARTBEAT_SECONDS
        return self.first_error(silence if elsewhere and not isinstance(lost, TooSlowError) else _EXPLANATION_SECONDS)

    def late_ranks(self) -> str:
        """The ranks that have not entered this rank's current collective, for a message."""
        late: list[str] = []
        with contextlib.suppress(Exception):
            values = call_with_timeout(lambda: self._read_heartbeats(range(self._size)), _ANSWER_SECONDS)
            reached = [int(value.split()[1]) for value in values]
            late = [f"rank {r} ({self._processes[r]})" for r in range(self._size) if reached[r] < self.collectives]
        return ", ".join(late[:8]) or "the other ranks"

    def close(self, wait: bool) -> None:
        """Announces that this rank leaves. Rank zero, which may serve the store, leaves last.

        Args:
            wait: whether the run has succeeded. Rank zero then waits up to the peer deadline for the others to leave.
        """
        if self._store is not None:
            with contextlib.suppress(Exception):
                call_with_timeout(lambda: self._store.set(f"left/{self._rank}", "1"), _ANSWER_SECONDS)
            if wait:
                self._closed.set()
            if self._rank == 0:
                self._wait_for_others(self.deadlines.peer if wait else _PRINT_SECONDS)

    def stop(self) -> None:
        """Ends both threads."""
        self._closed.set()

    # The heartbeat thread.

    def _run_heartbeat(self) -> None:
        number = 0
        while not self._closed.wait(_HEARTBEAT_SECONDS):
            number += 1
            try:
                self._send_heartbeat(number)
                watched = self._watched_ranks()
                for rank, value in zip(watched, self._read_heartbeats(watched), strict=True):
                    if value != self._heartbeats[rank][0]:
                        self._heartbeats[rank] = (value, time.monotonic())
                failure = read_failure(self._store)
                self._last_contact = time.monotonic()
            except Exception as error:
                if not self._closed.is_set():
                    self._store_error = type(error).__name__
                return
            if failure is not None and self._failure is None:
                self._accept(failure)

    def _send_heartbeat(self, number: int) -> None:
        self._store.set(f"heartbeat/{self._rank}", f"{number} {self.collectives}")

    def _read_heartbeats(self, ranks: Sequence[int]) -> list[bytes]:
        keys = [f"heartbeat/{rank}" for rank in ranks]
        return list(self._store.multi_get(keys) if self._store.has_extended_api() else map(self._store.get, keys))

    # The guard thread.

    def _run_guard(self) -> None:
        while not self._closed.is_set():
            signals.wait(_GUARD_SECONDS)
            if self._closed.is_set():
                return
            now = time.monotonic()
            if now - self._last_check > self.deadlines.peer / 2:  # this process was itself suspended
                self._heartbeats = {rank: (value, now) for rank, (value, _) in self._heartbeats.items()}
                self._last_contact = now
            self._last_check = now
            if self._failure is None and (failure := self._detect(now)) is not None:
                self._declare(failure)
            if self._failure is not None and now >= self._exit_at:
                self._force_exit(self._failure)

    def _detect(self, now: float) -> Failure | None:
        """A failure that this rank can detect."""
        for rank in range(len(self._processes)):
            # Checked before signals: a launcher that has lost one rank sends SIGTERM to the others.
            if rank != self._rank and self._has_ended(rank) and not self._has_left(rank):
                if self._store_error and launcher_serves_store():
                    break  # without the store the rank could not announce that it left
                why = "it crashed or was killed (out of memory?)"
                return self._lost_rank(rank, f"exited without reporting an error: {why}")
        if (stopped := received_signal(self._rank, self._size)) is not None:
            return stopped
        if self._store_error:
            return self._lost_store()
        patience = self.deadlines.peer
        limit = f"for {patience:g} s ({option('peer_timeout')}): it is frozen, or its machine or the network is down"
        silent = f"sent no heartbeat {limit}"
        if self._heartbeats and now - self._last_contact > patience:  # the store does not respond
            if not launcher_serves_store():
                return self._lost_rank(0, silent)
            message = f"{describe_launcher()} did not respond {limit}"
            return Failure(0, self._processes[0].host, message, RunError.exit_code)
        for rank, (_, seen) in self._heartbeats.items():
            if self._last_contact - seen > patience and not self._has_left(rank):
                return self._lost_rank(rank, silent)
        return None

    def _lost_store(self) -> Failure:
        cause = f"{describe_launcher() if launcher_serves_store() else 'rank 0'} exited or its machine is down"
        if self._rank == 0 or (self._is_here(0) and not self._has_ended(0)):
            cause = f"{describe_launcher()} exited"
        message = f"lost the connection to the rendezvous store ({self._store_error}): {cause}"
        return Failure(0, self._processes[0].host, message, RunError.exit_code, lost=not self._is_here(0))

    def _lost_rank(self, rank: int, what: str) -> Failure:
        process = self._processes[rank]
        return Failure(rank, process.host, f"rank {rank} ({process}) {what}", RunError.exit_code, lost=True)

    def _is_here(self, rank: int) -> bool:
        return self._processes[rank].is_visible_to(self._processes[self._rank])

    def _has_ended(self, rank: int) -> bool:
        return bool(self._processes) and self._is_here(rank) and self._processes[rank].has_ended()

    def _has_left(self, rank: int) -> bool:
        return self._has_key(f"left/{rank}")

    def _has_key(self, key: str) -> bool:
        """Whether the store has ``key``; False if the store does not respond."""
        try:
            return call_with_timeout(lambda: bool(self._store.check([key])), _ANSWER_SECONDS)
        except TimeoutError:
            return False
        except Exception as error:
            self._store_error = type(error).__name__
            return False

    def _declare(self, failure: Failure) -> None:
        """Makes ``failure`` the run's failure, unless there already is one."""
        if self._failure is not None:
            return
        if self._store is not None and not self._store_error:
            with contextlib.suppress(RuntimeError, TimeoutError):
                failure = call_with_timeout(lambda: post_failure(self._store, failure), _ANSWER_SECONDS)
        self._accept(failure)

    def _accept(self, failure: Failure) -> None:
        """Sets the run's failure and the deadline by which this process must end."""
        with self._accepting:
            if self._failure is not None:
                return
            now = time.monotonic()
            self._exit_at = now + (_SIGNAL_GRACE_SECONDS if failure.is_signal else _GRACE_SECONDS)
            if not signals.taken_over():  # the calling program gets its exception if possible
                self._abandon_at = now + (_GRACE_SECONDS if failure.lost else self.deadlines.peer)
                self._exit_at = self._abandon_at + _GRACE_SECONDS
            self._failure = failure
            self._failed.set()
        if failure.lost and failure.rank != self._rank and self._is_here(failure.rank):
            if failure.rank == 0 and not launcher_serves_store():
                time.sleep(_KILL_DELAY_SECONDS)
            self._processes[failure.rank].kill()  # a frozen process would never exit

    # The end.

    def _force_exit(self, failure: Failure) -> None:
        """Ends this process while its main thread is busy."""
        self._print_once(failure.to_error(), forced=True)
        self.close(wait=False)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                call_with_timeout(stream.flush, 0.5)
        os._exit(failure.exit_code)

    def _print_once(self, error: FidtoolError, forced: bool) -> None:
        with self._printing:
            on_failure = self._on_failure
            if self._printed or (on_failure is None and not forced):
                return
            self._printed = True
            may_print = self._may_print()
            with contextlib.suppress(Exception):
                if on_failure is not None:
                    call_with_timeout(lambda: on_failure(error, may_print), _PRINT_SECONDS)
                elif may_print:
                    os.write(2, f"error: {' '.join(str(error).split())}\n".encode("utf-8", "replace"))

    def _may_print(self) -> bool:
        """Whether this rank prints the error. Rank zero is preferred while it runs: users read its log.

        Without the store every rank prints, as none can know whether another rank did.
        """
        if self._size == 1 or self._store is None or self._store_error:
            return True
        rank_zero_lost = self._failure is not None and self._failure.lost and self._failure.rank == 0
        deadline = time.monotonic() + (0.0 if rank_zero_lost or self._rank == 0 else _PRINT_SECONDS)
        try:
            while time.monotonic() < deadline:
                if call_with_timeout(lambda: printing_claimed(self._store), _ANSWER_SECONDS):
                    return False
                time.sleep(0.05)
            return call_with_timeout(lambda: claim_printing(self._store), _ANSWER_SECONDS)
        except (RuntimeError, TimeoutError):
            return True

    def _wait_for_others(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        waiting = [rank for rank in range(1, self._size) if self._processes or self._has_key(f"here/{rank}")]
        while waiting and time.monotonic() < deadline:
            waiting = [rank for rank in waiting if not self._has_left(rank) and not self._has_ended(rank)]
            time.sleep(0.02 if waiting else 0.0)
