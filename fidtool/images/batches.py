"""Batches of images: which image is in which batch, which rank has which batch, and reading them ahead of use.

The plan is made from the number of images and the seed alone. Batches are cut before they are dealt to the ranks, so
that every forward pass has the same images in it at any world size.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fidtool.sources.contents import ContentError, Read
from fidtool.sources.image_set import ImageSet, Indices

T = TypeVar("T")

_DEPTH = 4
"""Batches that wait to be decoded."""
_POLL_SECONDS = 0.2
"""How often the thread looks whether the batches are still wanted."""
_TOO_FEW = ContentError("what it is stored in ended before it came: that changed since it was listed")


@dataclass(frozen=True)
class PlannedBatch:
    """One batch of the plan: its number, and its images' positions in the set."""

    number: int
    indices: Indices


@dataclass(frozen=True)
class FetchedBatch:
    """One batch to be decoded: its number, and of each image its path and its contents."""

    number: int
    files: Iterable[str]
    contents: Iterable[Read]


_Ready = queue.Queue[FetchedBatch | BaseException]


def plan_batches(images: ImageSet, batch_size: int) -> Sequence[Indices]:
    """Cuts the positions 0 .. len(images) - 1 into batches; the last may be smaller, none is empty.

    A batch has consecutive positions, or, where images can only be read in the order in which they are stored, those of
    images that are stored next to each other.
    """
    if not images.in_order:
        return cut_batches(len(images), batch_size)
    stored = stored_order(images)
    return [stored[batch.start : batch.stop] for batch in cut_batches(len(images), batch_size)]


def stored_order(images: ImageSet) -> NDArray[np.int64]:
    """The positions of a set's images in the order in which they are stored: int64 array of shape (images,)."""
    return np.argsort(images.order, kind="stable")


def cut_batches(count: int, batch_size: int) -> list[range]:
    """Cuts positions 0 .. count - 1 into consecutive batches; the last may be smaller, none is empty."""
    return [range(start, min(start + batch_size, count)) for start in range(0, count, batch_size)]


def deal(batches: Sequence[T], rank: int, world_size: int, in_order: bool = False) -> list[T]:
    """The batches of one rank. Each batch goes to one rank, and ranks finish together.

    A rank gets every ``world_size``-th batch. Where images can only be read in order it gets consecutive ones, so that
    it passes over no more than what is stored before them.
    """
    if in_order:
        return list(batches[len(batches) * rank // world_size : len(batches) * (rank + 1) // world_size])
    return list(batches[rank::world_size])


def fetch_batch(source: ImageSet, batch: PlannedBatch) -> FetchedBatch:
    """A batch whose contents are read as they are taken."""
    return FetchedBatch(batch.number, map(source.file, batch.indices), source.contents(batch.indices))


def fetch_batches(source: ImageSet, batches: Sequence[PlannedBatch]) -> Iterator[FetchedBatch]:
    """Batches with all contents read; in one pass over the source where that can only be read from first to last."""
    stream = None
    if source.in_order and batches:
        stream = source.stream(np.concatenate([np.asarray(batch.indices, dtype=np.int64) for batch in batches]))
    for batch in batches:
        files = list(map(source.file, batch.indices))
        contents = list(source.contents(batch.indices)) if stream is None else [next(stream, _TOO_FEW) for _ in files]
        yield FetchedBatch(batch.number, files, contents)


class Prefetcher(Iterator[FetchedBatch]):
    """Takes batches from another iterator in a thread of its own, a few ahead of those who decode them.

    The thread starts with the first ``next``, so processes may be forked before that. It ends with the last batch, or
    soon after this object has gone.

    Args:
        batches: the other iterator. What it raises is raised from here.
    """

    def __init__(self, batches: Iterator[FetchedBatch]) -> None:
        self._batches = batches
        self._ready: _Ready = queue.Queue(_DEPTH)
        self._gone = threading.Event()
        self._thread: threading.Thread | None = None

    def __next__(self) -> FetchedBatch:
        if self._thread is None:
            # No method of this object: the thread would keep the object alive.
            arguments = self._batches, self._ready, self._gone
            self._thread = threading.Thread(target=_prefetch, args=arguments, daemon=True, name="fidtool-read-ahead")
            self._thread.start()
        batch = self._ready.get()
        if isinstance(batch, BaseException):
            self._ready.put(batch)  # for another call of next
            raise batch
        return batch

    def __del__(self) -> None:
        self._gone.set()


def _prefetch(batches: Iterator[FetchedBatch], ready: _Ready, gone: threading.Event) -> None:
    try:
        for batch in batches:
            if not _put(batch, ready, gone):
                return
        _put(StopIteration(), ready, gone)
    except BaseException as error:
        _put(error, ready, gone)


def _put(batch: FetchedBatch | BaseException, ready: _Ready, gone: threading.Event) -> bool:
    """Waits until there is room; False where the batch is no longer wanted."""
    while not gone.is_set():
        try:
            ready.put(batch, timeout=_POLL_SECONDS)
            return True
        except queue.Full:
            continue
    return False
