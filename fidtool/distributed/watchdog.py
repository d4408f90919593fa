"""The failure channel: what happens to one rank, every rank hears of, and none goes on without the others.

Each rank has two threads. One beats: each second it writes a new number into the store and reads the others' numbers
and the fail key. The other guards: it looks at what the first has heard, at the neighbours' processes and for signals,
and once the run has failed it ends this process if the main thread does not do so by itself: inside a collective or
LAPACK it cannot. The guard itself asks nobody anything that could keep it waiting.
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
from typing import TYPE_CHECKING, Any

from fidtool.distributed import failure, signals
from fidtool.distributed.failure import Cause, LostContactError, TooSlowError
from fidtool.distributed.launch import agent, served_by_agent
from fidtool.distributed.signals import NoAnswerError, bounded
from fidtool.errors import FidtoolError, RunError, as_fidtool_error

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

Tell = Callable[[FidtoolError, bool], None]
"""Tells the user of the error that ends the run; in so many words only where the second argument says so."""

_BEAT_SECONDS = 1.0
_TICK_SECONDS = 0.25
_GRACE_SECONDS = 5.0
"""After a failure the main thread has this long to stop by itself, keeping its work."""
_SIGNAL_GRACE_SECONDS = 2.5
_ANSWER_SECONDS = 1.5
_TELL_SECONDS = 2.0
_SILENT = "gave no sign of life for {:g} s (--peer-timeout): it is frozen, or its machine or the network is lost"
_ALONE_SECONDS = 1.5
"""A rank zero that is frozen and serves the store is killed so much later: all others are to see that it was frozen."""
_LOST_SECONDS = 3.5
"""How long a rank whose collective broke looks for the reason before it names itself; see `Channel._find_reason`."""


@dataclass(frozen=True)
class Deadlines:
    """How long a rank waits, in seconds.

    Attributes:
        peer: for a sign of life of another rank.
        collective: in one collective, which includes waiting for the slowest rank's share.
    """

    peer: float = 20.0
    collective: float = 1800.0

    @property
    def start(self) -> float:
        """For the others to start."""
        return min(120.0, self.collective)


@dataclass(frozen=True)
class Process:
    """A rank's process, by what tells it from all others.

    Attributes:
        host: name of its machine.
        pid: its number there.
        space: the machine's boot and the namespace that ``pid`` counts in; empty where there is no /proc.
        started: when it began, in the kernel's ticks: a number can be given again.
    """

    host: str
    pid: int
    space: str = ""
    started: str = ""

    @staticmethod
    def this() -> Process:
        """The calling process."""
        pid = os.getpid()
        try:
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            space = f"{boot} {os.readlink('/proc/self/ns/pid')}"
            return Process(socket.gethostname(), pid, space, _fields(pid)[1])
        except OSError:
            return Process(socket.gethostname(), pid)

    def is_neighbour_of(self, other: Process) -> bool:
        """Whether each can see the other in /proc."""
        return bool(self.space) and self.space == other.space

    def gone(self) -> bool:
        """Whether this neighbour of the calling process has ended; a zombie has."""
        try:
            state, started = _fields(self.pid)
        except (FileNotFoundError, ProcessLookupError):
            return True
        except OSError:  # this process has too many files open, perhaps
            return False
        return state in "ZX" or started != self.started

    def kill(self) -> None:
        """Ends a neighbour that no longer answers, frozen ones too."""
        if not self.gone():
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def _fields(pid: int) -> tuple[str, str]:
    """State and start time in /proc/PID/stat; the name before them may hold spaces and brackets."""
    rest = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return rest[0], rest[19]


def beat(store: Store, rank: int, number: int, collectives: int) -> None:
    """Writes this rank's sign of life, ``number``, with the number of collectives that it has come to."""
    store.set(f"beat/{rank}", f"{number} {collectives}")


def listen(store: Store, ranks: Sequence[int]) -> list[bytes]:
    """The last signs of life of ``ranks``, all of which must have written one."""
    return list(store.multi_get([f"beat/{rank}" for rank in ranks]))


