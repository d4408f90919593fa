"""Decoded batches: the pixels, properties and records of their images, or why they could not be decoded."""

from __future__ import annotations

import errno
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.pool import ExceptionWithTraceback  # type: ignore[attr-defined]
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.errors import FidtoolError, InputError, ProgramError, RunError, option
from fidtool.images.batches import FetchedBatch
from fidtool.images.decode import DecodedImage, DecodeError, DecodeOptions, ImageProperties, decode_contents
from fidtool.images.records import RecordArray, no_records, records_of
from fidtool.sources.census import may_have_floats
from fidtool.sources.contents import BadFile, ContentError, ForeignError, Read, RefusedError, StoreError

PART_BYTES = 1 << 24
"""A part of a batch has fewer bytes of pixels before its last image. A worker has up to three parts in memory."""
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


def _no_pixels() -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device="cpu")


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
    """A decoded batch, or a part of one. All pixels are in one tensor, which workers send as one block of memory.

    Attributes:
        pixels: uint8 tensor of shape (sum of height * width * 3,), or an array that was sent without shared memory.
        sizes: (height, width) of each image.
        records: empty unless `DecodeOptions.records` is set.
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
        """Moves the pixels, frees them here, and returns uint8 tensors of shape (height, width, 3)."""
        pixels = move(torch.as_tensor(self.pixels))
        self.pixels = _no_pixels()
        parts = torch.split(pixels, [height * width * 3 for height, width in self.sizes])
        return [part.view(*size, 3) for part, size in zip(parts, self.sizes, strict=True)]


def decode_parts(batch: FetchedBatch, options: DecodeOptions) -> Iterator[DecodedBatch]:
    """Decodes a batch in parts of about `PART_BYTES` bytes of pixels. Errors are in the results, not raised."""
    images: list[DecodedImage] = []
    skipped: list[BadFile] = []
    for some in _read_ahead(batch):
        while some:
            size = sum(image.pixels.nbytes for image in images)
            if size >= PART_BYTES:
                part = _part(batch.number, images, skipped, options, ends=False)
                images, skipped, size = [], [], 0  # before the part is used: they would keep the pixels in memory
                yield part
            found = decode_contents((content for _, content in some), options, PART_BYTES - size)
            for (file, _), result in zip(some, found, strict=False):
                if isinstance(result, DecodedImage) and result.mode == "F" and not may_have_floats(file):
                    result = DecodeError("it has floats, which the name of its file hides: rename it to .tif or .pfm")
                if isinstance(result, DecodedImage):
                    images.append(result)
                    continue
                if (failure := _failure_of(file, result)).fault != "image" or not options.skip:
                    yield DecodedBatch(batch.number, failure=failure)
                    return
                verb, reason = _problem(result)
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
    return DecodedBatch(
        parts[0].number,
        sizes=[size for part in parts for size in part.sizes],
        properties=ImageProperties.total(part.properties for part in parts),
        records=np.concatenate([part.records for part in parts]),
        skipped=[bad for part in parts for bad in part.skipped],
        failure=parts[-1].failure,
    )


def _failure_of(file: str, error: Exception) -> DecodeFailure:
    if not isinstance(error, _ERRORS):
        raise error
    for kind, fault in _EXTERNAL_FAULTS.items():
        if isinstance(error, kind):
            return DecodeFailure(str(error), fault, error.__cause__ if fault == "program" else None)
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
