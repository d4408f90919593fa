"""Loads and decodes batches, in this process or in decoding workers."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice

import numpy as np
from PIL import Image

from fidtool.images.batches import FetchedBatch, PlannedBatch, Prefetcher, fetch_batch, fetch_batches
from fidtool.images.decode import DecodeOptions, decode_contents
from fidtool.images.decoded import PART_BYTES, DecodedBatch, decode_parts
from fidtool.images.workers import Workers
from fidtool.sources.contents import Frame
from fidtool.sources.image_set import ImageSet

_PIPE_BYTES = 1 << 20
"""Largest size of pixels that is sent through a pipe. Shared memory costs about 0.3 ms per message."""
_SHARED_MEMORY = "/dev/shm"


def _decode(
    source: ImageSet | None, options: DecodeOptions, sharers: int | None, batch: PlannedBatch | FetchedBatch
) -> Iterator[DecodedBatch]:
    """Decodes a batch, after reading it from the source if it has not been read ahead.

    ``sharers`` processes send pixels through shared memory; None in the process that uses them.
    """
    if isinstance(batch, PlannedBatch):
        assert source is not None
        batch = fetch_batch(source, batch)
    for part in decode_parts(batch, options):
        if sharers is not None and len(part.pixels) > _PIPE_BYTES:
            part.cramped = not _fits(len(part.pixels), sharers)
        if sharers is not None and (part.cramped or len(part.pixels) <= _PIPE_BYTES):
            part.pixels = np.asarray(part.pixels)  # sent through the pipe; tensors are sent through shared memory
        yield part


def _fits(size: int, sharers: int) -> bool:
    """Whether shared memory has room for ``size`` more bytes, and for the next batches of all workers on this machine.

    Without this check, a worker would die of a bus error when shared memory is full: containers often have only 64 MiB.
    """
    try:
        status = os.statvfs(_SHARED_MEMORY)
    except OSError:
        return True  # this system has no /dev/shm
    writable = not status.f_flag & os.ST_RDONLY
    return writable and status.f_bavail * status.f_frsize > 2 * (sharers + 1) * size


@dataclass(frozen=True)
class LoadOptions:
    """Options for loading batches.

    Attributes:
        ranks_here: number of ranks on this machine, whose workers share its /dev/shm.
        patience: seconds that a worker may take for a part.
        complain: called with a message if workers cannot be started, or shared memory cannot take the pixels.
    """

    decode: DecodeOptions
    num_workers: int = 0
    ranks_here: int = 1
    patience: float = math.inf
    complain: Callable[[str], None] = print


def load(
    source: ImageSet, batches: Sequence[PlannedBatch], options: LoadOptions
) -> Generator[DecodedBatch, None, None]:
    """Yields this rank's decoded batches in order. Those of large images are yielded in parts.

    Raises a RunError if a worker died, raised an exception, or produced no batch in time.
    """
    cutter = _Cutter()
    tasks: Iterator[PlannedBatch | FetchedBatch] = chain.from_iterable(map(cutter, batches))
    if source.in_order:  # such images can only be read sequentially: ahead, in this process
        tasks = Prefetcher(fetch_batches(source, batches, cutter))
    workers = _started(source, tasks, sum(len(batch.indices) for batch in batches), options)
    if workers is None and (source.in_order or source.source.files.remote):  # a remote store is slow to respond
        here: Iterable[PlannedBatch | FetchedBatch] = Prefetcher(fetch_batches(source, batches))
    else:
        here = batches
    decoded: Iterator[DecodedBatch] = workers or _decoded_here(source, here, options)
    yield from _observed(decoded, cutter, options)


def load_stream(batches: Iterator[FetchedBatch], options: LoadOptions) -> Generator[DecodedBatch, None, None]:
    """Yields the decoded batches of an iterable in order. Those of large images are yielded in parts.

    The batches are read in the calling thread. The workers decode encoded images. If the first batch contains others,
    all are decoded in the calling thread, which takes less time than sending their pixels to a worker.
    """
    cutter, workers = _Cutter(), None
    first = list(islice(batches, 1))
    batches = chain(first, batches)
    if first and all(isinstance(content, (bytes, Frame)) for content in first[0].contents):
        tasks = chain.from_iterable(map(partial(_encoded, cutter, options.decode), batches))
        workers = _started(None, tasks, options.num_workers, options)
    decoded: Iterator[DecodedBatch] = workers or _decoded_here(None, batches, options)
    yield from _observed(decoded, cutter, options)


def _started(
    source: ImageSet | None, tasks: Iterator[PlannedBatch | FetchedBatch], most: int, options: LoadOptions
) -> Workers[PlannedBatch | FetchedBatch, DecodedBatch] | None:
    count = min(options.num_workers, most)
    if not count:
        return None
    try:
        work = partial(_decode, source, options.decode, count * options.ranks_here)
        return Workers(work, tasks, count, options.patience)
    except (OSError, AssertionError) as error:
        reason = getattr(error, "strerror", None) or error
        options.complain(f"cannot start decoding workers ({reason}): decoding in the main process")
        return None


def _decoded_here(
    source: ImageSet | None, batches: Iterable[PlannedBatch | FetchedBatch], options: LoadOptions
) -> Iterator[DecodedBatch]:
    return chain.from_iterable(map(partial(_decode, source, options.decode, None), batches))


def _observed(decoded: Iterator[DecodedBatch], cutter: _Cutter, options: LoadOptions) -> Iterator[DecodedBatch]:
    try:
        for part in decoded:
            cutter.observe(part)
            if part.cramped:
                options.complain(
                    "/dev/shm is too small for decoded batches, or read-only, which slows down decoding: increase its "
                    "size"
                )
            yield part
    finally:
        if isinstance(decoded, Workers):
            decoded.end()


class _Cutter:
    """Divides batches of large images, so that several workers can decode one. Small images are not divided.

    The sizes of images are known once they are decoded, so the first parts contain one image.
    """

    def __init__(self) -> None:
        self._at_once = 1

    def observe(self, part: DecodedBatch) -> None:
        if part.sizes:
            size = sum(height * width * 3 for height, width in part.sizes)
            self._at_once = max(1, PART_BYTES * len(part.sizes) // size)

    def __call__(self, batch: PlannedBatch) -> Iterator[PlannedBatch]:
        for start, stop in self.positions(len(batch.indices)):
            ends = batch.ends and stop == len(batch.indices)
            yield PlannedBatch(batch.number, batch.indices[start:stop], ends)

    def positions(self, count: int) -> Iterator[tuple[int, int]]:
        """Yields the first position of each part of a batch of ``count`` images, and that after its last."""
        start = 0
        while start < count:
            parts_left = -(-(count - start) // self._at_once)
            stop = start + -(-(count - start) // parts_left)
            yield start, stop
            start = stop


def _encoded(cutter: _Cutter, decode: DecodeOptions, batch: FetchedBatch) -> Iterator[FetchedBatch]:
    """Yields the parts of a batch for the workers."""
    uncropped = replace(decode, crop=None)  # Pillow images lose what is known about their files when they are sent
    contents = [
        decode_contents([content], uncropped)[0] if isinstance(content, Image.Image) else content
        for content in batch.contents
    ]
    files = list(batch.files)
    for start, stop in cutter.positions(len(files)):
        ends = batch.ends and stop == len(files)
        yield FetchedBatch(batch.number, files[start:stop], contents[start:stop], ends)
