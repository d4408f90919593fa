"""Loads and decodes the images of batches, in this process or in decoding workers.

Batches of large images are decoded in parts, so that the images of a batch need not be in memory at the same time.
"""

from __future__ import annotations

import errno
import math
import pickle
import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice, repeat
from multiprocessing.pool import ExceptionWithTraceback  # type: ignore[attr-defined]
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.errors import FidtoolError, InputError, ProgramError, RunError, option
from fidtool.images.batches import PlannedBatch
from fidtool.images.decode import DecodedImage, DecodeError, DecodeOptions, ImageProperties, decode_contents
from fidtool.images.records import RecordArray, no_records, records_of
from fidtool.images.workers import Workers
from fidtool.sources.contents import BadFile, ContentError, Frame, Read
from fidtool.sources.image_set import ImageSet
from fidtool.sources.kinds import may_have_floats

PART_BYTES = 1 << 24
"""A part of a batch has fewer bytes of pixels before its last image. A worker has up to three parts in memory."""
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors that reading an intact file may cause on an overloaded machine. Such files are not skipped, because the result
would then depend on the load."""
_AHEAD_BYTES = 1 << 20
"""Bytes of small files to read before they are decoded."""
_DEPTH = 4
"""Maximum number of parts that are read ahead."""
_POLL_SECONDS = 0.2
"""Interval at which the reading thread checks whether the parts are still needed."""
_TOO_FEW = ContentError("its file ended early: the file has changed since it was listed")


def _no_pixels() -> NDArray[np.uint8]:
    return np.empty(0, dtype=np.uint8)


@dataclass(frozen=True)
class DecodeFailure:
    """The reason why a batch could not be decoded, which ends the run.

    Attributes:
        fault: what is at fault. ``image``: the image. ``machine``: no more memory or file descriptors are available, so
            the image may be intact. ``contents``: they differ from rank zero's or cannot be read at all. ``store``: the
            remote store failed and may work later. ``program``: the program that passed the images failed.
        cause: the program's exception; None if it is unknown.
    """

    message: str
    fault: str = "image"
    cause: BaseException | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """For sending it to another process, which gets the traceback as text."""
        return DecodeFailure, (self.message, self.fault, _sendable(self.cause))

    def error(self, *remedies: str) -> FidtoolError:
        """Returns the exception for this failure; the remedies are for a fault of the image."""
        if self.fault == "machine":
            fewer = f"use fewer workers ({option('num_workers')}) or ranks on this machine"
            return RunError(self.message, "raise the limits of this process", fewer, setting="num_workers")
        if self.fault == "store":
            return RunError(self.message)
        if self.fault == "program":
            error = ProgramError(self.message)
            error.__cause__ = self.cause
            return error
        return InputError(self.message, *(() if self.fault == "contents" else remedies))


@dataclass
class DecodedBatch:
    """A decoded batch, or a part of one.

    Attributes:
        count: number of images that were decoded or skipped; fewer than requested if their pixels fill a part.
        pixels: all pixels, uint8 array of shape (sum of height * width * 3,).
        sizes: (height, width) of each image.
        records: empty unless `DecodeOptions.records` is set.
        ends: whether no part of the batch follows.
    """

    number: int
    count: int = 0
    pixels: NDArray[np.uint8] = field(default_factory=_no_pixels)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    properties: ImageProperties = field(default_factory=ImageProperties)
    records: RecordArray = field(default_factory=no_records)
    skipped: list[BadFile] = field(default_factory=list)
    failure: DecodeFailure | None = None
    ends: bool = True

    def take_images(self, move: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
        """Moves the pixels, frees them here, and returns uint8 tensors of shape (height, width, 3)."""
        pixels = move(torch.from_numpy(self.pixels))
        self.pixels = _no_pixels()
        parts = torch.split(pixels, [height * width * 3 for height, width in self.sizes])
        return [part.view(*size, 3) for part, size in zip(parts, self.sizes, strict=True)]


def decode_batch(source: ImageSet | None, options: DecodeOptions, batch: PlannedBatch) -> DecodedBatch:
    """Decodes the first images of a batch, until their pixels fill a part. Errors are in the result, not raised."""
    images: list[DecodedImage] = []
    found = DecodedBatch(batch.number)
    size = 0
    for some in _read_ahead(source, batch):
        results = decode_contents((content for _, content in some), options, PART_BYTES - size)
        for (file, _), result in zip(some, results, strict=False):
            if isinstance(result, DecodedImage) and result.mode == "F" and not may_have_floats(file):
                result = DecodeError("it has floats, which the name of its file hides: rename it to .tif or .pfm")
            if isinstance(result, DecodedImage):
                images.append(result)
                size += result.pixels.nbytes
                continue
            if (failure := _failure_of(file, result)).fault != "image" or not options.skip:
                return DecodedBatch(batch.number, len(batch.indices), failure=failure)
            verb, reason = _problem(result)
            found.skipped.append(BadFile(file, f"cannot {verb} it: {reason}"))
        found.count += len(results)
        if size >= PART_BYTES:
            break
    found.ends = batch.ends and found.count == len(batch.indices)
    if images:
        if options.records:
            found.records = records_of(images)
        found.sizes = [image.pixels.shape[:2] for image in images]
        found.properties = ImageProperties.total(image.properties for image in images)
    if images and options.pixels:
        flat = [image.pixels.reshape(-1) for image in images]
        # torch warns about arrays that are read-only, as those of the calling program may be.
        found.pixels = flat[0] if len(flat) == 1 and flat[0].flags.writeable else np.concatenate(flat)
    return found


def _read_ahead(source: ImageSet | None, batch: PlannedBatch) -> Iterator[list[tuple[str, Read]]]:
    """Yields the files and contents of a batch, several at a time if they are small.

    System calls slow down the code after them: reading and decoding small files alternately takes 15 % longer.
    """
    files: Iterable[str] = batch.files
    contents: Iterable[Read] | None = batch.contents
    if contents is None:
        assert source is not None
        files, contents = map(source.file, batch.indices), source.read(batch.indices)
    some: list[tuple[str, Read]] = []
    size = 0
    for file, content in zip(files, contents, strict=True):
        some.append((file, content))
        size += len(content) if isinstance(content, bytes) else _AHEAD_BYTES
        if size >= _AHEAD_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


def joined(parts: Sequence[DecodedBatch]) -> DecodedBatch:
    """Returns the batch that consists of these parts, without their pixels."""
    return DecodedBatch(
        parts[0].number,
        sum(part.count for part in parts),
        sizes=[size for part in parts for size in part.sizes],
        properties=ImageProperties.total(part.properties for part in parts),
        records=np.concatenate([part.records for part in parts]),
        skipped=[bad for part in parts for bad in part.skipped],
        failure=parts[-1].failure,
    )


def _failure_of(file: str, error: Exception) -> DecodeFailure:
    if isinstance(error, ProgramError):
        return DecodeFailure(str(error), "program", error.__cause__)
    if isinstance(error, FidtoolError):
        return DecodeFailure(str(error), "contents" if isinstance(error, InputError) else "store")
    if not isinstance(error, (ContentError, DecodeError, OSError, MemoryError)):
        raise error
    exhausted = isinstance(error, MemoryError) or getattr(error, "errno", None) in _EXHAUSTED
    verb, reason = _problem(error)
    fault = "machine" if exhausted else getattr(error, "fault", "image")
    return DecodeFailure(f"cannot {verb} {file}: {reason}", fault)


def _sendable(error: BaseException | None) -> Any:
    """Returns an object that is unpickled as ``error``, with its traceback as its cause; None if it cannot be sent."""
    try:
        wrapped = error and ExceptionWithTraceback(error, error.__traceback__)
        pickle.loads(pickle.dumps(wrapped))
    except Exception:  # the program's exception class may raise anything
        return None
    return wrapped


def _problem(error: Exception) -> tuple[str, str]:
    if isinstance(error, MemoryError):
        return "decode", "out of memory"
    if isinstance(error, DecodeError):
        return "decode", str(error)
    return "read", getattr(error, "strerror", None) or str(error)


def whole_batches(parts: Iterable[DecodedBatch]) -> Iterator[DecodedBatch]:
    """Yields the batches that consist of these parts, without their pixels."""
    waiting: list[DecodedBatch] = []
    for part in parts:
        waiting.append(part)
        if part.ends:
            yield joined(waiting)
            waiting = []


@dataclass(frozen=True)
class LoadOptions:
    """Options for loading batches.

    Attributes:
        patience: seconds that a worker may take for a part.
        complain: called with a message if workers cannot be started.
    """

    decode: DecodeOptions
    num_workers: int = 0
    patience: float = math.inf
    complain: Callable[[str], None] = print


def load(
    source: ImageSet, batches: Sequence[PlannedBatch], options: LoadOptions
) -> Generator[DecodedBatch, None, None]:
    """Yields this rank's decoded batches in order. Those of large images are yielded in parts.

    Raises a RunError if a worker died, raised an exception, or produced no batch in time.
    """
    cutter = _Cutter()
    workers = _started(source, sum(len(batch.indices) for batch in batches), options)
    parts = iter(batches) if workers is None else chain.from_iterable(map(cutter, batches))
    # What can only be read sequentially is read in this process; a remote store is slow to respond.
    if source.in_order or (workers is None and source.reader.files.remote):
        parts = read_ahead(_read(source, batches, parts))
    yield from _decoded(source, parts, workers, cutter, options)


def load_stream(batches: Iterator[PlannedBatch], options: LoadOptions) -> Generator[DecodedBatch, None, None]:
    """Yields the decoded batches of an iterable in order. Those of large images are yielded in parts.

    The batches are read in the calling thread. If the first has only encoded images, workers decode those of all.
    """
    cutter = _Cutter()
    first = list(islice(batches, 1))
    workers = _started(None, options.num_workers, options) if first and _is_encoded(first[0]) else None
    batches = chain(first, batches)
    parts = batches if workers is None else chain.from_iterable(map(cutter, batches))
    yield from _decoded(None, parts, workers, cutter, options)


def _is_encoded(batch: PlannedBatch) -> bool:
    """Whether the images are files. To send others to a worker takes longer than to convert them here."""
    return batch.contents is not None and all(isinstance(content, (bytes, Frame)) for content in batch.contents)


def _started(source: ImageSet | None, most: int, options: LoadOptions) -> Workers[PlannedBatch, DecodedBatch] | None:
    count = min(options.num_workers, most)
    if not count:
        return None
    try:
        return Workers(partial(decode_batch, source, options.decode), count, options.patience)
    except (OSError, AssertionError) as error:
        reason = getattr(error, "strerror", None) or error
        options.complain(f"cannot start decoding workers ({reason}): decoding in the main process")
        return None


def _decoded(
    source: ImageSet | None,
    parts: Iterator[PlannedBatch],
    workers: Workers[PlannedBatch, DecodedBatch] | None,
    cutter: _Cutter,
    options: LoadOptions,
) -> Iterator[DecodedBatch]:
    """Yields the decoded parts in order."""
    try:
        for part, is_sent in _sent(parts, workers, source) if workers else zip(parts, repeat(False)):
            left = part
            found = workers.result() if workers and is_sent else decode_batch(source, options.decode, left)
            cutter.observe(found)
            yield found
            while found.count < len(left.indices):  # larger images than those before: the rest is decoded here
                left = left.part(found.count, len(left.indices))
                found = decode_batch(source, options.decode, left)
                cutter.observe(found)
                yield found
    finally:
        if workers:
            workers.end()


def _sent(
    parts: Iterator[PlannedBatch], workers: Workers[PlannedBatch, DecodedBatch], source: ImageSet | None
) -> Iterator[tuple[PlannedBatch, bool]]:
    """Sends parts to the workers ahead, and yields each with whether it was sent.

    What reading the parts raises is raised after the parts before.
    """
    waiting: deque[tuple[PlannedBatch, bool]] = deque()
    failure: Exception | None = None
    while True:
        while failure is None and len(waiting) < workers.room:
            try:
                part = next(parts)
            except Exception as error:
                failure = error
                break
            if is_sent := source is not None or _is_encoded(part):
                workers.send(part)
            waiting.append((part, is_sent))
        if waiting:
            yield waiting.popleft()
        elif failure is None or isinstance(failure, StopIteration):
            return
        else:
            raise failure


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
        start, count = 0, len(batch.indices)
        while start < count:
            parts_left = -(-(count - start) // self._at_once)
            stop = start + -(-(count - start) // parts_left)
            yield batch.part(start, stop)
            start = stop


def _read(source: ImageSet, batches: Sequence[PlannedBatch], parts: Iterator[PlannedBatch]) -> Iterator[PlannedBatch]:
    """Reads parts of batches. A source that can only be read sequentially is read in one pass."""
    stream = None
    if source.in_order and batches:
        stream = source.read(np.concatenate([np.asarray(batch.indices, dtype=np.int64) for batch in batches]))
    for part in parts:
        files = list(map(source.file, part.indices))
        contents = list(source.read(part.indices)) if stream is None else [next(stream, _TOO_FEW) for _ in files]
        yield replace(part, files=files, contents=contents)


def read_ahead(parts: Iterator[PlannedBatch]) -> Iterator[PlannedBatch]:
    """Takes parts from another iterator in a thread, a few ahead of their use, and raises its exceptions.

    The thread starts when the first part is requested, so that processes can be forked before.
    """
    ready: queue.Queue[PlannedBatch | BaseException] = queue.Queue(_DEPTH)
    gone = threading.Event()
    threading.Thread(target=_fill, args=(parts, ready, gone), daemon=True, name="fidtool-read-ahead").start()
    try:
        while not isinstance(part := ready.get(), BaseException):
            yield part
        if not isinstance(part, StopIteration):
            raise part
    finally:
        gone.set()


def _fill(
    parts: Iterator[PlannedBatch], ready: queue.Queue[PlannedBatch | BaseException], gone: threading.Event
) -> None:
    def put(part: PlannedBatch | BaseException) -> None:
        while not gone.is_set():
            try:
                return ready.put(part, timeout=_POLL_SECONDS)
            except queue.Full:
                continue

    try:
        for part in parts:
            put(part)
            if gone.is_set():
                return
        put(StopIteration())
    except BaseException as error:
        put(error)
