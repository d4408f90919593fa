"""Loads and decodes batches, in this process or in decoding workers."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

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

PART_BYTES = 1 << 24
"""Bytes of pixels above which a batch is sent in parts. A worker has up to three parts in memory."""
_PIPE_BYTES = 1 << 20
"""Largest size of pixels that is sent through a pipe. Shared memory costs about 0.3 ms per message."""
_PINNED_AHEAD = 2
"""Number of parts that wait in page-locked memory, of which torch reserves up to twice their size."""
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
        pixels: return the pixels.
    """

    skip: bool = False
    max_pixels: int = MAX_PIXELS
    records: bool = False
    pixels: bool = True


def _no_pixels() -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device="cpu")


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
    """A decoded batch, or a part of one. All pixels are in one tensor, which workers send as one block of memory.

    Attributes:
        number: number of the batch.
        pixels: uint8 tensor of shape (sum of height * width * 3,), or an array that was sent without shared memory.
        sizes: (height, width) of each image.
        properties: number of images with each property.
        records: record of each image, see `fidtool.images.records`; empty unless `DecodeOptions.records` is set.
        skipped: files that could not be read.
        failure: why an image could not be decoded, which ends the run; otherwise None.
        cramped: whether shared memory was too small for the pixels, or read-only.
        ends: whether no part of the batch follows.
    """

    number: int
    pixels: torch.Tensor | NDArray[np.uint8] = field(default_factory=_no_pixels)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    properties: ImageProperties = field(default_factory=ImageProperties)
    records: RecordArray = field(default_factory=no_records)
    skipped: list[BadFile] = field(default_factory=list)
    failure: DecodeFailure | None = None
    cramped: bool = False
    ends: bool = True

    def take_images(self, move: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
        """Returns the images, each a uint8 tensor of shape (height, width, 3), and frees their memory here.

        Args:
            move: moves the pixels of all images to a device.
        """
        pixels = move(torch.as_tensor(self.pixels))
        self.pixels = _no_pixels()
        parts = torch.split(pixels, [height * width * 3 for height, width in self.sizes])
        return [part.view(*size, 3) for part, size in zip(parts, self.sizes, strict=True)]


def decode_parts(batch: FetchedBatch, options: DecodeOptions) -> Iterator[DecodedBatch]:
    """Decodes a batch, in parts of at most `PART_BYTES` bytes or one image. Errors are in the results, not raised."""
    images: list[DecodedImage] = []
    skipped: list[BadFile] = []
    size = 0
    for some in _read_ahead(batch):
        while some:
            if size >= PART_BYTES:
                yield _part(batch.number, images, skipped, options, ends=False)
                images, skipped, size = [], [], 0
            found = decode_contents([content for _, content in some], options.max_pixels, PART_BYTES - size)
            for (file, _), image in zip(some, found, strict=False):
                if isinstance(image, DecodedImage):
                    images.append(image)
                    size += image.pixels.nbytes
                    continue
                if not isinstance(image, _ERRORS):
                    raise image
                failure = _failure_of(file, image)
                if failure.fault != "image" or not options.skip:
                    yield DecodedBatch(batch.number, failure=failure)
                    return
                verb, reason = _problem(image)
                skipped.append(BadFile(file, f"cannot {verb} it: {reason}"))
            some = some[len(found) :]
    yield _part(batch.number, images, skipped, options, ends=batch.ends)


def _read_ahead(batch: FetchedBatch) -> Iterator[list[tuple[str, Read | DecodedImage]]]:
    """Yields the files and contents of a batch, several at a time if they are small.

    System calls slow down the code after them: reading and decoding small files alternately takes 15 % longer.
    """
    some: list[tuple[str, Read | DecodedImage]] = []
    size = 0
    for file, content in zip(batch.files, batch.contents, strict=True):
        some.append((file, content))
        size += len(content) if isinstance(content, bytes) else _AHEAD_BYTES
        if size >= _AHEAD_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


def _part(
    number: int, images: list[DecodedImage], skipped: list[BadFile], options: DecodeOptions, ends: bool
) -> DecodedBatch:
    part = DecodedBatch(number, skipped=skipped, ends=ends)
    if not images:
        return part
    if options.records:
        part.records = records_of(images)
    part.sizes = [image.pixels.shape[:2] for image in images]
    part.properties = ImageProperties.total(image.properties for image in images)
    if options.pixels:
        flat = [image.pixels.reshape(-1) for image in images]
        # torch warns about arrays that are read-only, as those of the calling program may be.
        one = len(flat) == 1 and flat[0].flags.writeable
        part.pixels = torch.from_numpy(flat[0] if one else np.concatenate(flat))
    return part


def joined(parts: Sequence[DecodedBatch]) -> DecodedBatch:
    """Returns the batch that consists of these parts, without their pixels."""
    if len(parts) == 1:
        return replace(parts[0], pixels=_no_pixels())
    return DecodedBatch(
        parts[0].number,
        sizes=[size for part in parts for size in part.sizes],
        properties=ImageProperties.total(part.properties for part in parts),
        records=np.concatenate([part.records for part in parts]),
        skipped=[bad for part in parts for bad in part.skipped],
        failure=parts[-1].failure,
    )


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


def _packed(batch: FetchedBatch, options: DecodeOptions, sharers: int, cutter: _Cutter) -> Iterator[_PackedBatch]:
    """Yields the parts of a calling program's batch for the workers."""
    files: list[str] = []
    contents: list[Read | DecodedImage] = []
    size = 0
    for file, content in zip(batch.files, batch.contents, strict=True):
        if size >= PART_BYTES or len(contents) >= cutter.at_once:
            yield _PackedBatch.of(FetchedBatch(batch.number, files, contents, ends=False), sharers)
            files, contents, size = [], [], 0
        one = content if isinstance(content, bytes) else decode_contents([content], options.max_pixels)[0]
        size += one.pixels.nbytes if isinstance(one, DecodedImage) else 0
        files.append(file)
        contents.append(one)
    yield _PackedBatch.of(FetchedBatch(batch.number, files, contents, batch.ends), sharers)


def whole_batches(parts: Iterable[DecodedBatch]) -> Iterator[DecodedBatch]:
    """Yields the batches that consist of these parts, without their pixels."""
    waiting: list[DecodedBatch] = []
    for part in parts:
        waiting.append(part)
        if part.ends:
            yield joined(waiting)
            waiting = []


@dataclass(frozen=True)
class _PackedBatch:
    """A batch of a calling program, on its way to a worker. The pixels of all images are in one tensor.

    Attributes:
        batch: the batch. The images that are not encoded have been decoded, but have no pixels.
        pixels: see `DecodedBatch.pixels`.
    """

    batch: FetchedBatch
    pixels: torch.Tensor | NDArray[np.uint8]

    @classmethod
    def of(cls, batch: FetchedBatch, sharers: int) -> _PackedBatch:
        flat, contents = [], []
        for each in batch.contents:
            if isinstance(each, DecodedImage):
                flat.append(each.pixels.reshape(-1))
                each = replace(each, pixels=each.pixels[:, :, :0])
            contents.append(each)
        pixels, _ = _sendable(np.concatenate(flat) if flat else np.empty(0, dtype=np.uint8), sharers)
        return cls(replace(batch, contents=contents), pixels)

    def unpacked(self) -> FetchedBatch:
        rest = np.asarray(self.pixels)
        contents: list[Read | DecodedImage] = []
        for each in self.batch.contents:
            if isinstance(each, DecodedImage):
                height, width, _ = each.pixels.shape
                pixels, rest = np.split(rest, [height * width * 3])
                each = replace(each, pixels=pixels.reshape(height, width, 3))
            contents.append(each)
        return replace(self.batch, contents=contents)


def _decode(
    source: ImageSet | None,
    options: DecodeOptions,
    sharers: int | None,
    batch: PlannedBatch | FetchedBatch | _PackedBatch,
) -> Iterator[DecodedBatch]:
    """Decodes a batch, after reading it if it has not been read ahead.

    Args:
        source: the images; None if all batches have been read ahead.
        options: options for decoding.
        sharers: number of processes that send pixels through shared memory; None in the process that uses them.
        batch: the batch.
    """
    if isinstance(batch, PlannedBatch):
        assert source is not None
        batch = fetch_batch(source, batch)
    elif isinstance(batch, _PackedBatch):
        batch = batch.unpacked()
    for part in decode_parts(batch, options):
        if sharers is not None:
            part.pixels, part.cramped = _sendable(np.asarray(part.pixels), sharers)
        yield part


def _sendable(pixels: NDArray[np.uint8], sharers: int) -> tuple[torch.Tensor | NDArray[np.uint8], bool]:
    """Returns the pixels in the form in which another process receives them, and whether shared memory is too small.

    Tensors are sent through shared memory, and arrays through a pipe, which is faster for a few pixels.
    """
    if len(pixels) <= _PIPE_BYTES:
        return pixels, False
    fits = _fits(len(pixels), sharers)
    return torch.from_numpy(pixels) if fits else pixels, not fits


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
    source: ImageSet | None,
    batches: Sequence[PlannedBatch] | Iterator[FetchedBatch],
    options: DecodeOptions,
    num_workers: int,
    pin_memory: bool,
    ranks_here: int,
    patience: float,
    complain: Callable[[str], None],
) -> Generator[DecodedBatch, None, None]:
    """Yields the decoded ``batches`` in order. Large ones are yielded in parts, see `decode_parts`.

    Args:
        source: the images; None if ``batches`` contain them.
        batches: the batches of this rank. An iterator is read in the calling thread.
        options: options for decoding.
        num_workers: number of decoding workers; 0 decodes in the calling thread.
        pin_memory: page-lock the pixels, so that copies to a GPU overlap with computation.
        ranks_here: number of ranks on this machine, whose workers share its /dev/shm.
        patience: seconds that a worker may take for a part.
        complain: called with a message if workers cannot be started, or shared memory cannot take the pixels.

    Raises:
        RunError: if a worker died, raised an exception, or produced no batch in time.
    """
    count, workers, cutter = num_workers, None, _Cutter()
    if isinstance(batches, Sequence):
        count = min(count, len(batches))
    if count:
        sharers = count * ranks_here
        try:
            tasks = _for_workers(source, batches, cutter, options, sharers)
            workers = Workers(partial(_decode, source, options, sharers), tasks, count, patience)
        except (OSError, AssertionError) as error:
            reason = getattr(error, "strerror", None) or error
            complain(f"cannot start decoding workers ({reason}): decoding in the main process")
    decoded: Iterator[DecodedBatch]
    if workers is None:
        decoded = chain.from_iterable(map(partial(_decode, source, options, None), _for_this_process(source, batches)))
    else:
        decoded = workers
    if pin_memory:
        decoded = _pinned(decoded, torch.cuda.current_device())
        decoded = decoded if source is None else Prefetcher(decoded, _PINNED_AHEAD)
    try:
        for part in decoded:
            cutter.observe(part)
            if part.cramped:
                complain(
                    "/dev/shm is too small for decoded batches, or read-only, which slows down decoding: increase its "
                    "size"
                )
            yield part
    finally:
        if workers is not None:
            workers.end()


