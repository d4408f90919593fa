"""Batches of images: planned, fetched, decoded."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.errors import FidtoolError, InputError, RunError
from fidtool.images.decode import DecodeError
from fidtool.images.inspection import Records, inspect, no_records, traits_of
from fidtool.images.traits import Traits
from fidtool.images.unpacked import image_of
from fidtool.sources.contents import BadFile, ContentError, ForeignError, ProgramError, Read, RefusedError, StoreError
from fidtool.sources.image_set import ImageSet, Indices
from fidtool.validation import MAX_PIXELS

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""What a good file meets on a machine with too much to do: to skip it would make the result depend on the load."""
_OTHERS_FAULTS: dict[type[Exception], str] = {
    **{ForeignError: "contents", InputError: "contents", RefusedError: "contents"},
    **{StoreError: "store", ProgramError: "program"},
}
"""Errors that say nothing about an image."""
_ERRORS: tuple[type[Exception], ...] = (DecodeError, OSError, MemoryError, ContentError, *_OTHERS_FAULTS)


@dataclass(frozen=True)
class Reading:
    """How files are read.

    Attributes:
        skip: leave out those that cannot be read and go on; else stop at the first.
        max_pixels: an image of more is refused as a decompression bomb.
        inspected: keep each image's record.
    """

    skip: bool = False
    max_pixels: int = MAX_PIXELS
    inspected: bool = False


@dataclass(frozen=True)
class Failure:
    """What ends the run.

    Attributes:
        message: what is wrong, with the image's path where it is about one.
        fault: whose it is: the ``image``'s; the ``machine``'s, which has no more memory or open files, while the image
            may be a good one; the ``contents``', which are others than on rank zero, or cannot be read as a whole; the
            remote ``store``'s, which may mend; the ``program``'s that should give it.
    """

    message: str
    fault: str = "image"

    def error(self, advice: str) -> FidtoolError:
        """The exception for it.

        Args:
            advice: what to do about an image.
        """
        if self.fault == "machine":
            return RunError(f"{self.message}; give this process more, or run fewer --num-workers and ranks here")
        if self.fault in ("store", "program"):
            return RunError(self.message)
        return InputError(self.message if self.fault == "contents" else f"{self.message}; {advice}")


@dataclass
class DecodedBatch:
    """The pixels of one planned batch, packed end to end, so that a worker hands over one piece of shared memory.

    Attributes:
        number: which batch of the plan.
        pixels: uint8 tensor of shape (sum of height * width * 3,); an array where shared memory is too small.
        sizes: (height, width) of each image.
        traits: what was seen of these images.
        records: see `fidtool.images.inspection`; empty where nobody asked for them.
        skipped: the batch's files that cannot be read.
        failure: what ends the run; then there are no pixels.
    """

    number: int
    pixels: torch.Tensor | NDArray[np.uint8]
    sizes: list[tuple[int, int]] = field(default_factory=list)
    traits: Traits = field(default_factory=Traits)
    records: Records = field(default_factory=no_records)
    skipped: list[BadFile] = field(default_factory=list)
    failure: Failure | None = None

    def pin_memory(self) -> DecodedBatch:
        """Called by the DataLoader where the batch is bound for a GPU."""
        self.pixels = torch.as_tensor(self.pixels).pin_memory()
        return self

    def images(self, move: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
        """The images, each a uint8 tensor of shape (height, width, 3), where ``move`` takes their pixels."""
        pixels = move(torch.as_tensor(self.pixels))
        parts = torch.split(pixels, [height * width * 3 for height, width in self.sizes])
        return [part.view(*size, 3) for part, size in zip(parts, self.sizes, strict=True)]


@dataclass(frozen=True)
class PlannedBatch:
    """One batch of the plan: its number, and its images' positions in the set."""

    number: int
    indices: Indices


@dataclass(frozen=True)
class FetchedBatch:
    """One batch on its way to whoever decodes it: its number, and of each image its path and its contents."""

    number: int
    files: Sequence[str]
    contents: Sequence[Read]


def decode_batch(source: ImageSet, batch: PlannedBatch, reading: Reading) -> DecodedBatch:
    """Reads and decodes the images of a batch; stops at the first that cannot be read unless these are skipped."""
    files = (source.file(index) for index in batch.indices)
    return _decoded(batch.number, files, source.contents(batch.indices), reading)


def decode_fetched(batch: FetchedBatch, reading: Reading) -> DecodedBatch:
    """The same of images that have been read."""
    return _decoded(batch.number, batch.files, batch.contents, reading)


def _decoded(number: int, files: Iterable[str], contents: Iterable[Read], reading: Reading) -> DecodedBatch:
    decoded = DecodedBatch(number, torch.empty(0, dtype=torch.uint8, device="cpu"))
    flat, records = [], []
    for file, content in zip(files, contents, strict=True):
        try:
            image = image_of(content, reading.max_pixels)
        except _ERRORS as error:
            failure = _failure(file, error)
            if failure.fault != "image" or not reading.skip:
                return DecodedBatch(number, decoded.pixels, failure=failure)
            verb, reason = _problem(error)
            decoded.skipped.append(BadFile(file, f"cannot {verb} it: {reason}"))
            continue
        flat.append(image.pixels.reshape(-1))
        height, width, _ = image.pixels.shape
        decoded.sizes.append((height, width))
        decoded.traits += traits_of(image)
        if reading.inspected:
            records.append(inspect(image))
    if flat:
        decoded.pixels = torch.from_numpy(np.concatenate(flat))
    if records:
        decoded.records = np.concatenate(records)
    return decoded


def _failure(file: str, error: Exception) -> Failure:
    for kind, fault in _OTHERS_FAULTS.items():
        if isinstance(error, kind):
            return Failure(str(error), fault)
    exhausted = isinstance(error, MemoryError) or getattr(error, "errno", None) in _EXHAUSTED
    verb, reason = _problem(error)
    return Failure(f"cannot {verb} {file}: {reason}", "machine" if exhausted else "image")


def _problem(error: Exception) -> tuple[str, str]:
    if isinstance(error, MemoryError):
        return "decode", "there is not enough memory"
    if isinstance(error, DecodeError):
        return "decode", str(error)
    return "read", getattr(error, "strerror", None) or str(error)
