"""Worker processes, which compute results ahead of their use."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import mmap
import multiprocessing
import os
import pickle
import queue
import random
import signal
import socket
import struct
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import cycle
from multiprocessing import reduction
from multiprocessing.connection import Connection
from multiprocessing.pool import ExceptionWithTraceback  # type: ignore[attr-defined]
from multiprocessing.process import BaseProcess
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from fidtool.distributed import signals
from fidtool.errors import FidtoolError, RunError, option
from fidtool.system.background import join

Task = TypeVar("Task")
Result = TypeVar("Result")

KEPT_BYTES = 1 << 25
"""Usual size of a buffer. The memory of larger ones is returned to the system while it is not in
use.
"""
DYING_SECONDS = 5.0
"""Seconds to wait for the end of a process whose pipe broke."""


class _TaskError(NamedTuple):
    """The exception that a task raised in a worker, and the program's exception that caused it."""

    error: FidtoolError
    cause: BaseException | None = None


@dataclass(eq=False)
class _Worker:
    """A worker and the buffers that it writes to.

    Attributes:
        socket: the same end as ``pipe``, which receives the buffers' descriptors.
        idle: buffers that contain no result in use.
        buffers: number of its buffers.
    """

    process: BaseProcess
    pipe: Connection[Any, Any]
    socket: socket.socket
    idle: deque[Buffer] = field(default_factory=deque)
    buffers: int = 0

    def take_buffer(self) -> Buffer:
        """Return an idle buffer, or a new one."""
        if self.idle:
            return self.idle.pop()
        self.buffers += 1
        return Buffer(self.buffers, weakref.ref(self))


@dataclass(eq=False)
class Buffer:
    """Memory for the arrays of one result, which the worker and its parent map once.

    `free` gives it back when they are no longer used. Without this, later results get other
    buffers.
    """

    number: int
    _worker: weakref.ref[_Worker]
    memory: mmap.mmap | None = None

    def free(self) -> None:
        """Let the worker use it for another result. Called in any thread."""
        if self.memory is not None and len(self.memory) > KEPT_BYTES:
            # A program may lock its memory; only Linux has it.
            with contextlib.suppress(OSError, AttributeError):
                self.memory.madvise(mmap.MADV_REMOVE)
        worker = self._worker()
        if worker is not None:
            worker.idle.append(self)


class Workers(Generic[Task, Result]):
    """Computes one result per task. The workers take turns, and their number does not change the
    results.

    ``work`` gets the task, and memory that both processes map: of arrays in it, only the places are
    sent.

    Each worker has its own pipe, which breaks when the worker dies, and on which the system limits
    each wait to ``patience`` seconds. The workers of a `concurrent.futures.ProcessPoolExecutor`
    share queues: the interpreter then waits at exit for a worker that is frozen, and a message that
    is cut off blocks all that follow.

    Raises an AssertionError in a daemonic process of multiprocessing, which may not start others,
    and an OSError if the workers cannot be started.
    """

    def __init__(
        self, work: Callable[[Task, WorkerMemory], Result], count: int, patience: float
    ) -> None:
        self._patience = patience
        self._workers: list[_Worker] = []
        # For each task that was sent, in the order of the tasks.
        self._turns: deque[tuple[_Worker, Buffer]] = deque()
        self.room = 2 * count
        """Number of tasks to send before the first result is requested: two for each worker."""
        atexit.register(self.end)  # multiprocessing would wait for workers that ignore SIGTERM
        try:
            for number in range(count):
                self._workers.append(_start(work, number, patience))
        except BaseException:
            self.end()
            raise
        self._next = cycle(self._workers)

    def send(self, task: Task) -> None:
        worker = next(self._next)
        buffer = worker.take_buffer()
        self._turns.append((worker, buffer))
        with contextlib.suppress(OSError):  # if it died, that is noticed when its result is due
            worker.pipe.send_bytes(pickle.dumps((buffer.number, task)))

    def receive(self) -> tuple[Result, Buffer]:
        """Return the result of the oldest task, and the buffer that holds its arrays.

        Raises a RunError if its worker died, raised an exception, or took too long.
        """
        worker, buffer = self._turns.popleft()
        try:
            data, places, has_grown = worker.pipe.recv()
            if has_grown:
                with open(reduction.recvfds(worker.socket, 1)[0], "r+b") as file:
                    buffer.memory = mmap.mmap(file.fileno(), 0)
            memory = memoryview(buffer.memory or b"")
            result = pickle.loads(data, buffers=[memory[start:stop] for start, stop in places])
        except BlockingIOError as error:
            self.end()
            raise RunError(
                f"the decoding workers produced no batch for {self._patience:g} s "
                f"({option('timeout')}): a worker is frozen, or the storage of the images does not "
                "respond"
            ) from error
        except (EOFError, OSError, RuntimeError) as error:  # what a death may cause in its pipe
            worker.process.join(DYING_SECONDS)
            code = worker.process.exitcode
            if code is None:
                raise  # it is alive, so the error has a different cause
            how = signal.Signals(-code).name if code < 0 else f"status {code}"
            raise RunError(
                f"a decoding worker died (process {worker.process.pid}: {how}): it was killed or "
                "ran out of memory",
                f"try {option('num_workers', 0)}",
                setting="num_workers",
            ) from error
        if isinstance(result, _TaskError):
            raise result.error from result.cause
        return result, buffer

    def end(self) -> None:
        atexit.unregister(self.end)
        for worker in self._workers:
            worker.process.kill()
        # One that waits for storage stays.
        join([worker.process for worker in self._workers], DYING_SECONDS)
        for worker in self._workers:
            worker.socket.close()