class _Cutter:
    """Divides batches of large images, so that several workers can decode one. Small images are not divided.

    The sizes of images are known once they are decoded, so the first parts contain one image.

    Attributes:
        at_once: number of images with `PART_BYTES` bytes of pixels, judged by the last ones.
    """

    def __init__(self) -> None:
        self.at_once = 1

    def observe(self, part: DecodedBatch) -> None:
        """Learns the size of images from a part that was decoded."""
        if part.sizes:
            size = sum(height * width * 3 for height, width in part.sizes)
            self.at_once = max(1, PART_BYTES * len(part.sizes) // size)

    def __call__(self, batch: PlannedBatch) -> Iterator[PlannedBatch]:
        """Yields the parts of a batch."""
        start, count = 0, len(batch.indices)
        while start < count:
            parts_left = -(-(count - start) // self.at_once)
            stop = start + -(-(count - start) // parts_left)
            yield PlannedBatch(batch.number, batch.indices[start:stop], batch.ends and stop == count)
            start = stop


def _for_workers(
    source: ImageSet | None,
    batches: Sequence[PlannedBatch] | Iterator[FetchedBatch],
    cutter: _Cutter,
    options: DecodeOptions,
    sharers: int,
) -> Iterable[PlannedBatch | FetchedBatch | _PackedBatch]:
    """Returns the tasks of the workers. Images that can only be read sequentially are read ahead in this process."""
    if source is None or not isinstance(batches, Sequence):
        fetched = (batch for batch in batches if isinstance(batch, FetchedBatch))
        return (part for batch in fetched for part in _packed(batch, options, sharers, cutter))
    if source.in_order:
        return Prefetcher(fetch_batches(source, batches, cutter))
    return chain.from_iterable(map(cutter, batches))


def _for_this_process(
    source: ImageSet | None, batches: Sequence[PlannedBatch] | Iterator[FetchedBatch]
) -> Iterable[PlannedBatch | FetchedBatch]:
    """Returns the batches, or an iterator that reads them ahead, also from a remote store, which is slow to respond."""
    if source is None or not isinstance(batches, Sequence) or not (source.in_order or source.source.files.remote):
        return batches
    return Prefetcher(fetch_batches(source, batches, lambda batch: [batch]))


def _pinned(decoded: Iterator[DecodedBatch], device: int) -> Iterator[DecodedBatch]:
    """Yields batches with page-locked pixels. May run in any thread, each of which has its own current device.

    Without workers, the code of a calling program that reads images runs here, too.
    """
    while True:
        with torch.cuda.device(device):
            batch = next(decoded, None)
            if batch is None:
                return
            batch.pixels = torch.as_tensor(batch.pixels).pin_memory()
        yield batch
