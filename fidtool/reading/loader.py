"""Loads and decodes the images of batches, in this process or in decoding workers.

Batches come in pieces, those of large images in several, so that these need not be in memory at the
same time.
"""

from __future__ import annotations

import errno
import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, compress, islice

import numpy as np
from numpy.typing import NDArray

from fidtool.errors import InputError, RunError, Say, format_reason, option
from fidtool.reading.batches import Batch
from fidtool.reading.decode import (
    DecodedImage,
    DecodeError,
    DecodeOptions,
    ImageProperties,
    NeedsRangeError,
    decode_content,
)
from fidtool.reading.records import NO_RECORDS, RecordArray, is_detailed, make_records
from fidtool.reading.workers import Buffer, WorkerMemory, Workers
from fidtool.sources.contents import (
    BadFile,
    ContentError,
    Frame,
    pillow_defaults,
)
from fidtool.sources.crops import crops_to_one_size
from fidtool.sources.image_set import ImageSet, Indices
from fidtool.sources.kinds import may_have_floats
from fidtool.system.background import DaemonThreads

AT_ONCE_BYTES = 1 << 24
"""A piece ends with the image with which it has so many bytes of pixels. A worker has up to three
times as many in memory, or three images.
"""
# Errors that reading an intact file may cause on an overloaded machine. Such files are not skipped,
# because the result would then depend on the load.
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
# Number of files to read before they are decoded. System calls slow down the code after them:
# reading and decoding small files alternately takes 15 % longer.
_READ_AHEAD = 8
# Number of tasks to read before they are decoded, where images are read in this process.
_TASKS_AHEAD = 4
_TOO_FEW = ContentError("its file ended early: the file has changed since it was listed")
_NO_PIXELS = np.empty(0, dtype=np.uint8)


@dataclass
class Piece:
    """Decoded images of a batch, which follow those of the piece before.

    Attributes:
        number: that of the batch.
        images: positions of the images, see `Batch`; also of those that were skipped.
        last: whether no further piece of the batch follows.
        pixels: uint8 array of shape (sum of height * width * 3,), of the images that were not
            skipped.
        sizes: (height, width) of the images with these pixels.
        records: empty unless `DecodeOptions.records` is set.
        used: of each of ``images``, whether it was decoded, and not skipped.
        files: names of those that were, for messages.
        partner: the images of `ImageSet.partner` that belong to these, of the same sizes; None if
            there are none.
        pairs: values of the pairs, float64 array of shape (count, values), once they have been
            computed.
        buffer: a worker's buffer that contains the pixels; None if they were decoded in this
            process.
    """

    number: int
    images: Indices
    last: bool = True
    pixels: NDArray[np.uint8] = field(default_factory=lambda: _NO_PIXELS)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    properties: ImageProperties = field(default_factory=ImageProperties)
    records: RecordArray = field(default_factory=lambda: NO_RECORDS)
    skipped: list[BadFile] = field(default_factory=list)
    used: list[bool] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    partner: Piece | None = None
    pairs: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 0)))
    buffer: Buffer | None = None

    @property
    def count(self) -> int:
        """Number of images that were not skipped."""
        return sum(self.used)

    def free(self) -> None:
        """Free the pixels, those of the partner as well. Views of them must not be used any
        more.
        """
        self.pixels = _NO_PIXELS
        if self.partner is not None:
            self.partner.pixels = _NO_PIXELS
        if self.buffer is not None:
            self.buffer.free()
            self.buffer = None


def decode_batch(
    source: ImageSet | None,
    options: DecodeOptions,
    batch: Batch,
    memory: WorkerMemory | None = None,
) -> Piece:
    """Decode the first images of a batch, until their pixels fill `AT_ONCE_BYTES`. A worker
    writes them into its ``memory``.

    Raises a FidtoolError if an image cannot be decoded and is not to be skipped.
    """
    piece, images = _decode(source, options, batch, memory)
    if source is not None and source.partner is not None:
        of_partner = replace(options, crop=source.partner.crop)
        batch = batch.slice(0, len(piece.images))
        piece.partner, partners = _decode(source.partner, of_partner, batch, memory)
        for pair in zip(piece.files, images, piece.partner.files, partners, strict=True):
            _check_sizes(*pair)
        _fill_piece(piece.partner, partners, source.partner, of_partner)
    _fill_piece(piece, images, source, options)
    return piece