def _start(work: Callable[[Any, WorkerMemory], Any], number: int, patience: float) -> _Worker:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(
        target=_run_worker, args=(work, number, theirs, ours), daemon=True
    )
    seconds = min(patience, 1e9)
    limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    with _socket_of(ours) as end:  # closed before the fork, which would keep it open
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    process.start()
    theirs.close()  # so that the worker has the only copy, and the pipe breaks when it dies
    return _Worker(process, ours, _socket_of(ours))


def _socket_of(pipe: Connection[Any, Any]) -> socket.socket:
    """Return a socket of the pipe's end, which blocks although the program may have set a default
    timeout.
    """
    end = socket.socket(fileno=os.dup(pipe.fileno()))
    end.settimeout(None)
    return end


# --- in a worker ----------------------------------------------------------------------------------


def _run_worker(
    work: Callable[[Any, WorkerMemory], Any],
    number: int,
    pipe: Connection[Any, Any],
    parents_end: Connection[Any, Any],
) -> None:
    """Run until the parent ends."""
    parents_end.close()
    with contextlib.suppress(OSError, AttributeError):  # only Linux has prctl
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    signals.reset_in_worker()
    random.seed(number)  # a Dataset may draw random numbers
    np.random.seed(number)
    torch = sys.modules.get("torch")  # decoding does not need it
    if torch is not None:
        torch.set_num_threads(1)
        torch.manual_seed(number)
    end = _socket_of(pipe)
    buffers: dict[int, WorkerMemory] = {}
    tasks: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    # Received in a thread, since this process and its parent could otherwise both wait to send.
    threading.Thread(target=_receive, args=(pipe, tasks), daemon=True).start()
    with contextlib.suppress(OSError):  # the parent has ended
        for message in iter(tasks.get, b""):
            number, task = pickle.loads(message)
            memory = buffers.setdefault(number, WorkerMemory())
            result: Any
            try:
                result = work(task, memory)
            except FidtoolError as error:
                result = _TaskError(error, _to_sendable(error.__cause__))
            except Exception as error:
                text = f"{type(error).__name__}: {error} (in a decoding worker)"
                result = _TaskError(RunError(text))
            memory.send(result, pipe, end)


def _to_sendable(error: BaseException | None) -> Any:
    """Return an object that is unpickled as ``error``, with its traceback as its cause; None if it
    cannot be sent.
    """
    if error is None:
        return None
    try:
        wrapped = ExceptionWithTraceback(error, error.__traceback__)
        pickle.loads(pickle.dumps(wrapped))
    except Exception:  # the program's exception class may raise anything
        return None
    return wrapped


def _receive(pipe: Connection[Any, Any], tasks: queue.SimpleQueue[bytes]) -> None:
    with contextlib.suppress(EOFError, OSError):
        while True:
            tasks.put(pipe.recv_bytes())
    tasks.put(b"")


class WorkerMemory:
    """A buffer in the worker.

    Unlike files in /dev/shm, which is small in containers, files in memory are only limited by the
    memory.
    """

    def __init__(self) -> None:
        self._file: int | None = None
        self._bytes = np.empty(0, np.uint8)
        # Whether the bytes are in the file, and not in the worker's own memory.
        self._is_shared = False
        self._has_grown = False
        # The values since the last call of `take`.
        self._start = 0
        self._stop = 0
        # The arrays that were taken, with the start and the end of each.
        self._arrays: list[tuple[NDArray[np.uint8], int, int]] = []

    def append(self, values: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Copy values behind those before, and return the copy."""
        start = self._stop
        stop = start + values.size
        if stop > len(self._bytes):
            self._grow(KEPT_BYTES if stop <= KEPT_BYTES else stop + stop // 2)
        self._stop = stop
        copy = self._bytes[start:stop].reshape(values.shape)
        copy[...] = values
        return copy

    def take(self) -> NDArray[np.uint8]:
        """Return an array of all values since the last call, shape (n,)."""
        array = self._bytes[self._start : self._stop]
        if self._is_shared:
            self._arrays.append((array, self._start, self._stop))
        self._start = self._stop
        return array

    def _grow(self, size: int) -> None:
        used = self._bytes[: self._stop]
        was_shared = self._is_shared
        try:
            if self._file is None:
                self._file = os.memfd_create("fidtool")
            os.ftruncate(self._file, size)
            self._bytes = np.frombuffer(mmap.mmap(self._file, size), np.uint8)
            self._has_grown = self._is_shared = True
        except (OSError, AttributeError):  # out of resources; only Linux has files in memory
            self._bytes = np.empty(size, np.uint8)
            self._is_shared = False
        if not (was_shared and self._is_shared):
            self._bytes[: self._stop] = used

    def send(self, result: Any, pipe: Connection[Any, Any], end: socket.socket) -> None:
        """Send a result without its arrays that are in the file, of which it sends the places."""
        places: list[tuple[int, int]] = []

        def is_sent(array: pickle.PickleBuffer) -> bool:
            sent: object = array.raw().obj
            for taken, start, stop in self._arrays:
                if sent is taken:
                    places.append((start, stop))
                    return False
            return True

        data = pickle.dumps(result, protocol=5, buffer_callback=is_sent)
        pipe.send((data, places, self._has_grown))
        if self._has_grown and self._file is not None:
            reduction.sendfds(end, [self._file])
        self._has_grown = False
        self._arrays.clear()
        self._start = self._stop = 0
        if not self._is_shared:
            self._bytes = np.empty(0, np.uint8)  # so that the next result is tried again
