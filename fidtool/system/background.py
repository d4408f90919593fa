"""Work in threads of its own: calls with a timeout, and pools whose threads do not keep the process
alive.
"""

from __future__ import annotations

import atexit
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future
    from multiprocessing.process import BaseProcess

T = TypeVar("T")

CALL_THREAD_NAME = "fidtool-call"
"""Name of the threads of `start_in_background`."""


def start_in_background(work: Callable[[], T]) -> Future[T]:
    """Call ``work`` in a daemon thread, so that the program can exit even if it never returns."""
    from concurrent.futures import Future

    future: Future[T] = Future()
    threading.Thread(target=settle, args=(future, work), daemon=True, name=CALL_THREAD_NAME).start()
    return future


def settle(future: Future[T], work: Callable[..., T], *items: Any) -> None:
    """Call ``work`` for a future, unless that was cancelled. What it raises, `Future.result`
    raises.
    """
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work(*items))
    except BaseException as error:
        future.set_exception(error)


def call_with_timeout(function: Callable[[], T], seconds: float) -> T:
    """Call ``function`` in a new thread and wait at most ``seconds`` for its return value.

    Needed because clients of torch's store wait indefinitely for a frozen server.

    Raises:
        TimeoutError: if it does not return in time. The thread keeps running.
    """
    from concurrent.futures import wait as wait_for  # lazily, so that --help is fast

    future = start_in_background(function)
    wait_for([future], min(seconds, threading.TIMEOUT_MAX))  # infinite where no deadline is set
    if not future.done():
        raise TimeoutError(f"no response within {seconds:g} s")
    return future.result()


class DaemonThreads:
    """A pool of ``count`` threads that do work in the order in which it is submitted.

    Unlike the threads of ``concurrent.futures`` they are daemons: work that never ends does not
    keep the process alive. With a ``count`` of 0, the calling thread does the work at once.

    Args:
        count: number of threads.
        uses_torch: whether the work uses torch, which then computes with one thread within an
            operation. The threads may be inside its C++ code when the program exits, which then
            waits for them for a short time.
    """

    def __init__(self, count: int, uses_torch: bool = False) -> None:
        self._uses_torch = uses_torch
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"fidtool-{n}", daemon=True)
            for n in range(count)
        ]
        for thread in self._threads:
            thread.start()
            if uses_torch:
                _torch_threads.add(thread)

    def submit(self, work: Callable[..., T], *items: Any) -> Future[T]:
        """Return the future result of ``work(*items)``. The first free thread computes it."""
        from concurrent.futures import Future

        future: Future[T] = Future()
        job = partial(settle, future, work, *items)
        if self._threads:
            self._jobs.put(job)
        else:
            job()
        return future

    def close(self, seconds: float) -> None:
        """Stop the threads after their current work, and wait at most ``seconds`` for that; with 0
        seconds, this can be called in any thread, also in one of these.
        """
        for _ in self._threads:
            self._jobs.put(None)
        if seconds > 0:
            join(self._threads, seconds)

    def _run(self) -> None:
        if self._uses_torch:
            _use_one_torch_thread()
        while (job := self._jobs.get()) is not None:
            job()
            del job  # frees its images while the thread waits


def _use_one_torch_thread() -> None:
    """Let torch compute with one thread within an operation; see
    `fidtool.features.device.deterministic_mode`.

    The first operation in a thread resets the number of threads to the value set last by any
    thread: this is triggered before ours is set.
    """
    import torch  # lazily, because workers that decode do not need it

    torch.get_num_threads()
    torch.set_num_threads(1)


def join(running: Iterable[threading.Thread | BaseProcess], seconds: float) -> None:
    """Wait for the ends of threads or processes, for this time in all."""
    deadline = time.monotonic() + seconds
    for one in list(running):
        one.join(max(0.0, deadline - time.monotonic()))


_torch_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
# A thread that returns from C++ into a finalising interpreter would abort the process. It may also
# never return.
atexit.register(join, _torch_threads, 2.0)
