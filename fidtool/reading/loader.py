"""Loads and decodes the images of batches, in this process or in decoding workers; reads single
images again.

Batches come in pieces, those of large images in several, so that these need not be in memory at the
same time.
"""

from __future__ import annotations

import errno
import math
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fidtool.errors import InputError, RunError, option
from fidtool.reading.batches import Batch
from fidtool.reading.decode import (
    DecodedImage,
    DecodeError,
    DecodeOptions,
    ImageProperties,
    NeedsRangeError,
    decode_content,
)
from fidtool.reading.records import NO_RECORDS, RecordArray, is_detailed, records_of
from fidtool.reading.workers import Allocate, Buffer, Workers
from fidtool.sources.contents import BadFile, ContentError, Frame, Read, ValueRange, pillow_defaults
from fidtool.sources.crops import crops_to_one_size
from fidtool.sources.image_set import ImageSet, Indices
from fidtool.sources.kinds import may_have_floats
from fidtool.system.background import DaemonThreads, use_one_torch_thread
from fidtool.system.local_files import READ_SECONDS, in_time, open_regular

AT_ONCE_BYTES = 1 << 24
"""A piece ends with the image with which it has so many bytes of pixels. A worker has up to three
times as many in memory, or three images.
"""
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors that reading an intact file may cause on an overloaded machine. Such files are not
skipped, because the result would then depend on the load.
"""
_READ_AHEAD = 8
"""Number of files to read before they are decoded. System calls slow down the code after them:
reading and decoding small files alternately takes 15 % longer.
"""
_TOO_FEW = ContentError("its file ended early: the file has changed since it was listed")
_NO_PIXELS = np.empty(0, dtype=np.uint8)

_Decoded = list[tuple[str, DecodedImage | BadFile]]
"""Images, or what is skipped in their places, by the names of their files."""
_Decode = Callable[[Batch], "Piece"]
_Workers = Workers[Batch, "Piece"]


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
        """Frees the pixels, those of the partner as well. Views of them must not be used any
        more.
        """
        self.pixels = _NO_PIXELS
        if self.partner is not None:
            self.partner.pixels = _NO_PIXELS
        if self.buffer is not None:
            self.buffer.free()
            self.buffer = None


def decode_batch(
    source: ImageSet | None, options: DecodeOptions, batch: Batch, allocate: Allocate | None = None
) -> Piece:
    """Decodes the first images of a batch, until their pixels fill `AT_ONCE_BYTES`, in a worker to
    ``allocate`` arrays.

    Raises a FidtoolError if an image cannot be decoded and is not to be skipped.
    """
    decoded = _decode(source, options, batch)
    batch = batch.part(0, len(decoded))
    piece = _piece(source, batch, decoded, options, allocate)
    if source is not None and source.partner is not None:
        partners = _decode(source.partner, replace(options, crop=source.partner.crop), batch)
        for (file, image), (real, partner) in zip(_images(decoded), _images(partners), strict=True):
            _check_sizes(file, image, real, partner)
        piece.partner = _piece(source.partner, batch, partners, options, allocate)
    return piece


def _decode(source: ImageSet | None, options: DecodeOptions, batch: Batch) -> _Decoded:
    """Decodes images until their pixels fill `AT_ONCE_BYTES`; returns them, with what is skipped in
    their places.
    """
    decoded: _Decoded = []
    left = AT_ONCE_BYTES
    contents = iter(batch.contents or ())
    if source is not None and batch.contents is None:
        contents = iter(zip(map(source.file, batch.images), source.read(batch.images), strict=True))
    while group := list(islice(contents, _READ_AHEAD)):
        with pillow_defaults(options.max_pixels):
            for file, content in group:
                try:
                    image = decode_content(content, options)
                    if image.mode == "F" and not may_have_floats(file):
                        hides = "it has floats, which the name of its file hides"
                        raise DecodeError(f"{hides}: rename it to .tif or .pfm")
                except Exception as error:
                    decoded.append((file, _skipped(file, error, options)))
                    continue
                decoded.append((file, image))
                left -= image.pixels.nbytes
                if left <= 0:
                    return decoded
    return decoded


def _images(decoded: _Decoded) -> list[tuple[str, DecodedImage]]:
    return [(file, image) for file, image in decoded if isinstance(image, DecodedImage)]


def _piece(
    source: ImageSet | None,
    batch: Batch,
    decoded: _Decoded,
    options: DecodeOptions,
    allocate: Allocate | None,
) -> Piece:
    named = _images(decoded)
    images = [image for _, image in named]
    piece = Piece(batch.number, batch.images, batch.last)
    piece.files = [file for file, _ in named]
    piece.used = [isinstance(image, DecodedImage) for _, image in decoded]
    piece.skipped = [bad for _, bad in decoded if isinstance(bad, BadFile)]
    piece.sizes = [image.pixels.shape[:2] for image in images]
    piece.properties = ImageProperties.total(image.properties for image in images)
    if images and options.records:
        piece.records = records_of(images, _measured(source, piece))
    if images and options.pixels:
        flat = [image.pixels.reshape(-1) for image in images]
        if allocate is not None:
            piece.pixels = np.concatenate(flat, out=allocate(sum(map(len, flat))))
        # torch warns about arrays that are read-only, as those of the calling program may be.
        elif len(flat) > 1 or not flat[0].flags.writeable:
            piece.pixels = np.concatenate(flat)
        else:
            piece.pixels = flat[0]
    return piece


def _measured(source: ImageSet | None, piece: Piece) -> list[bool]:
    """Returns of which images detail is measured. Of an iterable, it is as if each image were the
    last.
    """
    if source is None:
        used = [position for position, used in zip(piece.images, piece.used, strict=True) if used]
        names = [file[file.rindex("[") :] for file in piece.files]
        return [is_detailed(name, position + 1) for name, position in zip(names, used, strict=True)]
    return [is_detailed(file[len(source.prefix) :], source.whole_count) for file in piece.files]


def _check_sizes(fake: str, image: DecodedImage, real: str, partner: DecodedImage) -> None:
    """Raises an InputError if the images of a pair, which are in these files, differ in size."""
    height, width, _ = image.pixels.shape
    rows, columns, _ = partner.pixels.shape
    if (height, width) == (rows, columns):
        return
    pair = (
        f"{fake} has {width}×{height} pixels, but {real}, its partner, has {columns}×{rows} pixels"
    )
    crops = crops_to_one_size((columns, rows), (width, height))
    remedy = f"pass {crops}, or the crop that the network was trained with"
    rotated = [file for file, each in ((real, partner), (fake, image)) if each.properties.rotated]
    if rotated and (height, width) == (columns, rows):
        pair += f", and {rotated[0]} has an EXIF orientation, which is not applied"
        remedy = "save it as it is shown, such as with ImageOps.exif_transpose of Pillow"
    raise InputError(f"{pair}:", remedy, setting="crop")


def _skipped(file: str, error: Exception, options: DecodeOptions) -> BadFile:
    """Returns an image that cannot be decoded as it is recorded, or raises the error that ends the
    run.
    """
    if not isinstance(error, (ContentError, DecodeError, OSError, MemoryError)):
        raise error
    out_of_memory = isinstance(error, MemoryError)
    verb = "decode" if out_of_memory or isinstance(error, DecodeError) else "read"
    reason = "out of memory" if out_of_memory else getattr(error, "strerror", None) or str(error)
    problem = f"cannot {verb} {file}: {reason}"
    if out_of_memory or getattr(error, "errno", None) in _EXHAUSTED:
        raise RunError(
            problem,
            "raise the limits of this process",
            f"use fewer workers ({option('num_workers')}) or ranks on this machine",
            setting="num_workers",
        ) from None
    if isinstance(error, NeedsRangeError):
        raise InputError(problem) from None
    if not options.skip:
        raise InputError(problem, "fix the file", f"pass {option('on_error', 'skip')}") from None
    return BadFile(file, f"cannot {verb} it: {reason}")


def load(
    source: ImageSet | None,
    batches: Iterable[Batch],
    options: DecodeOptions,
    num_workers: int = 0,
    patience: float = math.inf,
    complain: Callable[[str], None] = print,
) -> Generator[Piece, None, None]:
    """Yields the pieces of this rank's batches in order; a batch of small images is one piece, or
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
    name = "" if source is None else f"images of {source.path}"
    if source is not None:
        source = source.shared_by(max(1, num_workers))
    shared = partial(decode_batch, source, options)
    decode: _Decode = shared
    workers: _Workers | None = None
    if num_workers and _can_be_sent(first):
        try:
            workers = Workers(shared, num_workers, patience)
        except (OSError, AssertionError) as error:
            reason = getattr(error, "strerror", None) or error
            complain(f"cannot start decoding workers ({reason}): decoding in the main process")
    if source is not None and len(source.files.paths):
        decode = partial(_decode_in_time, name, decode, patience)
    loading = _Loading(decode, workers)
    tasks = loading.divide(batches)
    # What can only be read sequentially is read in this process; a remote store is slow to respond.
    if (
        source is not None
        and source.partner is None
        and (source.reader.in_order or (workers is None and source.files.remote))
    ):
        listed = list(batches)
        tasks = _taken_ahead(name, _read(source, listed, loading.divide(listed)), patience)
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


