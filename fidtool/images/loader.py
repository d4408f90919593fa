"""Loads and decodes the images of batches, in this process or in decoding workers; reads single images again.

Large images are passed on as soon as they are decoded, so that those of a batch need not be in memory at the same time.
"""

from __future__ import annotations

import errno
import functools
import math
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.errors import FidtoolError, InputError, RunError, option
from fidtool.images.batches import Batch
from fidtool.images.decode import (
    DecodedImage,
    DecodeError,
    DecodeOptions,
    ImageProperties,
    NeedsRangeError,
    decode_contents,
)
from fidtool.images.framing import Crop, crops_to_one_size
from fidtool.images.records import NO_RECORDS, RecordArray, records_of
from fidtool.images.workers import DaemonThreads, Workers
from fidtool.local_files import in_time, open_regular
from fidtool.sources.contents import BadFile, ContentError, Frame, Read, ValueRange
from fidtool.sources.image_set import ImageSet
from fidtool.sources.kinds import may_have_floats

AT_ONCE_BYTES = 1 << 24
"""Images are passed on before their batch is complete once they have so many bytes of pixels. A worker has up to three
times as many in memory, or three images."""
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors that reading an intact file may cause on an overloaded machine. Such files are not skipped, because the result
would then depend on the load."""
_AHEAD_BYTES = 1 << 20
"""Bytes of small files to read before they are decoded."""
_TOO_FEW = ContentError("its file ended early: the file has changed since it was listed")


_Workers = Workers[Batch, "DecodedBatch"]
_NO_PIXELS = np.empty(0, dtype=np.uint8)


@dataclass
class DecodedBatch:
    """A decoded batch, or its first images.

    Attributes:
        pixels: pixels of those that have not been passed on, uint8 array of shape (sum of height * width * 3,).
        sizes: (height, width) of these.
        records: empty unless `DecodeOptions.records` is set.
        used: of each of its images, whether it was decoded, and not skipped.
        partner: the images of `ImageSet.partner` that belong to these, of the same sizes; None if there are none.
        pairs: values of the pairs, by the position in the batch of the first of them; parts of a batch share them.
    """

    number: int
    count: int = 0
    pixels: NDArray[np.uint8] = field(default_factory=lambda: _NO_PIXELS)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    properties: ImageProperties = field(default_factory=ImageProperties)
    records: RecordArray = field(default_factory=lambda: NO_RECORDS)
    skipped: list[BadFile] = field(default_factory=list)
    used: list[bool] = field(default_factory=list)
    partner: DecodedBatch | None = None
    pairs: dict[int, NDArray[np.float64]] = field(default_factory=dict)

    def take_images(self, device: torch.device | str = "cpu") -> list[torch.Tensor]:
        """Moves the pixels to a device, frees them here, and returns uint8 tensors of shape (height, width, 3)."""
        pixels = torch.from_numpy(self.pixels).to(device)
        self.pixels = _NO_PIXELS
        parts = torch.split(pixels, [height * width * 3 for height, width in self.sizes])
        return [part.view(*size, 3) for part, size in zip(parts, self.sizes, strict=True)]

    def follow(self, earlier: DecodedBatch) -> None:
        """Adds the images of the batch before these, which have been passed on."""
        self.count += earlier.count
        self.properties = ImageProperties.total((earlier.properties, self.properties))
        self.records = np.concatenate([earlier.records, self.records])
        self.skipped, self.pairs = earlier.skipped + self.skipped, earlier.pairs
        self.used = earlier.used + self.used
        if self.partner is not None and earlier.partner is not None:
            self.partner.follow(earlier.partner)


def decode_batch(source: ImageSet | None, options: DecodeOptions, batch: Batch) -> DecodedBatch:
    """Decodes the first images of a batch, until their pixels fill `AT_ONCE_BYTES`.

    Raises a FidtoolError if an image cannot be decoded and is not to be skipped.
    """
    images: list[DecodedImage] = []
    found = DecodedBatch(batch.number)
    size = 0
    for some in _read_ahead(source, batch.images):
        results = decode_contents((content for _, content in some), options, AT_ONCE_BYTES - size)
        for (file, _), result in zip(some, results, strict=False):
            if isinstance(result, DecodedImage) and result.mode == "F" and not may_have_floats(file):
                result = DecodeError("it has floats, which the name of its file hides: rename it to .tif or .pfm")
            found.used.append(isinstance(result, DecodedImage))
            if isinstance(result, DecodedImage):
                images.append(result)
                size += result.pixels.nbytes
            else:
                found.skipped.append(_skipped(file, result, options))
        if size >= AT_ONCE_BYTES:
            break
    found.count, found.sizes = len(images), [image.pixels.shape[:2] for image in images]
    found.properties = ImageProperties.total(image.properties for image in images)
    if images and options.records:
        found.records = records_of(images)
    if images and options.pixels:
        flat = [image.pixels.reshape(-1) for image in images]
        # torch warns about arrays that are read-only, as those of the calling program may be.
        found.pixels = flat[0] if len(flat) == 1 and flat[0].flags.writeable else np.concatenate(flat)
    if images and source is not None and source.partner is not None:
        found.partner = _partner_of(source, options, batch, found.sizes)
    return found


def _partner_of(source: ImageSet, options: DecodeOptions, batch: Batch, sizes: Sequence[Any]) -> DecodedBatch:
    """Decodes the partners of the first images of a batch, which have these sizes."""
    assert source.partner is not None
    crop = None if source.partner.framing is None else Crop.parse(source.partner.framing)
    images: Any = batch.images[: len(sizes)]
    found = decode_batch(source.partner, replace(options, crop=crop), Batch(batch.number, images))
    for image, one, other in zip(images, sizes, found.sizes, strict=False):
        if one != other:
            fake, real = (f"{each[1]}×{each[0]} pixels" for each in (one, other))
            pair = f"{source.file(image)} has {fake}, but {source.partner.file(image)}, its partner, has {real}"
            crops = f"pass {crops_to_one_size(other[::-1], one[::-1])}, or the crop that the network was trained with"
            if one == other[::-1] and (rotated := _rotated(source, options, image)):
                pair += f", and {rotated} has an EXIF orientation, which is not applied"
                crops = "save it as it is shown, such as with ImageOps.exif_transpose of Pillow"
            raise InputError(f"{pair}:", crops, setting="crop")
    return found


def _rotated(source: ImageSet, options: DecodeOptions, image: Any) -> str:
    """Returns the file of an image or of its partner, whichever has an EXIF orientation; empty if none has one."""
    for each in (source.partner, replace(source, partner=None)):
        if each is not None and decode_batch(each, options, Batch(0, [image])).properties.rotated:
            return each.file(image)
    return ""


def _read_ahead(source: ImageSet | None, images: Any) -> Iterator[list[tuple[str, Read]]]:
    """Yields the files and contents of a batch, several at a time if they are small.

    System calls slow down the code after them: reading and decoding small files alternately takes 15 % longer.
    """
    if not isinstance(images[0], tuple):
        assert source is not None
        images = zip(map(source.file, images), source.read(images), strict=True)
    some: list[tuple[str, Read]] = []
    size = 0
    for file, content in images:
        some.append((file, content))
        size += len(content) if isinstance(content, bytes) else _AHEAD_BYTES
        if size >= _AHEAD_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


def _skipped(file: str, error: Exception, options: DecodeOptions) -> BadFile:
    """Returns an image that cannot be decoded as it is recorded, or raises the error that ends the run."""
    if isinstance(error, FidtoolError) or not isinstance(error, (ContentError, DecodeError, OSError, MemoryError)):
        raise error
    verb = "decode" if isinstance(error, (DecodeError, MemoryError)) else "read"
    reason = "out of memory" if isinstance(error, MemoryError) else getattr(error, "strerror", None) or str(error)
    problem = f"cannot {verb} {file}: {reason}"
    if isinstance(error, MemoryError) or getattr(error, "errno", None) in _EXHAUSTED:
        fewer = f"use fewer workers ({option('num_workers')}) or ranks on this machine"
        raise RunError(problem, "raise the limits of this process", fewer, setting="num_workers")
    if isinstance(error, NeedsRangeError):
        raise InputError(problem)
    if not options.skip:
        raise InputError(problem, "fix the file", f"pass {option('on_error', 'skip')}")
    return BadFile(file, f"cannot {verb} it: {reason}")


def load(
    source: ImageSet | None,
    batches: Iterable[Batch],
    options: DecodeOptions,
    num_workers: int = 0,
    patience: float = math.inf,
    complain: Callable[[str], None] = print,
    early: Callable[[DecodedBatch], object] = lambda batch: None,
) -> Generator[DecodedBatch, None, None]:
    """Yields this rank's decoded batches in order.

    Args:
        source: None for an iterable, whose images have been read. If those of the first batch are all encoded, workers
            decode them.
        patience: seconds that a worker may take for the images that it decodes at once.
        complain: called with a message if workers cannot be started.
        early: called with the first images of a batch of large ones as soon as they are decoded. `DecodedBatch.pixels`
            of the batch then has only the last images.

    Raises:
        RunError: if a worker died, raised an exception, or decoded no image in time.
        FidtoolError: if an image cannot be decoded and is not to be skipped.
    """
    batches = iter(batches) if source is None else list(batches)
    first = list(islice(batches, 1))
    if not first:
        return
    workers: _Workers | None = None
    decode: Callable[[Batch], DecodedBatch] = functools.partial(decode_batch, source, options)
    if num_workers and (source is not None or _is_encoded(first[0])):
        workers = _started(decode, num_workers, patience, complain)
    if source is not None and len(source.files.paths):
        decode = functools.partial(_decoded_in_time, source.path, decode, patience)
    batches = batches if source is not None else chain(first, batches)
    cutter = _Cutter()
    tasks = iter(batches) if workers is None else cutter.cut(batches)
    # What can only be read sequentially is read in this process; a remote store is slow to respond.
    ahead = source is not None and (source.reader.in_order or (workers is None and source.files.remote))
    if source is not None and source.partner is None and ahead:
        assert isinstance(batches, list)
        tasks = _taken_ahead(source.path, _read(source, batches, tasks), patience)
    before: DecodedBatch | None = None
    try:
        for (number, images, ends), is_sent in _sent(tasks, workers, source):
            while len(images):
                found = workers.result() if workers is not None and is_sent else decode(Batch(number, images))
                is_sent = False  # the rest of images that are larger than those before is decoded here
                size = sum(height * width * 3 for height, width in found.sizes)
                cutter.at_once = max(1, AT_ONCE_BYTES * len(found.sizes) // max(1, size))
                images = images[found.count + len(found.skipped) :]
                if before is not None:
                    found.follow(before)
                before = None if ends and not len(images) else found
                if before is None:
                    yield found
                else:
                    early(found)
    finally:
        if workers is not None:
            workers.end()


def _is_encoded(batch: Batch) -> bool:
    """Whether the images are files that have been read. To send others takes longer than to convert them here."""
    return all(isinstance(image, tuple) and isinstance(image[1], (bytes, Frame)) for image in batch.images)


def _started(
    work: Callable[[Batch], DecodedBatch], count: int, patience: float, complain: Callable[[str], None]
) -> _Workers | None:
    try:
        return Workers(work, count, patience)
    except (OSError, AssertionError) as error:
        reason = getattr(error, "strerror", None) or error
        complain(f"cannot start decoding workers ({reason}): decoding in the main process")
        return None


class _Cutter:
    """Divides batches of large images, so that several workers can decode one. Small images are not divided.

    The sizes of images are known once they are decoded, so the first tasks contain one image.
    """

    at_once = 1

    def cut(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        for number, images, _ in batches:
            start = 0
            while start < len(images):
                stop = min(start + self.at_once, len(images))
                yield Batch(number, images[start:stop], stop == len(images))
                start = stop


def _sent(tasks: Iterator[Batch], workers: _Workers | None, source: ImageSet | None) -> Iterator[tuple[Batch, bool]]:
    """Sends tasks to the workers ahead, and yields each with whether it was sent.

    What reading the tasks raises is raised after the tasks before.
    """
    waiting: deque[tuple[Batch, bool]] = deque()
    room = 1 if workers is None else workers.room
    failure: Exception | None = None
    try:
        for batch in tasks:
            if is_sent := workers is not None and (source is not None or _is_encoded(batch)):
                workers.send(batch)
            waiting.append((batch, is_sent))
            if len(waiting) == room:
                yield waiting.popleft()
    except Exception as error:
        failure = error
    while waiting:
        yield waiting.popleft()
    if failure is not None:
        raise failure


def _read(source: ImageSet, batches: Sequence[Batch], tasks: Iterator[Batch]) -> Iterator[Batch]:
    """Reads the images of tasks in one pass over the source."""
    stream = source.read(np.concatenate([np.asarray(batch.images, dtype=np.int64) for batch in batches]))
    for task in tasks:
        indices: Any = task.images
        yield task._replace(images=[(source.file(index), next(stream, _TOO_FEW)) for index in indices])


def _decoded_in_time(name: str, decode: Callable[[Batch], DecodedBatch], patience: float, batch: Batch) -> DecodedBatch:
    """Decodes a batch of images in files in another thread, because storage may not respond."""
    return in_time(f"images of {name}", functools.partial(decode, batch), patience)


def _taken_ahead(name: str, tasks: Iterator[Batch], patience: float) -> Iterator[Batch]:
    """Takes tasks from another iterator in a thread, a few ahead of their use, and raises its exceptions.

    The thread starts when the first task is requested, so that processes can be forked before.
    """
    thread = DaemonThreads(1)
    ahead: deque[Future[Any]] = deque()
    try:
        while True:
            while len(ahead) < 4:  # so many parts are read ahead
                ahead.append(thread.submit(functools.partial(next, tasks), None))
            oldest = ahead.popleft()
            if (task := in_time(f"images of {name}", oldest.result, patience)) is None:
                return
            yield task
    finally:
        for future in ahead:
            future.cancel()
        thread.close(0.0)


# --- single images ----------------------------------------------------------------------------------------------------


@dataclass
class ImageLookup:
    """Reads single images of some ``sets`` again for a report, by the paths under which they are shown.

    A path that is in none of them is that of a file on this machine; ``spent`` names iterables, which cannot
    be read again; ``floats`` is how floats in files become bytes.
    """

    sets: Sequence[ImageSet] = ()
    spent: Collection[str] = ()
    floats: ValueRange | None = None
    _prefetched: dict[str, Read] = field(default_factory=dict, init=False)

    @functools.cached_property
    def _positions(self) -> dict[str, tuple[ImageSet, int]]:
        # Files of a local folder, of which there may be millions, are opened by their paths instead.
        sets = [images for images in self.sets if images.file_index is not None or images.files.remote]
        return {images.file(index): (images, index) for images in sets for index in range(len(images))}

    def read(self, file: str) -> Read:
        """Returns the content of an image, or the error that occurred."""
        if file.rpartition("[")[0] in self.spent:
            return ContentError("an iterable cannot be read again")
        if file in self._prefetched:
            return self._prefetched[file]
        if file in self._positions:
            images, index = self._positions[file]
            return next(images.read([index]))
        try:
            with open_regular(file) as handle:
                return handle.read()
        except OSError as error:
            return error

    def prefetch(self, files: Iterable[str]) -> None:
        """Reads and stores the requested images that must be read sequentially, in one pass over each source."""
        found = {file: self._positions[file] for file in files if file in self._positions}
        for images in self.sets:
            wanted = sorted(
                (int(images.order[index]), index, file) for file, (own, index) in found.items() if own is images
            )
            if images.reader.in_order and wanted:
                contents = images.read(np.array([index for _, index, _ in wanted]))
                self._prefetched |= dict(zip((file for *_, file in wanted), contents, strict=False))
