"""Batches of images: which image is in which, which rank has which, and what is read ahead of them.

The plan is made from the number of images and the seed alone. Batches are cut before they are dealt to the ranks, so
that every forward pass has the same images in it at any world size.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from fidtool.sources.contents import ContentError, Read
from fidtool.sources.image_set import ImageSet, Indices

Batch = TypeVar("Batch")
T = TypeVar("T")

_DEPTH = 4
"""Batches that wait to be decoded."""
_TOO_FEW = ContentError("what it is stored in ended before it came: that changed since it was listed")
_GLANCE = 0.2
"""Seconds after which the thread looks whether anybody still waits."""


@dataclass(frozen=True)
class PlannedBatch:
    """One batch of the plan: its number, and its images' positions in the set."""

    number: int
    indices: Indices


@dataclass(frozen=True)
class FetchedBatch:
    """One batch on its way to whoever decodes it: its number, and of each image its path and its contents."""

    number: int
    files: Sequence[str]
    contents: Sequence[Read]


def plan_batches(images: ImageSet, batch_size: int) -> Sequence[Indices]:
    """Cuts the positions 0 .. len(images) - 1 into batches; the last may be smaller, none is empty.

    Consecutive ones, or those that are stored next to each other where images can only be read as they are stored.
    """
    if not images.in_order:
        return cut_batches(len(images), batch_size)
    stored = stored_order(images)
    return [stored[batch.start : batch.stop] for batch in cut_batches(len(images), batch_size)]


def stored_order(images: ImageSet) -> NDArray[np.int64]:
    """The positions of the images of a set as they are stored: array of shape (images,)."""
    return np.argsort(images.order, kind="stable")


def cut_batches(count: int, batch_size: int) -> list[range]:
    """Cuts positions 0 .. count - 1 into consecutive batches; the last may be smaller, none is empty."""
    return [range(start, min(start + batch_size, count)) for start in range(0, count, batch_size)]


def deal(batches: Sequence[Batch], rank: int, world_size: int, in_order: bool = False) -> list[Batch]:
    """The batches of one rank, so that each batch has one rank, and ranks finish together.

    Every ``world_size``-th; where images can only be read in order a run of consecutive ones, so that a rank has to
    pass over no more than comes before it.
    """
    if in_order:
        return list(batches[len(batches) * rank // world_size : len(batches) * (rank + 1) // world_size])
    return list(batches[rank::world_size])


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


class Prefetcher(Iterator[T], Generic[T]):
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
