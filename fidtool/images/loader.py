"""Loads and decodes batches, in this process or in decoding workers."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import multiprocessing
import os
import pickle
import re
import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import wait
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, get_worker_info

from fidtool.distributed import signals
from fidtool.errors import FidtoolError, InputError, RunError, Spelling, current_spelling, option, spell_by
from fidtool.images.batches import FetchedBatch, PlannedBatch, Prefetcher, fetch_batch, fetch_batches
from fidtool.images.decode import DecodeError, ImageProperties, decode_content
from fidtool.images.records import RecordArray, no_records, record_of
from fidtool.sources.contents import BadFile, ContentError, ForeignError, ProgramError, RefusedError, StoreError
from fidtool.sources.image_set import ImageSet
from fidtool.torch_internals import end_workers, worker_processes
from fidtool.validation import MAX_PIXELS

_PREFETCH = 2
"""Number of batches that each worker decodes ahead."""
_SHARED_MEMORY = "/dev/shm"
_PR_SET_PDEATHSIG = 1
_DYING_SECONDS = 5.0
"""Seconds to wait for the end of a process whose pipe broke. Errors with other causes are delayed by this time."""
_BROKEN = (RuntimeError, EOFError, OSError, pickle.UnpicklingError)
"""Exceptions that the death of a worker may cause: from torch, or from a pipe or socket, depending on timing."""
_DEAD = "DataLoader worker (pid"
"""Part of torch's message about a worker that died. The message about an exception has ``worker process`` instead."""
_RAISED = re.compile(r"Caught \w+ in DataLoader worker process \d+\.")
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors that reading an intact file may cause on an overloaded machine. Such files are not skipped, because the result
would then depend on the load."""
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
        pixels: uint8 tensor of shape (sum of height * width * 3,); a NumPy array if shared memory is too small.
        sizes: (height, width) of each image.
        properties: number of images with each property.
        records: record of each image, see `fidtool.images.records`; empty unless `DecodeOptions.records` is set.
        skipped: files of the batch that could not be read.
        failure: why the batch could not be decoded, in which case it has no pixels; otherwise None.
    """

    number: int
    pixels: torch.Tensor | NDArray[np.uint8]
    sizes: list[tuple[int, int]] = field(default_factory=list)
    properties: ImageProperties = field(default_factory=ImageProperties)
    records: RecordArray = field(default_factory=no_records)
    skipped: list[BadFile] = field(default_factory=list)
    failure: DecodeFailure | None = None

    def pin_memory(self) -> DecodedBatch:
        """Page-locks the pixels; the DataLoader calls this for batches that go to a GPU."""
        self.pixels = torch.as_tensor(self.pixels).pin_memory()
        return self

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
    flat, records = [], []
    for file, content in zip(batch.files, batch.contents, strict=True):
        try:
            image = decode_content(content, options.max_pixels)
        except _ERRORS as error:
            failure = _failure_of(file, error)
            if failure.fault != "image" or not options.skip:
                return DecodedBatch(batch.number, decoded.pixels, failure=failure)
            verb, reason = _problem(error)
            decoded.skipped.append(BadFile(file, f"cannot {verb} it: {reason}"))
            continue
        flat.append(image.pixels.reshape(-1))
        height, width, _ = image.pixels.shape
        decoded.sizes.append((height, width))
        decoded.properties += image.properties
        if options.records:
            records.append(record_of(image))
    if flat:
        decoded.pixels = torch.from_numpy(np.concatenate(flat))
    if records:
        decoded.records = np.concatenate(records)
    return decoded


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


# --- worker processes ------------------------------------------------------------------------------------------------


class _Decoding(Dataset[DecodedBatch]):
    """Decodes batches, in this process or in a worker, after reading those that have not been read ahead."""

    def __init__(self, source: ImageSet, options: DecodeOptions, sharers: int) -> None:
        self._source, self._options, self._sharers = source, options, sharers

    def __getitem__(self, batch: PlannedBatch | FetchedBatch) -> DecodedBatch:
        if isinstance(batch, PlannedBatch):
            batch = fetch_batch(self._source, batch)
        decoded = decode_batch(batch, self._options)
        if get_worker_info() is not None and not _fits(len(decoded.pixels), self._sharers):
            decoded.pixels = np.asarray(decoded.pixels)  # tensors are sent through /dev/shm, arrays through a pipe
        return decoded


def _fits(size: int, sharers: int) -> bool:
    """Whether shared memory has room for ``size`` more bytes, and for the next batches of all workers on this machine.

    Without this check, a worker would die of a bus error when shared memory is full: containers often have only 64 MiB.
    """
    try:
        status = os.statvfs(_SHARED_MEMORY)
    except OSError:
        return True  # this system has no /dev/shm
    return status.f_bavail * status.f_frsize > 2 * (sharers + 1) * size


class _WorkerDiedError(RuntimeError):
    """A pipe broke because the process at its other end died."""


