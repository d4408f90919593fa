"""Loads and decodes batches, in this process or in decoding workers."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.errors import FidtoolError, InputError, RunError, option
from fidtool.images.batches import FetchedBatch, PlannedBatch, Prefetcher, fetch_batch, fetch_batches
from fidtool.images.decode import DecodedImage, DecodeError, ImageProperties, decode_contents
from fidtool.images.records import RecordArray, no_records, records_of
from fidtool.images.workers import Workers
from fidtool.sources.contents import BadFile, ContentError, ForeignError, ProgramError, Read, RefusedError, StoreError
from fidtool.sources.image_set import ImageSet
from fidtool.validation import MAX_PIXELS

_SHARED_MEMORY = "/dev/shm"
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors that reading an intact file may cause on an overloaded machine. Such files are not skipped, because the result
would then depend on the load."""
_AHEAD_BYTES = 1 << 20
"""Bytes of small files to read before they are decoded."""
_EXTERNAL_FAULTS: dict[type[Exception], str] = {
    ForeignError: "contents",
    InputError: "contents",
    RefusedError: "contents",
    StoreError: "store",
    ProgramError: "program",
}
"""Errors that are not caused by a single image, with their fault; see `DecodeFailure`."""
_ERRORS: tuple[type[Exception], ...] = (DecodeError, OSError, MemoryError, ContentError, *_EXTERNAL_FAULTS)


@dataclass(frozen=True)
class DecodeOptions:
    """Options for decoding batches.

    Attributes:
        skip: skip files that cannot be read; otherwise stop at the first.
        max_pixels: refuse images with more pixels as decompression bombs.
        records: create a record of each image, see `fidtool.images.records`.
    """

    skip: bool = False
    max_pixels: int = MAX_PIXELS
    records: bool = False


@dataclass(frozen=True)
class DecodeFailure:
    """The reason why a batch could not be decoded, which ends the run.

    Attributes:
        message: what is wrong, with the image's path if one image is affected.
        fault: what is at fault. ``image``: the image. ``machine``: no more memory or file descriptors are available, so
            the image may be intact. ``contents``: they differ from rank zero's or cannot be read at all. ``store``: the
            remote store failed and may work later. ``program``: the program that passed the images failed.
    """

    message: str
    fault: str = "image"

    def error(self, *remedies: str) -> FidtoolError:
        """Returns the exception for this failure.

        Args:
            remedies: what to do if an image is at fault.
        """
        if self.fault == "machine":
            fewer = f"use fewer workers ({option('num_workers')}) or ranks on this machine"
            return RunError(self.message, "raise the limits of this process", fewer, setting="num_workers")
        if self.fault in ("store", "program"):
            return RunError(self.message)
        return InputError(self.message, *(() if self.fault == "contents" else remedies))