def behind(store: Store, processes: Sequence[Process], collectives: int) -> str:
    """The ranks that have not come to collective number ``collectives`` yet, for a message."""
    come = [int(value.split()[1]) for value in listen(store, range(len(processes)))]
    late = [f"rank {rank} ({processes[rank]})" for rank, reached in enumerate(come) if reached < collectives]
    return ", ".join(late[:8]) or "the other ranks"


class Channel:
    """One rank's end of the failure channel.

    Args:
        rank, size: place of this process.
        deadlines: see `Deadlines`.
        tell: tells the user; None leaves that to the exceptions, as long as the process lives.
    """

    def __init__(self, rank: int, size: int, deadlines: Deadlines, tell: Tell | None) -> None:
        self._rank, self._size, self._deadlines, self._tell = rank, size, deadlines, tell
        self._store: Any = None
        self._processes: list[Process] = []
        self._cause: Cause | None = None
        self._failed = threading.Event()
        self._closed = threading.Event()
        self._adopting, self._telling = threading.Lock(), threading.Lock()
        self._told = False
        self._give_up_at = self._end_at = float("inf")
        self._heard: dict[int, tuple[bytes, float]] = {}
        self._ticked = self._rounded = time.monotonic()
        self._store_lost = ""
        self.collectives = 0  # that this rank has come to

    def attach(self, store: Any) -> None:
        """From now on ``store``, a client of the channel's own, carries what is to be told."""
        self._store = store
        # Before the others know of this rank: their clients would wait long for a key that a dead rank never wrote.
        beat(store, self._rank, 0, 0)

    def start(self, processes: list[Process]) -> None:
        """Begins to beat and to guard, once every rank is known."""
        self._processes = processes
        now = time.monotonic()
        self._ticked = self._rounded = now
        self._heard = dict.fromkeys(self._watched(), (b"", now))
        for work in [self._guard, *([self._beat] if processes else [])]:
            threading.Thread(target=work, name=f"fidtool{work.__name__}", daemon=True).start()

    def _watched(self) -> list[int]:
        """Rank zero listens to everyone, the others to rank zero."""
        if not self._processes:
            return []
        return [rank for rank in range(self._size) if rank != self._rank] if self._rank == 0 else [0]

    # What the main thread asks and says.

    def must_stop(self) -> bool:
        """Whether the run has failed somewhere, or was told to stop. Costs nothing."""
        return self._failed.is_set() or signals.received() is not None

    def hopeless(self) -> bool:
        """Whether a collective that still waits is to be given up, so that a program of the user's own can go on."""
        return time.monotonic() > self._give_up_at

    def report(self, error: FidtoolError) -> None:
        """This rank has failed: the others hear of it now, not when they next meet."""
        self._settle_on(Cause.of(error, self._rank))

    def first_error(self, seconds: float = _LOST_SECONDS) -> FidtoolError | None:
        """The first failure's exception, once there is one; None if none turns up in ``seconds``."""
        self._failed.wait(seconds)
        return None if self._cause is None else self._cause.error()

    def settle(self, caught: BaseException) -> FidtoolError:
        """The error that the user shall read for ``caught``, which ends this rank: the run's first. Told once."""
        stopped = failure.stopped_here(self._rank, self._size) if isinstance(caught, KeyboardInterrupt) else None
        error = as_fidtool_error(caught) if stopped is None else stopped.error()
        first = self._find_reason(error) if isinstance(error, LostContactError) else None
        if first is None:
            error = failure.located(error, self._rank, self._size)
            self._settle_on(Cause.of(error, self._rank))
            known = self._cause
            first = error if error.agreed or known is None or known.message == str(error) else known.error()
        error = first
        signals.disregard()
        if not signals.taken_over():
            self._end_at = float("inf")  # the program has its exception: what becomes of it is its own affair
        self._tell_once(error, hard=False)
        error.told = self._tell is not None
        return error

    def _find_reason(self, lost: LostContactError) -> FidtoolError | None:
        """What lies behind a collective that broke: a rank on a machine of its own is missed by its silence alone."""
        apart = any(not self._is_neighbour(rank) for rank in range(len(self._processes)))
        silence = self._deadlines.peer + 3 * _BEAT_SECONDS
        return self.first_error(silence if apart and not isinstance(lost, TooSlowError) else _LOST_SECONDS)

    def behind(self) -> str:
        """The ranks that have not come to the collective in which this one waits, as far as can be told."""
        with contextlib.suppress(Exception):
            return bounded(lambda: behind(self._store, self._processes, self.collectives), _ANSWER_SECONDS)
        return "the other ranks"

    def close(self, wait: bool) -> None:
        """This rank needs nobody any more. Rank zero, which may serve the store, waits for the others if told to."""
        if self._store is not None:
            with contextlib.suppress(Exception):
                bounded(lambda: self._store.set(f"bye/{self._rank}", "1"), _ANSWER_SECONDS)
            if wait:
                self._closed.set()
            if self._rank == 0:
                self._linger(self._deadlines.peer if wait else _TELL_SECONDS)

    def stop(self) -> None:
        """Ends both threads."""
        self._closed.set()

    # The beating thread.

    def _beat(self) -> None:
        number = 0
        while not self._closed.wait(_BEAT_SECONDS):
            number += 1
            try:
                beat(self._store, self._rank, number, self.collectives)
                self._listen()
                known = failure.read(self._store)
                self._rounded = time.monotonic()
            except Exception as error:
                if not self._closed.is_set():
                    self._store_lost = type(error).__name__
                return
            if known is not None and self._cause is None:
                self._adopt(known)

    def _listen(self) -> None:
        watched = self._watched()
        for rank, value in zip(watched, listen(self._store, watched), strict=True):
            if value != self._heard[rank][0]:
                self._heard[rank] = (value, time.monotonic())

    # The guarding thread.

    def _guard(self) -> None:
        while not self._closed.is_set():
            signals.wait(_TICK_SECONDS)
            if self._closed.is_set():
                return
            now = time.monotonic()
            if now - self._ticked > self._deadlines.peer / 2:  # it was this process that stood still
                self._heard = {rank: (value, now) for rank, (value, _) in self._heard.items()}
                self._rounded = now
            self._ticked = now
            if self._cause is None and (found := self._find(now)) is not None:
                self._settle_on(found)
            if self._cause is not None and now >= self._end_at:
                self._end(self._cause)

    def _find(self, now: float) -> Cause | None:
        """Something that this rank alone can see."""
        for rank in range(len(self._processes)):
            # Asked before signals: a launcher that has lost one rank sends SIGTERM to the others.
            if rank != self._rank and self._gone(rank) and not self._said_bye(rank):
                if self._store_lost and served_by_agent():
                    break  # that rank had nobody to say goodbye to
                return self._silent(rank, "ended without a word: it was killed (out of memory?) or it crashed")
        if (stopped := failure.stopped_here(self._rank, self._size)) is not None:
            return stopped
        if self._store_lost:
            return self._without_store()
        patience = self._deadlines.peer
        what = _SILENT.format(patience)
        if self._heard and now - self._rounded > patience:  # nothing can be heard of anybody
            if not served_by_agent():
                return self._silent(0, what)
            return Cause(0, self._processes[0].host, f"{agent()} {what}", RunError.exit_code)
        for rank, (_, heard) in self._heard.items():
            if self._rounded - heard > patience and not self._said_bye(rank):
                return self._silent(rank, what)
        return None

    def _without_store(self) -> Cause:
        served = f"{agent() if served_by_agent() else 'rank 0'} or its machine ended"
        if self._rank == 0 or (self._is_neighbour(0) and not self._gone(0)):
            served = f"{agent()} ended"
        message = f"the ranks' meeting point cannot be reached any more ({self._store_lost}): {served}"
        return Cause(0, self._processes[0].host, message, RunError.exit_code, gone=not self._is_neighbour(0))

    def _silent(self, rank: int, what: str) -> Cause:
        process = self._processes[rank]
        return Cause(rank, process.host, f"rank {rank} ({process}) {what}", RunError.exit_code, gone=True)

    def _is_neighbour(self, rank: int) -> bool:
        return self._processes[rank].is_neighbour_of(self._processes[self._rank])

    def _said_bye(self, rank: int) -> bool:
        return self._knows(f"bye/{rank}")

    def _knows(self, key: str) -> bool:
        """Whether the store has ``key``; False where it does not answer."""
        try:
            return bounded(lambda: bool(self._store.check([key])), _ANSWER_SECONDS)
        except RuntimeError as error:
            self._store_lost = type(error).__name__
        except NoAnswerError:
            pass
        return False

    def _settle_on(self, found: Cause) -> None:
        """Makes ``found`` the run's cause, unless the run has one already."""
        if self._cause is not None:
            return
        if self._store is not None and not self._store_lost:
            with contextlib.suppress(RuntimeError, NoAnswerError):
                found = bounded(lambda: failure.post(self._store, found), _ANSWER_SECONDS)
        self._adopt(found)

    def _adopt(self, known: Cause) -> None:
        with self._adopting:
            if self._cause is not None:
                return
            self._end_at = time.monotonic() + (_SIGNAL_GRACE_SECONDS if known.signal else _GRACE_SECONDS)
            if not signals.taken_over():  # a program of the user's own shall get its exception, if that can be
                self._give_up_at = time.monotonic() + (_GRACE_SECONDS if known.gone else self._deadlines.peer)
                self._end_at = self._give_up_at + _GRACE_SECONDS
            self._cause = known
            self._failed.set()
        if known.gone and known.rank != self._rank and self._is_neighbour(known.rank):
            if known.rank == 0 and not served_by_agent():
                time.sleep(_ALONE_SECONDS)
            self._processes[known.rank].kill()  # frozen, it would stay for ever

    # The end.

    def _end(self, known: Cause) -> None:
        """Ends this process from under its main thread."""
        self._tell_once(known.error(), hard=True)
        self.close(wait=False)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                bounded(stream.flush, 0.5)
        os._exit(known.exit_code)

    def _tell_once(self, error: FidtoolError, hard: bool) -> None:
        with self._telling:
            if self._told or (self._tell is None and not hard):
                return
            self._told = True
            mine = self._claim()
            line = f"error: {' '.join(str(error).split())}\n"
            with contextlib.suppress(Exception):
                if self._tell is not None:
                    tell = self._tell
                    bounded(lambda: tell(error, mine), _TELL_SECONDS)
                elif hard and mine:
                    os.write(2, line.encode("utf-8", "replace"))

    def _claim(self) -> bool:
        """Whether this rank says it. Rank zero goes first, if it lives: its log is the one that people read.

        Where the store is gone every rank says it: none can know whether another has.
        """
        if self._size == 1 or self._store is None or self._store_lost:
            return True
        lost = self._cause is not None and self._cause.gone and self._cause.rank == 0
        deadline = time.monotonic() + (0.0 if lost or self._rank == 0 else _TELL_SECONDS)
        try:
            while time.monotonic() < deadline:
                if bounded(lambda: failure.claimed(self._store), _ANSWER_SECONDS):
                    return False
                time.sleep(0.05)
            return bounded(lambda: failure.claim(self._store), _ANSWER_SECONDS)
        except (RuntimeError, NoAnswerError):
            return True

    def _linger(self, seconds: float) -> None:
        """Rank zero may be serving the store: it leaves last."""
        deadline = time.monotonic() + seconds
        waiting = [rank for rank in range(1, self._size) if self._processes or self._knows(f"here/{rank}")]
        while waiting and time.monotonic() < deadline:
            waiting = [rank for rank in waiting if not self._said_bye(rank) and not self._gone(rank)]
            time.sleep(0.02 if waiting else 0.0)

    def _gone(self, rank: int) -> bool:
        return bool(self._processes) and self._is_neighbour(rank) and self._processes[rank].gone()