def _decode(
    source: ImageSet | None, options: DecodeOptions, batch: Batch, memory: WorkerMemory | None
) -> tuple[Piece, list[DecodedImage]]:
    """Decode images until their pixels fill `AT_ONCE_BYTES`; return their piece, which lacks all
    that `_fill_piece` adds, and those that were not skipped.
    """
    if not options.pixels:
        memory = None
    piece = Piece(batch.number, batch.images)
    images = list[DecodedImage]()
    size = 0
    contents = iter(batch.contents or ())
    if source is not None and batch.contents is None:
        contents = zip(map(source.file, batch.images), source.read(batch.images), strict=True)
    while size < AT_ONCE_BYTES and (group := list(islice(contents, _READ_AHEAD))):
        with pillow_defaults(options.max_pixels):
            for file, content in group:
                try:
                    image = decode_content(content, options)
                    if image.mode == "F" and not may_have_floats(file):
                        raise DecodeError(
                            "it contains floats, which the name of its file does not show: "
                            "rename it to .tif or .pfm"
                        )
                except Exception as error:
                    piece.skipped.append(_skip_or_raise(file, error, options))
                    piece.used.append(False)
                    continue
                # At once, so that the memory of the decoded image is used for the next one.
                if memory is not None:
                    image = replace(image, pixels=memory.append(image.pixels))
                piece.files.append(file)
                piece.used.append(True)
                images.append(image)
                size += image.pixels.nbytes
                if size >= AT_ONCE_BYTES:
                    break
    part = batch.slice(0, len(piece.used))
    piece.images = part.images
    piece.last = part.last
    if memory is not None:
        piece.pixels = memory.take()
    return piece, images


def _fill_piece(
    piece: Piece,
    images: list[DecodedImage],
    source: ImageSet | None,
    options: DecodeOptions,
) -> None:
    """Add sizes, properties, records and, unless it has them, pixels of its images to a piece."""
    piece.sizes = [image.pixels.shape[:2] for image in images]
    piece.properties = ImageProperties.total(image.properties for image in images)
    if images and options.records:
        piece.records = make_records(images, _select_detailed(source, piece))
    # In a worker, they are in its memory already.
    if images and options.pixels and not piece.pixels.size:
        flat = [image.pixels.reshape(-1) for image in images]
        # torch warns about arrays that are read-only, as those of the calling program may be.
        if len(flat) > 1 or not flat[0].flags.writeable:
            piece.pixels = np.concatenate(flat)
        else:
            piece.pixels = flat[0]


def _select_detailed(source: ImageSet | None, piece: Piece) -> list[bool]:
    """Return of which images detail is measured. Of an iterable, it is as if each image were the
    last.
    """
    if source is not None:
        count = source.whole_count
        return [is_detailed(file.removeprefix(source.prefix), count) for file in piece.files]
    positions = compress(piece.images, piece.used)
    return [
        is_detailed(file[file.rindex("[") :], position + 1)
        for file, position in zip(piece.files, positions, strict=True)
    ]


def _check_sizes(fake: str, image: DecodedImage, real: str, partner: DecodedImage) -> None:
    """Raise an InputError if the images of a pair, which are in these files, differ in size."""
    height, width, _ = image.pixels.shape
    rows, columns, _ = partner.pixels.shape
    if (height, width) == (rows, columns):
        return
    pair = (
        f"{fake} has {width}×{height} pixels, but {real}, its partner, has {columns}×{rows} pixels"
    )
    crops = crops_to_one_size((columns, rows), (width, height))
    remedy = f"pass {crops}, or the crop that the network was trained with"
    is_turned = (height, width) == (columns, rows)
    if is_turned and (partner.properties.rotated or image.properties.rotated):
        rotated = real if partner.properties.rotated else fake
        pair += f", and {rotated} has an EXIF orientation, which is not applied"
        remedy = "save it as it is shown, such as with ImageOps.exif_transpose of Pillow"
    raise InputError(f"{pair}:", remedy, setting="crop")


def unusable_file_error(problem: str) -> InputError:
    """Return the error about an image file for a run that skips none."""
    return InputError(problem, "fix the file", f"pass {option('on_error', 'skip')}")


def _skip_or_raise(file: str, error: Exception, options: DecodeOptions) -> BadFile:
    """Return an image that cannot be decoded as it is recorded, or raise the error that ends the
    run.
    """
    if not isinstance(error, (ContentError, DecodeError, OSError, MemoryError)):
        raise error
    verb = "decode" if isinstance(error, (DecodeError, MemoryError)) else "read"
    reason = format_reason(error)
    if isinstance(error, MemoryError):
        reason = "out of memory"
    problem = f"cannot {verb} {file}: {reason}"
    if isinstance(error, MemoryError) or getattr(error, "errno", None) in _EXHAUSTED:
        raise RunError(
            problem,
            "raise the limits of this process",
            f"use fewer workers ({option('num_workers')}) or ranks on this machine",
            setting="num_workers",
        ) from None
    if isinstance(error, NeedsRangeError):
        raise InputError(problem) from None
    if not options.skip:
        raise unusable_file_error(problem) from None
    return BadFile(file, f"cannot {verb} it: {reason}")


