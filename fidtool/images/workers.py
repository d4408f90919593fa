"""Worker processes, which compute results ahead of their use."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import math
import os
import pickle
import queue
import random
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from multiprocessing.util import get_temp_dir
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import multiprocessing

from fidtool.distributed import signals
from fidtool.errors import RunError, Spelling, current_spelling, option, spell_by

Task = TypeVar("Task")
Result = TypeVar("Result")

_AHEAD = 2
"""Number of tasks that each worker has at a time."""
_CONTINUE = b"+"
"""Sent to a worker when one of several results of a task has been received."""
_PR_SET_PDEATHSIG = 1
_CHECK_SECONDS = 0.5
"""Interval at which the duration of a wait is checked."""
_DYING_SECONDS = 5.0
"""Seconds to wait for the end of a process whose pipe broke. Errors with other causes are delayed by this time."""
_BROKEN = (RuntimeError, EOFError, OSError, pickle.UnpicklingError)
"""Exceptions that the death of a worker may cause: from its pipe, or from the socket that sends shared memory."""


@dataclass(frozen=True)
class _Raised:
    """The exception that a task raised in a worker."""

    error: str


@dataclass(frozen=True)
class _Worker:
    process: BaseProcess
    pipe: Connection[Any, Any]


class Workers(Iterator[Result], Generic[Task, Result]):
    """Yields the results of each task, in order. The workers take turns, and their number does not change the results.

    A task has at least one result. It may have several, so that large ones need not be in memory at the same time: a
    worker computes only one more while a result waits to be received. Tasks are read in this process, ahead of their
    results, and tensors in a result are sent through shared memory. ``patience`` is in seconds for each result.

    Each worker has its own pipe, so waiting for a result ends if the worker dies. The workers of torch's DataLoader
    share queues and an event instead. A worker that is killed may leave their locks locked, and torch's signal handler
    then raises an error anywhere in the main thread, which may do the same. Both have made the DataLoader hang.

    Raises an AssertionError in a daemonic process of multiprocessing, which may not start others, and an OSError if the
    workers cannot be started.
    """

    def __init__(
        self, work: Callable[[Task], Iterable[Result]], tasks: Iterable[Task], count: int, patience: float
    ) -> None:
        self._tasks, self._patience = iter(tasks), patience
        self._workers: list[_Worker] = []
        self._turns: deque[_Worker] = deque()  # one for each task that was sent, in the order of the tasks
        self._started = self._frozen = False
        self._failure: Exception | None = None
        self._limit = math.inf  # when the present wait for a pipe is too long
        self._ending = threading.Event()
        get_temp_dir()  # otherwise each worker creates one, and leaves it when it is killed
        atexit.register(self.end)  # multiprocessing would wait for workers that ignore SIGTERM
        try:
            for number in range(count):
                self._workers.append(_start(work, number))
            threading.Thread(target=self._watch, daemon=True, name="fidtool-workers").start()
        except BaseException:
            self.end()
            raise

    def __next__(self) -> Result:
        """Returns the next result; raises what reading the tasks raised, after the results of the earlier tasks.

        Raises a RunError if a worker died, raised an exception, or produced no result in time.
        """
        if not self._started:
            self._started = True
            for worker in self._workers * _AHEAD:
                self._send(worker)
        if not self._turns:
            self._finish()
            raise self._failure or StopIteration
        worker = self._turns[0]
        result, is_last = self._received(worker)
        if is_last:
            self._turns.popleft()
            self._send(worker)
        else:
            self._send_bytes(worker, _CONTINUE)
        return result

    def _send(self, worker: _Worker) -> None:
        try:
            for task in islice(self._tasks, 1):
                self._send_bytes(worker, ForkingPickler.dumps(task))
                self._turns.append(worker)
        except Exception as error:  # raised after the results of the earlier tasks
            self._tasks, self._failure = iter(()), error

    def _send_bytes(self, worker: _Worker, data: bytes | memoryview) -> None:
        with contextlib.suppress(OSError), self._limited():  # if it died, that is noticed when its result is due
            worker.pipe.send_bytes(data)

    def _received(self, worker: _Worker) -> tuple[Result, bool]:
        """Returns the next result of the worker, and whether it is the last of its task."""
        try:
            with self._limited():
                result, is_last = worker.pipe.recv()
        except _BROKEN as error:
            if self._frozen:
                raise RunError(
                    f"the decoding workers produced no batch for {self._patience:g} s ({option('timeout')}): a worker "
                    "is frozen, or the storage of the images does not respond",
                    setting="timeout",
                ) from error
            if not (ended := self._ended()):
                raise  # all workers are alive, so the error has a different cause
            raise RunError(
                f"a decoding worker died ({ended}): it was killed, ran out of memory, or /dev/shm is too small",
                f"try {option('num_workers', 0)}",
                setting="num_workers",
            ) from error
        if isinstance(result, _Raised):
            raise RunError(f"{result.error} (in a decoding worker)")
        return result, is_last

    def _ended(self) -> str:
        """Returns how one of the workers ended; empty if all are alive."""
        ended = wait([worker.process.sentinel for worker in self._workers], _DYING_SECONDS)
        for process in (worker.process for worker in self._workers):
            if process.sentinel in ended:
                process.join()  # the exit status may become available slightly later
                code = process.exitcode or 0
                return f"process {process.pid}: {signal.Signals(-code).name if code < 0 else f'status {code}'}"
        return ""

    @contextlib.contextmanager
    def _limited(self) -> Iterator[None]:
        self._limit = time.monotonic() + self._patience  # one thread looks: a timer per message costs half the time
        try:
            yield
        finally:
            self._limit = math.inf

    def _watch(self) -> None:
        while not self._ending.wait(min(self._patience, _CHECK_SECONDS)):
            if time.monotonic() > self._limit:
                self._give_up()
                return

    def _give_up(self) -> None:
        self._frozen = True
        for worker in self._workers:
            worker.process.kill()
            # A process waiting for storage survives, and the process of a Dataset may have a copy of the worker's end.
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(worker.pipe.fileno())) as ours:
                ours.shutdown(socket.SHUT_RDWR)

    def _finish(self) -> None:
        """Lets the workers exit normally, now that they have nothing to do."""
        for worker in self._workers:
            with contextlib.suppress(OSError):
                worker.pipe.send_bytes(b"")
        for worker in self._workers:
            worker.process.join(_DYING_SECONDS)
        self.end()

    def end(self) -> None:
        """Kills the workers that still exist. They may ignore SIGTERM."""
        atexit.unregister(self.end)
        self._ending.set()
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join(_DYING_SECONDS)


def _start(work: Callable[[Any], Any], number: int) -> _Worker:
    context = multiprocessing.get_context()
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(work, number, current_spelling(), theirs, ours), daemon=True)
    process.start()
    theirs.close()  # so that the worker has the only copy, and the pipe breaks when it dies
    return _Worker(process, ours)


def _work(
    work: Callable[[Any], Any],
    number: int,
    spelling: Spelling,
    pipe: Connection[Any, Any],
    parents_end: Connection[Any, Any],
) -> None:
    """Runs in a worker until its parent sends no bytes."""
    parents_end.close()
    with contextlib.suppress(OSError, AttributeError):  # only Linux has prctl
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signals.reset_in_worker()
    spell_by(spelling)
    torch.set_num_threads(1)
    for seed in (random.seed, np.random.seed, torch.manual_seed):  # a Dataset may draw random numbers
        seed(number)
    tasks: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    received = threading.Semaphore(0)
    # Received in a thread, since this process and its parent could otherwise both wait to send.
    threading.Thread(target=_receive, args=(pipe, tasks, received), daemon=True).start()
    with contextlib.suppress(OSError):  # the parent has ended
        while task := tasks.get():
            for data, is_last in _results(work, task):
                pipe.send_bytes(data)
                if not is_last:
                    received.acquire()


def _results(work: Callable[[Any], Iterable[Any]], task: bytes) -> Iterator[tuple[Any, bool]]:
    """Yields the pickled results of a task, each with whether it is the last."""
    try:
        results = iter(work(ForkingPickler.loads(task)))
        latest = next(results)
        for result in results:
            yield ForkingPickler.dumps((latest, False)), False
            latest = result
        yield ForkingPickler.dumps((latest, True)), True
    except Exception as error:
        yield ForkingPickler.dumps((_Raised(f"{type(error).__name__}: {error}"), True)), True


def _receive(pipe: Connection[Any, Any], tasks: queue.SimpleQueue[bytes], received: threading.Semaphore) -> None:
    with contextlib.suppress(EOFError, OSError):
        while data := pipe.recv_bytes():
            if data == _CONTINUE:
                received.release()
            else:
                tasks.put(data)
    received.release()
    tasks.put(b"")
