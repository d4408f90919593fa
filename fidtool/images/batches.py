"""Batches of images: their assignment to ranks, and reading them ahead of use.

The assignment depends only on the number of images and the seed. Images are divided into batches before batches are
distributed to ranks, so that every forward pass processes the same images at any world size.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fidtool.images.decode import DecodedImage
from fidtool.sources.contents import ContentError, Read
from fidtool.sources.image_set import ImageSet, Indices

T = TypeVar("T")

_DEPTH = 4
"""Maximum number of batches that are read ahead."""
_POLL_SECONDS = 0.2
"""Interval at which the thread checks whether the batches are still needed."""
_TOO_FEW = ContentError("its file ended early: the file has changed since it was listed")


@dataclass(frozen=True)
class PlannedBatch:
    """A batch, or a part of one, before it is read: the positions of its images, and whether no part follows."""

    number: int
    indices: Indices
    ends: bool = True


@dataclass(frozen=True)
class FetchedBatch:
    """A batch, or a part of one, before it is decoded; see `PlannedBatch`. Its contents may have been decoded."""

    number: int
    files: Iterable[str]
    contents: Iterable[Read | DecodedImage]
    ends: bool = True


def plan_batches(images: ImageSet, batch_size: int) -> Sequence[Indices]:
    """Divides the positions 0 .. len(images) - 1 into batches. The last may be smaller; none is empty.

    The positions in a batch are consecutive. If images can only be read sequentially, a batch contains images that are
    stored next to each other instead.
    """
    if not images.in_order:
        return cut_batches(len(images), batch_size)
    stored = stored_order(images)
    return [stored[batch.start : batch.stop] for batch in cut_batches(len(images), batch_size)]


def stored_order(images: ImageSet) -> NDArray[np.int64]:
    """Returns the positions of a set's images in stored order, int64 array of shape (images,)."""
    return np.argsort(images.order, kind="stable")


def cut_batches(count: int, batch_size: int) -> list[range]:
    """Divides the positions 0 .. count - 1 into consecutive batches. The last may be smaller; none is empty."""
    return [range(start, min(start + batch_size, count)) for start in range(0, count, batch_size)]


def deal(batches: Sequence[T], rank: int, world_size: int, in_order: bool = False) -> list[T]:
    """Returns the batches of one rank. Each batch is assigned to exactly one rank, and all ranks get similar numbers.

    A rank gets every ``world_size``-th batch. If images can only be read sequentially (``in_order``), it gets
    consecutive batches, so that it need not read past its own last image.
    """
    if in_order:
        return list(batches[len(batches) * rank // world_size : len(batches) * (rank + 1) // world_size])
    return list(batches[rank::world_size])


def fetch_batch(source: ImageSet, batch: PlannedBatch) -> FetchedBatch:
    return FetchedBatch(batch.number, map(source.file, batch.indices), source.contents(batch.indices), batch.ends)


def fetch_batches(
    source: ImageSet,
    batches: Sequence[PlannedBatch],
    cut: Callable[[PlannedBatch], Iterable[PlannedBatch]] | None = None,
) -> Iterator[FetchedBatch]:
    """Yields the contents of batches. A source that can only be read sequentially is read in one pass.

    ``cut`` divides a batch into parts; None does not divide batches.
    """
    stream = None
    if source.in_order and batches:
        stream = source.stream(np.concatenate([np.asarray(batch.indices, dtype=np.int64) for batch in batches]))
    for part in batches if cut is None else chain.from_iterable(map(cut, batches)):
        files = list(map(source.file, part.indices))
        contents = list(source.contents(part.indices)) if stream is None else [next(stream, _TOO_FEW) for _ in files]
        yield FetchedBatch(part.number, files, contents, part.ends)


class Prefetcher(Iterator[T]):
    """Takes batches from another iterator in a separate thread, a few ahead of their use, and raises its exceptions.

    The thread starts at the first call of ``next``, so that processes can be forked before. It ends after the last
    batch, or shortly after this object is deleted.
    """

    def __init__(self, batches: Iterator[T], depth: int = _DEPTH) -> None:
        self._batches = batches
        self._ready: queue.Queue[T | BaseException] = queue.Queue(depth)
        self._gone = threading.Event()
        self._thread: threading.Thread | None = None

    def __next__(self) -> T:
        if self._thread is None:
            # The target is not a method, because the thread would then keep this object alive.
            arguments = self._batches, self._ready, self._gone
            self._thread = threading.Thread(target=_prefetch, args=arguments, daemon=True, name="fidtool-read-ahead")
            self._thread.start()
        batch = self._ready.get()
        if isinstance(batch, BaseException):
            self._ready.put(batch)  # a later call of next raises it again
            raise batch
        return batch

    def __del__(self) -> None:
        self._gone.set()


def _prefetch(batches: Iterator[T], ready: queue.Queue[T | BaseException], gone: threading.Event) -> None:
    try:
        for batch in batches:
            if not _put(batch, ready, gone):
                return
        _put(StopIteration(), ready, gone)
    except BaseException as error:
        _put(error, ready, gone)


def _put(batch: T | BaseException, ready: queue.Queue[T | BaseException], gone: threading.Event) -> bool:
    """Waits for room in the queue; returns False if the batch is no longer needed."""
    while not gone.is_set():
        try:
            ready.put(batch, timeout=_POLL_SECONDS)
            return True
        except queue.Full:
            continue
    return False
