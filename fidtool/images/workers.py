"""Worker processes and threads, which compute results ahead of their use."""

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
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from itertools import cycle
from multiprocessing import reduction
from multiprocessing.connection import Connection
from multiprocessing.pool import ExceptionWithTraceback  # type: ignore[attr-defined]
from multiprocessing.process import BaseProcess
from typing import IO, Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch

from fidtool.distributed import signals
from fidtool.errors import FidtoolError, RunError, option

Task = TypeVar("Task")
Result = TypeVar("Result")

_PIPE_BYTES = 1 << 20
"""Largest size of an array that is sent through a pipe. Larger ones are in memory that both processes map."""
_DYING_SECONDS = 5.0
"""Seconds to wait for the end of a process whose pipe broke."""
_all: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


class _Raised(NamedTuple):
    """The exception that a task raised in a worker, and the program's exception that caused it."""

    error: FidtoolError
    cause: BaseException | None = None


class _Worker(NamedTuple):
    process: BaseProcess
    pipe: Connection[Any, Any]
    socket: socket.socket
    """The same end of the pipe, which receives the arrays' descriptors."""


class Workers(Generic[Task, Result]):
    """Computes one result per task. The workers take turns, and their number does not change the results.

    Each worker has its own pipe, which breaks when the worker dies, and on which the system limits each wait to
    ``patience`` seconds. The workers of a `concurrent.futures.ProcessPoolExecutor` share queues: the interpreter then
    waits at exit for a worker that is frozen, and a message that is cut off blocks all that follow.

    Raises an AssertionError in a daemonic process of multiprocessing, which may not start others, and an OSError if the
    workers cannot be started.
    """

    def __init__(self, work: Callable[[Task], Result], count: int, patience: float) -> None:
        self._patience = patience
        self._workers: list[_Worker] = []
        self._turns: deque[_Worker] = deque()  # one for each task that was sent, in the order of the tasks
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
        self._turns.append(worker)
        with contextlib.suppress(OSError):  # if it died, that is noticed when its result is due
            worker.pipe.send_bytes(pickle.dumps(task))

    def result(self) -> Result:
        """Returns the result of the oldest task.

        Raises a RunError if its worker died, raised an exception, or took too long.
        """
        worker = self._turns.popleft()
        try:
            data, sizes = worker.pipe.recv()
            buffers = []
            for size in sizes:
                with open(reduction.recvfds(worker.socket, 1)[0], "r+b") as file:
                    buffers.append(mmap.mmap(file.fileno(), size))
            result = pickle.loads(data, buffers=buffers)
        except BlockingIOError as error:
            self.end()
            problem = f"the decoding workers produced no batch for {self._patience:g} s ({option('timeout')})"
            causes = "a worker is frozen, or the storage of the images does not respond"
            raise RunError(f"{problem}: {causes}", setting="timeout") from error
        except (EOFError, OSError, RuntimeError) as error:  # what the death of a worker may cause in its pipe
            worker.process.join(_DYING_SECONDS)
            if (code := worker.process.exitcode) is None:
                raise  # it is alive, so the error has a different cause
            how = signal.Signals(-code).name if code < 0 else f"status {code}"
            raise RunError(
                f"a decoding worker died (process {worker.process.pid}: {how}): it was killed or ran out of memory",
                f"try {option('num_workers', 0)}",
                setting="num_workers",
            ) from error
        if isinstance(result, _Raised):
            raise result.error from result.cause
        return result  # type: ignore[no-any-return]

    def end(self) -> None:
        atexit.unregister(self.end)
        for worker in self._workers:
            worker.process.kill()
        _join([worker.process for worker in self._workers], _DYING_SECONDS)  # one that waits for storage stays
        for worker in self._workers:
            worker.socket.close()


def _start(work: Callable[[Any], Any], number: int, patience: float) -> _Worker:
    context = multiprocessing.get_context()
    ours, theirs = context.Pipe()
    seconds = min(patience, 1e9)
    limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    with _socket_of(ours) as end:
        for direction in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            end.setsockopt(socket.SOL_SOCKET, direction, limit)
    process = context.Process(target=_work, args=(work, number, theirs, ours), daemon=True)
    process.start()
    theirs.close()  # so that the worker has the only copy, and the pipe breaks when it dies
    return _Worker(process, ours, _socket_of(ours))


def _socket_of(pipe: Connection[Any, Any]) -> socket.socket:
    """Returns a socket of the pipe's end, which blocks although the program may have set a default timeout."""
    end = socket.socket(fileno=os.dup(pipe.fileno()))
    end.settimeout(None)
    return end


