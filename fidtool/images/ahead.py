"""Contents that can only be read in order: one thread reads them, a little ahead of those who decode. No torch."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

import numpy as np

from fidtool.images.batches import FetchedBatch, PlannedBatch
from fidtool.sources.contents import ContentError
from fidtool.sources.image_set import ImageSet

T = TypeVar("T")

_DEPTH = 4
"""Batches that wait to be decoded."""
_TOO_FEW = ContentError("what it is stored in ended before it came: that changed since it was listed")
_GLANCE = 0.2
"""Seconds after which the thread looks whether anybody still waits."""


def fetched(source: ImageSet, batches: Sequence[PlannedBatch]) -> Iterator[FetchedBatch]:
    """Reads batches whose images follow each other where they are stored."""
    if not batches:
        return
    indices = np.concatenate([np.asarray(batch.indices, dtype=np.int64) for batch in batches])
    contents = source.stream(indices)
    for batch in batches:
        files = [source.file(index) for index in batch.indices]
        yield FetchedBatch(batch.number, files, [next(contents, _TOO_FEW) for _ in files])


def asked_for(source: ImageSet, batches: Sequence[PlannedBatch]) -> Iterator[FetchedBatch]:
    """Reads batches whose images can be had in any order."""
    for batch in batches:
        files = [source.file(int(index)) for index in batch.indices]
        yield FetchedBatch(batch.number, files, list(source.contents(batch.indices)))


class Ahead(Iterator[T], Generic[T]):
    """Another iterator, which runs ahead in a thread of its own.

    The thread begins with the first ``next``: processes that were forked before have no half of it. It ends with the
    last element, or soon after this object has gone.
    """

    def __init__(self, elements: Iterator[T]) -> None:
        self._elements = elements
        self._ready: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(_DEPTH)
        self._gone = threading.Event()
        self._thread: threading.Thread | None = None

    def __next__(self) -> T:
        if self._thread is None:
            work = _Work(self._elements, self._ready, self._gone)
            self._thread = threading.Thread(target=work.run, daemon=True, name="fidtool-read-ahead")
            self._thread.start()
        element, error = self._ready.get()
        if error is not None:
            self._ready.put((None, error))  # whoever asks again hears it again
            raise error
        return element  # type: ignore[return-value]

    def __del__(self) -> None:
        self._gone.set()


class _Work(Generic[T]):
    """What the thread does; it holds no reference to the iterator, or that would never go."""

    def __init__(
        self,
        elements: Iterator[T],
        ready: queue.Queue[tuple[T | None, BaseException | None]],
        gone: threading.Event,
    ) -> None:
        self._elements, self._ready, self._gone = elements, ready, gone

    def run(self) -> None:
        try:
            for element in self._elements:
                if not self._put((element, None)):
                    return
            self._put((None, StopIteration()))
        except BaseException as error:
            self._put((None, error))

    def _put(self, entry: tuple[T | None, BaseException | None]) -> bool:
        while not self._gone.is_set():
            try:
                self._ready.put(entry, timeout=_GLANCE)
                return True
            except queue.Full:
                continue
        return False