@dataclass
class DecodedBatch:
    """A decoded batch. All pixels are in one tensor, which workers send as one block of shared memory.

    Attributes:
        number: number of the batch.
        pixels: uint8 tensor of shape (sum of height * width * 3,), or an array that was sent without shared memory.
        sizes: (height, width) of each image.
        properties: number of images with each property.
        records: record of each image, see `fidtool.images.records`; empty unless `DecodeOptions.records` is set.
        skipped: files of the batch that could not be read.
        failure: why the batch could not be decoded, in which case it has no pixels; otherwise None.
        cramped: whether shared memory was too small for the pixels, or read-only.
    """

    number: int
    pixels: torch.Tensor | NDArray[np.uint8]
    sizes: list[tuple[int, int]] = field(default_factory=list)
    properties: ImageProperties = field(default_factory=ImageProperties)
    records: RecordArray = field(default_factory=no_records)
    skipped: list[BadFile] = field(default_factory=list)
    failure: DecodeFailure | None = None
    cramped: bool = False

    def images(self, move: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
        """Returns the images, each a uint8 tensor of shape (height, width, 3).

        Args:
            move: moves the pixels of all images to a device.
        """
        pixels = move(torch.as_tensor(self.pixels))
        parts = torch.split(pixels, [height * width * 3 for height, width in self.sizes])
        return [part.view(*size, 3) for part, size in zip(parts, self.sizes, strict=True)]


def decode_batch(batch: FetchedBatch, options: DecodeOptions) -> DecodedBatch:
    """Decodes the images of a batch. Errors are returned in the result, not raised."""
    decoded = DecodedBatch(batch.number, torch.empty(0, dtype=torch.uint8, device="cpu"))
    images: list[DecodedImage] = []
    for some in _read_ahead(batch):
        found = decode_contents([content for _, content in some], options.max_pixels)
        for (file, _), image in zip(some, found, strict=True):
            if isinstance(image, DecodedImage):
                images.append(image)
                continue
            if not isinstance(image, _ERRORS):
                raise image
            failure = _failure_of(file, image)
            if failure.fault != "image" or not options.skip:
                return DecodedBatch(batch.number, decoded.pixels, failure=failure)
            verb, reason = _problem(image)
            decoded.skipped.append(BadFile(file, f"cannot {verb} it: {reason}"))
    if images:
        decoded.pixels = torch.from_numpy(np.concatenate([image.pixels.reshape(-1) for image in images]))
        decoded.sizes = [image.pixels.shape[:2] for image in images]
        decoded.properties = ImageProperties.total(image.properties for image in images)
        if options.records:
            decoded.records = records_of(images)
    return decoded


def _read_ahead(batch: FetchedBatch) -> Iterator[list[tuple[str, Read]]]:
    """Yields the files and contents of a batch, several at a time if they are small.

    System calls slow down the code after them: reading and decoding small files alternately takes 15 % longer.
    """
    some: list[tuple[str, Read]] = []
    size = 0
    for file, content in zip(batch.files, batch.contents, strict=True):
        some.append((file, content))
        size += len(content) if isinstance(content, bytes) else _AHEAD_BYTES
        if size >= _AHEAD_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


def _failure_of(file: str, error: Exception) -> DecodeFailure:
    for kind, fault in _EXTERNAL_FAULTS.items():
        if isinstance(error, kind):
            return DecodeFailure(str(error), fault)
    exhausted = isinstance(error, MemoryError) or getattr(error, "errno", None) in _EXHAUSTED
    verb, reason = _problem(error)
    return DecodeFailure(f"cannot {verb} {file}: {reason}", "machine" if exhausted else "image")


def _problem(error: Exception) -> tuple[str, str]:
    if isinstance(error, MemoryError):
        return "decode", "out of memory"
    if isinstance(error, DecodeError):
        return "decode", str(error)
    return "read", getattr(error, "strerror", None) or str(error)


def _decode(
    source: ImageSet, options: DecodeOptions, sharers: int | None, batch: PlannedBatch | FetchedBatch
) -> DecodedBatch:
    """Decodes a batch, after reading it if it has not been read ahead.

    Args:
        source: the images.
        options: options for decoding.
        sharers: number of processes that send pixels through shared memory; None in the process that uses them.
        batch: the batch.
    """
    if isinstance(batch, PlannedBatch):
        batch = fetch_batch(source, batch)
    decoded = decode_batch(batch, options)
    if sharers is not None and not _fits(len(decoded.pixels), sharers):
        # Workers send tensors through /dev/shm, and arrays through a pipe.
        decoded.pixels, decoded.cramped = np.asarray(decoded.pixels), True
    return decoded


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


def load(
    source: ImageSet,
    batches: Sequence[PlannedBatch],
    options: DecodeOptions,
    num_workers: int,
    pin_memory: bool,
    ranks_here: int,
    patience: float,
    complain: Callable[[str], None],
) -> Generator[DecodedBatch, None, None]:
    """Yields the decoded ``batches`` in order.

    Args:
        source: the images.
        batches: the batches of this rank.
        options: options for decoding.
        num_workers: number of decoding workers; 0 decodes in the calling thread.
        pin_memory: page-lock the pixels, so that copies to a GPU overlap with computation.
        ranks_here: number of ranks on this machine, whose workers share its /dev/shm.
        patience: seconds that a worker may take for a batch.
        complain: called with a message if workers cannot be started, or shared memory cannot take the pixels.

    Raises:
        RunError: if a worker died, raised an exception, or produced no batch in time.
    """
    count, workers = min(num_workers, len(batches)), None
    if count:
        work = partial(_decode, source, options, count * ranks_here)
        try:
            workers = Workers(work, _prepared(source, batches, source.in_order), count, patience)
        except (OSError, AssertionError) as error:
            reason = getattr(error, "strerror", None) or error
            complain(f"cannot start decoding workers ({reason}): decoding in the main process")
    decoded: Iterator[DecodedBatch]
    if workers is None:
        here = _prepared(source, batches, source.in_order or source.source.files.remote)
        decoded = map(partial(_decode, source, options, None), here)
    else:
        decoded = workers
    try:
        for batch in _pinned(decoded) if pin_memory else decoded:
            if batch.cramped:
                complain(
                    "/dev/shm is too small for decoded batches, or read-only, which slows down decoding: increase its "
                    "size"
                )
            yield batch
    finally:
        if workers is not None:
            workers.end()


def _prepared(
    source: ImageSet, batches: Sequence[PlannedBatch], ahead: bool
) -> Iterable[PlannedBatch] | Iterable[FetchedBatch]:
    """Returns the batches, or an iterator that reads them ahead in this process.

    Batches are read ahead if images can only be read sequentially, or if they are in a remote store and there are no
    workers to wait for it.
    """
    return Prefetcher(fetch_batches(source, batches)) if ahead else batches


def _pinned(decoded: Iterator[DecodedBatch]) -> Iterator[DecodedBatch]:
    """Page-locks the pixels of the batches in a separate thread."""
    device = torch.cuda.current_device()

    def pin(batch: DecodedBatch) -> DecodedBatch:
        with torch.cuda.device(device):  # each thread has its own; the default would use memory of GPU 0
            batch.pixels = torch.as_tensor(batch.pixels).pin_memory()
        return batch

    return Prefetcher(map(pin, decoded))