# --- in a worker -----------------------------------------------------------------------------------------------------


def _work(
    work: Callable[[Any], Any], number: int, pipe: Connection[Any, Any], parents_end: Connection[Any, Any]
) -> None:
    """Runs until the parent ends."""
    parents_end.close()
    with contextlib.suppress(OSError, AttributeError):  # only Linux has prctl
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    signals.reset_in_worker()
    torch.set_num_threads(1)
    for seed in (random.seed, np.random.seed, torch.manual_seed):  # a Dataset may draw random numbers
        seed(number)
    end = _socket_of(pipe)
    tasks: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    # Received in a thread, since this process and its parent could otherwise both wait to send.
    threading.Thread(target=_receive, args=(pipe, tasks), daemon=True).start()
    with contextlib.suppress(OSError):  # the parent has ended
        while task := tasks.get():
            try:
                result = work(pickle.loads(task))
            except FidtoolError as error:
                result = _Raised(error, _sendable(error.__cause__))
            except Exception as error:
                result = _Raised(RunError(f"{type(error).__name__}: {error} (in a decoding worker)"))
            with contextlib.ExitStack() as files:
                data, large = _packed(result, files)
                pipe.send((data, [file.tell() for file in large]))
                for file in large:
                    reduction.sendfds(end, [file.fileno()])


def _sendable(error: BaseException | None) -> Any:
    """Returns an object that is unpickled as ``error``, with its traceback as its cause; None if it cannot be sent."""
    try:
        wrapped = error and ExceptionWithTraceback(error, error.__traceback__)
        pickle.loads(pickle.dumps(wrapped))
    except Exception:  # the program's exception class may raise anything
        return None
    return wrapped


def _receive(pipe: Connection[Any, Any], tasks: queue.SimpleQueue[bytes]) -> None:
    with contextlib.suppress(EOFError, OSError):
        while True:
            tasks.put(pipe.recv_bytes())
    tasks.put(b"")


def _packed(result: Any, files: contextlib.ExitStack) -> tuple[bytes, list[IO[bytes]]]:
    """Returns the pickled result without its large arrays, and these in files in memory."""
    large: list[IO[bytes]] = []

    def stays(buffer: pickle.PickleBuffer) -> bool:
        if buffer.raw().nbytes > _PIPE_BYTES:
            with contextlib.suppress(OSError, AttributeError):  # only Linux has it, and not if out of resources
                # Unlike files in /dev/shm, which is small in containers, it is only limited by the memory.
                file = files.enter_context(os.fdopen(os.memfd_create("fidtool"), "wb"))
                file.write(buffer.raw())
                file.flush()
                large.append(file)
                return False
        return True

    return pickle.dumps(result, protocol=5, buffer_callback=stays), large


# --- threads ---------------------------------------------------------------------------------------------------------


class DaemonThreads:
    """A pool of ``count`` threads, each with one intra-op torch thread; see `fidtool.features.device.repeatable`.

    Unlike the threads of ``concurrent.futures`` they are daemons: work that never ends does not keep the process alive.
    With a ``count`` of 0, the calling thread does the work at once.
    """

    def __init__(self, count: int) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._run, name=f"fidtool-{n}", daemon=True) for n in range(count)]
        for thread in self._threads:
            thread.start()
            _all.add(thread)

    def submit(self, work: Callable[..., Any], *items: Any) -> Future[Any]:
        """Return the future result of ``work(*items)``. The first free thread computes it."""
        future: Future[Any] = Future()
        job = partial(signals.settle, future, work, *items)
        if self._threads:
            self._jobs.put(job)
        else:
            job()
        return future

    def close(self, seconds: float) -> None:
        """Stop the threads after their current work, and wait at most ``seconds`` for that."""
        for _ in self._threads:
            self._jobs.put(None)
        _join(self._threads, seconds)

    def _run(self) -> None:
        # The first operation in a thread resets the number of threads to the value set last by any thread: trigger
        # this reset before setting ours.
        torch.get_num_threads()
        torch.set_num_threads(1)
        while (job := self._jobs.get()) is not None:
            job()
            del job  # frees its images while the thread waits


def _join(running: Iterable[threading.Thread | BaseProcess], seconds: float) -> None:
    """Waits for the ends of threads or processes, for this time in all."""
    deadline = time.monotonic() + seconds
    for each in list(running):
        each.join(max(0.0, deadline - time.monotonic()))


# A thread that returns from C++ into a finalising interpreter would abort the process. It may also never return.
atexit.register(_join, _all, 2.0)
