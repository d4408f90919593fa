"""Threads that run forward passes side by side, and that no program has to wait for."""

from __future__ import annotations

import atexit
import queue
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")

_AT_EXIT_SECONDS = 2.0
"""How long an interpreter that ends waits for passes that nobody needs any more."""
_all: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


class Lanes(Generic[Item, Result]):
    """``count`` threads, each with one intra-op thread of torch's, that do ``work`` on what is submitted.

    Unlike those of ``concurrent.futures`` they are daemons: a pass that never ends does not keep the process.
    """

    def __init__(self, count: int, work: Callable[[Item], Result]) -> None:
        self._work = work
        self._jobs: queue.SimpleQueue[tuple[Future[Result], Item] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._run, name=f"lane_{n}", daemon=True) for n in range(count)]
        for thread in self._threads:
            thread.start()
            _all.add(thread)

    def submit(self, item: Item) -> Future[Result]:
        """What will come of ``item``; the first lane that is free takes it."""
        future: Future[Result] = Future()
        self._jobs.put((future, item))
        return future

    def close(self, seconds: float) -> None:
        """Ends the lanes after what they are doing, and waits for that at most ``seconds``."""
        for _ in self._threads:
            self._jobs.put(None)
        _join(self._threads, seconds)

    def _run(self) -> None:
        # The first operation in a thread sets it to the number that any thread has set last: here it is, before ours.
        torch.get_num_threads()
        torch.set_num_threads(1)
        while (job := self._jobs.get()) is not None:
            future, item = job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(self._work(item))
            except BaseException as error:  # handed to whoever asks for the result
                future.set_exception(error)
            del job, future, item  # the pixels shall not wait with the lane


def _join(threads: list[threading.Thread], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


@atexit.register
def _wait_for_all() -> None:
    """A thread that returns from C++ into an interpreter that is being taken down would abort the process."""
    _join(list(_all), _AT_EXIT_SECONDS)