class _Loading:
    """Decodes tasks, which are batches or parts of them, in workers or in this process.

    Batches of large images are divided evenly, so that several workers can decode one. The sizes of
    images are known once they are decoded, so the first tasks contain one image.
    """

    def __init__(self, decode: _Decode, workers: _Workers | None) -> None:
        self._decode = decode
        self._workers = workers
        self._images_per_task = 1

    def divide(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        for batch in batches:
            left = batch
            while count := len(left.images):
                stop = math.ceil(count / math.ceil(count / self._images_per_task))
                yield left.part(0, stop)
                left = left.part(stop, count)

    def pieces(self, tasks: Iterator[Batch]) -> Iterator[Piece]:
        """Yields the pieces of tasks, which are sent to the workers ahead.

        What reading a task raises is raised after the pieces of those before.
        """
        waiting: deque[tuple[Batch | Exception, _Workers | None]] = deque()
        for task in _with_error(tasks):
            workers = self._workers
            if workers is None or isinstance(task, Exception) or not _can_be_sent(task):
                waiting.append((task, None))
            else:
                workers.send(task)
                waiting.append((task, workers))
            if workers is None or len(waiting) == workers.room:
                yield from self._finished(*waiting.popleft())
        while waiting:
            yield from self._finished(*waiting.popleft())

    def _finished(self, task: Batch | Exception, workers: _Workers | None) -> Iterator[Piece]:
        """Yields the pieces of a task, which may be with workers: one, unless its images are larger
        than expected.
        """
        if isinstance(task, Exception):
            raise task
        if workers is None:
            piece = self._decode(task)
        else:
            piece, buffer = workers.result()
            piece.buffer = buffer
        size = sum(height * width * 3 for height, width in piece.sizes)
        self._images_per_task = max(1, AT_ONCE_BYTES * piece.count // max(1, size))
        yield piece
        while (done := len(piece.images)) < len(task.images):
            task = task.part(done, len(task.images))
            piece = self._decode(task)
            yield piece


def _with_error(tasks: Iterator[Batch]) -> Iterator[Batch | Exception]:
    """Yields tasks, and what reading them raises as the last one."""
    try:
        yield from tasks
    except Exception as error:
        yield error


def _read(source: ImageSet, batches: Sequence[Batch], tasks: Iterator[Batch]) -> Iterator[Batch]:
    """Reads the images of tasks in one pass over the source."""
    stream = source.read(
        np.concatenate([np.asarray(batch.images, dtype=np.int64) for batch in batches])
    )
    for task in tasks:
        yield task._replace(
            contents=[(source.file(index), next(stream, _TOO_FEW)) for index in task.images]
        )


def _decode_in_time(name: str, decode: _Decode, patience: float, batch: Batch) -> Piece:
    """Decodes a batch of images in files in another thread, because storage may not respond."""
    return in_time(name, partial(decode, batch), patience)


def _taken_ahead(name: str, tasks: Iterator[Batch], patience: float) -> Iterator[Batch]:
    """Takes tasks from another iterator in a thread, a few ahead of their use, and raises its
    exceptions.

    The thread starts when the first task is requested, so that processes can be forked before.
    """
    thread = DaemonThreads(1, use_one_torch_thread)
    ahead: deque[Future[Any]] = deque()
    try:
        while True:
            while len(ahead) < 4:  # so many parts are read ahead
                ahead.append(thread.submit(next, tasks, None))
            oldest = ahead.popleft()
            if (task := in_time(name, oldest.result, patience)) is None:
                return
            yield task
    finally:
        for future in ahead:
            future.cancel()
        thread.close(0.0)


# --- single images --------------------------------------------------------------------------------


@dataclass
class ImageLookup:
    """Reads single images of some ``sets`` again for a report, by the paths under which they are
    shown.

    A path that is in none of them is that of a file on this machine; ``spent`` names iterables,
    which cannot be read again; ``floats`` is how floats in files become bytes; ``seconds`` is how
    long the storage may take.
    """

    sets: Sequence[ImageSet] = ()
    spent: Collection[str] = ()
    floats: ValueRange | None = None
    seconds: float = READ_SECONDS
    _prefetched: dict[str, Read] = field(default_factory=dict, init=False)

    def prefetch(self, files: Collection[str]) -> None:
        """Reads and keeps those of these images that are no files on this machine, in one pass over
        each source.
        """
        for images in self.sets:
            # Files of a local folder, of which there may be millions, are opened by their paths
            # instead.
            if images.reader.file_index is None and not images.files.remote:
                continue
            wanted = [index for index in range(len(images)) if images.file(index) in files]
            wanted.sort(key=images.order.__getitem__)
            reading = partial(_contents_of, images, np.array(wanted, dtype=np.int64))
            try:
                contents = images.in_time(reading, self.seconds)
            except RunError as error:
                contents = [error] * len(wanted)
            self._prefetched |= zip(map(images.file, wanted), contents, strict=False)

    def read(self, file: str) -> Read:
        """Returns the content of an image, or the error that occurred. What is no local file must
        be prefetched.
        """
        if file in self._prefetched:
            return self._prefetched[file]
        if file.rpartition("[")[0] in self.spent:
            return ContentError("an iterable cannot be read again")
        try:
            return in_time(file, partial(_content_of, file), self.seconds)
        except (OSError, RunError) as error:
            return error


def _contents_of(images: ImageSet, wanted: NDArray[np.int64]) -> list[Read]:
    return list(images.read(wanted))


def _content_of(file: str) -> bytes:
    with open_regular(file) as handle:
        return handle.read()