def load_pieces(
    source: ImageSet | None,
    batches: Iterable[Batch],
    options: DecodeOptions,
    num_workers: int = 0,
    patience: float = math.inf,
    complain: Say = print,
) -> Generator[Piece, None, None]:
    """Yield the pieces of this rank's batches in order; a batch of small images is one piece, or
    few.

    Args:
        source: None for an iterable, whose images have been read. If those of the first batch are
            all encoded, workers decode them.
        patience: seconds that a worker may take for the images that it decodes at once.
        complain: called with a message if workers cannot be started.

    Raises:
        RunError: if a worker died, raised an exception, or decoded no image in time.
        FidtoolError: if an image cannot be decoded and is not to be skipped.
    """
    batches = iter(batches)
    first = next(batches, None)
    if first is None:
        return
    batches = chain([first], batches)
    if source is not None:
        source = source.for_processes(max(1, num_workers))
    decode = partial(decode_batch, source, options)
    workers: Workers[Batch, Piece] | None = None
    if num_workers and _can_be_sent(first):
        try:
            workers = Workers(decode, num_workers, patience)
        except (OSError, AssertionError) as error:
            complain(
                f"cannot start decoding workers ({format_reason(error)}): decoding in the main "
                "process"
            )
    loading = _TaskLoader(source, decode, workers, patience)
    tasks = loading.divide(batches)
    # What can only be read sequentially is read in this process; a remote store is slow to respond.
    if (
        source is not None
        and source.partner is None
        and (source.reader.in_order or (workers is None and source.files.remote))
    ):
        listed = list(batches)
        tasks = _take_ahead(source, _read(source, listed, loading.divide(listed)), patience)
    try:
        yield from loading.pieces(tasks)
    finally:
        if workers is not None:
            workers.end()


def _can_be_sent(batch: Batch) -> bool:
    """Whether workers should decode a batch. To send images that are not encoded takes longer than
    to convert them.
    """
    return all(isinstance(content, (bytes, Frame)) for _, content in batch.contents or ())


@dataclass(eq=False)
class _TaskLoader:
    """Decodes tasks, which are batches or parts of them, in workers or in this process.

    Batches of large images are divided evenly, so that several workers can decode one. The sizes of
    images are known once they are decoded, so the first tasks contain one image.
    """

    source: ImageSet | None
    decode: Callable[[Batch], Piece]
    workers: Workers[Batch, Piece] | None
    patience: float
    images_per_task: int = field(default=1, init=False)
    failure: Exception | None = field(default=None, init=False)

    def divide(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        for batch in batches:
            left = batch
            while count := len(left.images):
                stop = math.ceil(count / math.ceil(count / self.images_per_task))
                yield left.slice(0, stop)
                left = left.slice(stop, count)

    def pieces(self, tasks: Iterator[Batch]) -> Iterator[Piece]:
        """Yield the pieces of tasks, which are sent to the workers ahead.

        What reading a task raises is raised after the pieces of those before.
        """
        room = 1 if self.workers is None else self.workers.room
        waiting = deque[tuple[Batch, bool]]()
        for task in self._until_failure(tasks):
            waiting.append((task, self._send(task)))
            if len(waiting) == room:
                yield from self._finish(*waiting.popleft())
        while waiting:
            yield from self._finish(*waiting.popleft())
        if self.failure is not None:
            raise self.failure

    def _until_failure(self, tasks: Iterator[Batch]) -> Iterator[Batch]:
        try:
            yield from tasks
        except Exception as error:
            self.failure = error

    def _send(self, task: Batch) -> bool:
        """Send a task to the workers, if there are some and they should decode it."""
        if self.workers is None or not _can_be_sent(task):
            return False
        self.workers.send(task)
        return True

    def _finish(self, task: Batch, is_sent: bool) -> Iterator[Piece]:
        """Yield the pieces of a task: one, unless its images are larger than expected."""
        if self.workers is not None and is_sent:
            piece, buffer = self.workers.receive()
            piece.buffer = buffer
        else:
            piece = self._decode_here(task)
        size = sum(height * width * 3 for height, width in piece.sizes)
        self.images_per_task = max(1, AT_ONCE_BYTES * piece.count // max(1, size))
        yield piece
        while len(piece.images) < len(task.images):
            task = task.slice(len(piece.images), len(task.images))
            piece = self._decode_here(task)
            yield piece

    def _decode_here(self, task: Batch) -> Piece:
        if self.source is None:
            return self.decode(task)
        return self.source.run_with_timeout(partial(self.decode, task), self.patience)


def _read(source: ImageSet, batches: Sequence[Batch], tasks: Iterator[Batch]) -> Iterator[Batch]:
    """Read the images of tasks in one pass over the source."""
    stream = source.read(np.concatenate([batch.images for batch in batches]))
    for task in tasks:
        contents = [(source.file(index), next(stream, _TOO_FEW)) for index in task.images]
        yield task._replace(contents=contents)


def _take_ahead(source: ImageSet, tasks: Iterator[Batch], patience: float) -> Iterator[Batch]:
    """Take tasks from another iterator in a thread, a few ahead of their use, and raise its
    exceptions.

    The thread starts when the first task is requested, so that processes can be forked before.
    """
    thread = DaemonThreads(1, uses_torch=True)
    ahead = deque[Future[Batch | None]]()
    try:
        while True:
            while len(ahead) < _TASKS_AHEAD:
                ahead.append(thread.submit(next, tasks, None))
            task = source.run_with_timeout(ahead.popleft().result, patience)
            if task is None:
                return
            yield task
    finally:
        for future in ahead:
            future.cancel()
        thread.close(0.0)