class WorkerWatch:
    """Monitors decoding workers: kills them if they produce no batch in time, and reports why they died.

    Args:
        patience: seconds that a batch may take.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._frozen = False

    def next_of(self, decoded: Iterator[DecodedBatch]) -> DecodedBatch | None:
        """Returns the next batch, or None after the last.

        The DataLoader's own ``timeout`` does not detect a worker that freezes while it sends a batch.
        """
        workers = worker_processes(decoded)
        end = threading.Timer(self._patience, self._end, [workers])
        end.daemon = True
        end.start()
        try:
            return next(decoded, None)
        except _BROKEN as error:
            # If all workers are alive, the error has a different cause and is raised unchanged.
            if _RAISED.match(str(error)) is None and (ends := _ends(workers)):
                end_workers(decoded)
                raise _WorkerDiedError(ends) from error
            raise
        finally:
            end.cancel()

    def _end(self, workers: Sequence[multiprocessing.Process]) -> None:
        self._frozen = bool(workers)
        for worker in workers:
            worker.kill()

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Converts errors caused by workers within the block to messages that say what to do.

        torch raises an error about a dead worker from a signal handler, so it may occur anywhere in the main thread.

        Raises:
            RunError: if a worker died, raised an exception, or produced no batch in time.
        """
        try:
            yield
        except _BROKEN as error:
            if self._frozen:
                raise RunError(
                    f"the decoding workers produced no batch for {self._patience:g} s ({option('timeout')}): a worker "
                    "is frozen, or the storage of the images does not respond",
                    setting="timeout",
                ) from error
            if _RAISED.match(str(error)):
                raise RunError(f"{str(error).splitlines()[-1]} (in a decoding worker)") from error
            if not isinstance(error, _WorkerDiedError) and _DEAD not in str(error):
                raise
            raise RunError(
                f"a decoding worker died ({' '.join(str(error).split())[:200]}): it was killed, ran out of memory, or "
                "/dev/shm is too small",
                f"try {option('num_workers', 0)}",
                setting="num_workers",
            ) from error


def _ends(workers: Sequence[multiprocessing.Process]) -> str:
    """Returns how one of the workers ended; empty if all are alive."""
    ended = wait([worker.sentinel for worker in workers], _DYING_SECONDS) if workers else []
    for worker in workers:
        if worker.sentinel in ended:
            worker.join()  # the exit status may become available slightly later
            code = worker.exitcode or 0
            return f"process {worker.pid}: {signal.Signals(-code).name if code < 0 else f'status {code}'}"
    return ""


def _identity(batch: Any) -> Any:
    return batch


def load(
    source: ImageSet,
    batches: Sequence[PlannedBatch],
    options: DecodeOptions,
    num_workers: int,
    pin_memory: bool,
    ranks_here: int,
    watch: WorkerWatch,
    complain: Callable[[str], None],
) -> Iterator[DecodedBatch]:
    """Yields the decoded ``batches`` in order.

    Args:
        source: the images.
        batches: the batches of this rank.
        options: options for decoding.
        num_workers: number of decoding workers; 0 decodes in the calling thread.
        pin_memory: page-lock the pixels, so that copies to a GPU overlap with computation.
        ranks_here: number of ranks on this machine, whose workers share its /dev/shm.
        watch: monitors the workers.
        complain: called with a message if workers cannot be started, or shared memory is too small for the pixels.
    """
    workers = min(num_workers, len(batches))
    start = partial(_start, source, batches, options, pin_memory, ranks_here)
    try:
        if workers:
            multiprocessing.Lock()  # if this fails, torch's half-initialised iterator would print tracebacks
        decoded = start(workers)
    except OSError as error:
        if not workers:
            raise
        reason = f"{error.strerror or error}"
        complain(f"cannot start decoding workers ({reason}; is /dev/shm too small?): decoding in the main process")
        decoded = start(0)
    try:
        while (batch := watch.next_of(decoded) if workers else next(decoded, None)) is not None:
            if workers and isinstance(batch.pixels, np.ndarray):
                complain("/dev/shm is too small for decoded batches, which slows down decoding: increase its size")
            yield batch
    finally:
        end_workers(decoded)


def _start(
    source: ImageSet,
    batches: Sequence[PlannedBatch],
    options: DecodeOptions,
    pin_memory: bool,
    ranks_here: int,
    workers: int,
) -> Iterator[DecodedBatch]:
    with warnings.catch_warnings():
        # torch warns if there are more workers than cores, but the user has chosen their number.
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        loader = DataLoader(
            _Decoding(source, options, workers * ranks_here),
            sampler=_prepared(source, batches, workers),
            batch_size=None,
            collate_fn=_identity,
            num_workers=workers,
            prefetch_factor=_PREFETCH if workers else None,
            pin_memory=pin_memory,
            worker_init_fn=partial(_begin_worker, current_spelling()),
            # The default generator would change the random numbers of the calling program.
            generator=torch.Generator(),
        )
        return iter(loader)


def _prepared(source: ImageSet, batches: Sequence[PlannedBatch], workers: int) -> Iterable[PlannedBatch | FetchedBatch]:
    """Returns the batches to decode, or an iterator that reads them ahead in this process.

    Batches are read ahead if images can only be read sequentially, or if they are in a remote store and there are no
    workers to wait for it.
    """
    if source.in_order or (source.source.files.remote and not workers):
        return Prefetcher(fetch_batches(source, batches))
    return batches


def _begin_worker(spelling: Spelling, _: int) -> None:
    """Prepares a worker to ignore the terminal's signals, which its rank handles, and to die with its rank."""
    spell_by(spelling)
    signals.reset_in_worker()
    with contextlib.suppress(OSError, AttributeError):  # only Linux has prctl; torch's own check takes seconds
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
