"""Decoded batches, in this process or from worker processes."""

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
"""Batches that each worker keeps ready."""
_SHARED_MEMORY = "/dev/shm"
_PR_SET_PDEATHSIG = 1
_DYING_SECONDS = 5.0
"""How long to wait for the end of a process whose pipe broke. An error of another kind is raised so much later."""
_BROKEN = (RuntimeError, EOFError, OSError, pickle.UnpicklingError)
"""What can be raised where a worker died: by torch, or by a pipe or socket at any point, whichever comes first."""
_DEAD = "DataLoader worker (pid"
"""Part of torch's message about a worker that died. The one about a worker's exception has ``worker process``."""
_RAISED = re.compile(r"Caught \w+ in DataLoader worker process \d+\.")
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""What reading a good file raises on a machine with too much to do: skipping it would make the result depend on the
load."""
_OTHERS_FAULTS: dict[type[Exception], str] = {
    ForeignError: "contents",
    InputError: "contents",
    RefusedError: "contents",
    StoreError: "store",
    ProgramError: "program",
}
"""Errors that say nothing about an image, and what is at fault, see `DecodeFailure`."""
_ERRORS: tuple[type[Exception], ...] = (DecodeError, OSError, MemoryError, ContentError, *_OTHERS_FAULTS)


@dataclass(frozen=True)
class DecodeOptions:
    """How batches are decoded.

    Attributes:
        skip: leave out files that cannot be read; else stop at the first.
        max_pixels: an image of more pixels is refused as a decompression bomb.
        records: keep each image's record, see `fidtool.images.records`.
    """

    skip: bool = False
    max_pixels: int = MAX_PIXELS
    records: bool = False


@dataclass(frozen=True)
class DecodeFailure:
    """Why a batch could not be decoded, which ends the run.

    Attributes:
        message: what is wrong, with the image's path where it is about one image.
        fault: what is at fault: the ``image``; the ``machine``, which has no more memory or open files, so that the
            image may be good; the ``contents``, which differ from rank zero's or cannot be read as a whole; the remote
            ``store``, which may work later; the ``program`` that passed the images.
    """

    message: str
    fault: str = "image"

    def error(self, *remedies: str) -> FidtoolError:
        """The exception for it.

        Args:
            remedies: what to do about an image.
        """
        if self.fault == "machine":
            fewer = f"run fewer {option('num_workers')} and ranks here"
            return RunError(self.message, "give this process more", fewer, setting="num_workers")
        if self.fault in ("store", "program"):
            return RunError(self.message)
        return InputError(self.message, *(() if self.fault == "contents" else remedies))


@dataclass
class DecodedBatch:
    """The pixels of one batch, packed end to end, so that a worker passes on one piece of shared memory.

    Attributes:
        number: of the batch in the plan.
        pixels: uint8 tensor of shape (sum of height * width * 3,); an array where shared memory is too small.
        sizes: (height, width) of each image.
        properties: how many of the images have which property.
        records: of each image, see `fidtool.images.records`; empty unless `DecodeOptions.records`.
        skipped: files of the batch that cannot be read.
        failure: why the batch could not be decoded; then it has no pixels.
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
        """The images, each a uint8 tensor of shape (height, width, 3), on the device to which ``move`` takes pixels."""
        pixels = move(torch.as_tensor(self.pixels))
        parts = torch.split(pixels, [height * width * 3 for height, width in self.sizes])
        return [part.view(*size, 3) for part, size in zip(parts, self.sizes, strict=True)]


def decode_batch(batch: FetchedBatch, options: DecodeOptions) -> DecodedBatch:
    """Decodes the images of a batch. What is wrong with them is in the result, and no exception."""
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
    for kind, fault in _OTHERS_FAULTS.items():
        if isinstance(error, kind):
            return DecodeFailure(str(error), fault)
    exhausted = isinstance(error, MemoryError) or getattr(error, "errno", None) in _EXHAUSTED
    verb, reason = _problem(error)
    return DecodeFailure(f"cannot {verb} {file}: {reason}", "machine" if exhausted else "image")


def _problem(error: Exception) -> tuple[str, str]:
    if isinstance(error, MemoryError):
        return "decode", "there is not enough memory"
    if isinstance(error, DecodeError):
        return "decode", str(error)
    return "read", getattr(error, "strerror", None) or str(error)


# --- worker processes ------------------------------------------------------------------------------------------------


class _Decoding(Dataset[DecodedBatch]):
    """Decodes batches, in this process or in a worker; fetches those that are not fetched yet."""

    def __init__(self, source: ImageSet, options: DecodeOptions, sharers: int) -> None:
        self._source, self._options, self._sharers = source, options, sharers

    def __getitem__(self, batch: PlannedBatch | FetchedBatch) -> DecodedBatch:
        if isinstance(batch, PlannedBatch):
            batch = fetch_batch(self._source, batch)
        decoded = decode_batch(batch, self._options)
        if get_worker_info() is not None and not _fits(len(decoded.pixels), self._sharers):
            decoded.pixels = np.asarray(decoded.pixels)  # a tensor would travel through /dev/shm, an array does by pipe
        return decoded


def _fits(size: int, sharers: int) -> bool:
    """Whether shared memory has room for ``size`` bytes more, and for the next batches of all workers of all ranks.

    Without this check the 64 MiB of a container would end the worker with a bus error.
    """
    try:
        status = os.statvfs(_SHARED_MEMORY)
    except OSError:
        return True  # another system, with its own ways
    return status.f_bavail * status.f_frsize > 2 * (sharers + 1) * size


class _WorkerDiedError(RuntimeError):
    """A pipe broke because the process at its other end died."""


class WorkerWatch:
    """Watches over worker processes: ends them where they deliver nothing, and says why they died.

    Args:
        patience: seconds that a batch may take.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._frozen = False

    def next_of(self, decoded: Iterator[DecodedBatch]) -> DecodedBatch | None:
        """The next batch, or None after the last.

        The DataLoader's ``timeout`` does not see a worker that freezes while it delivers.
        """
        workers = worker_processes(decoded)
        end = threading.Timer(self._patience, self._end, [workers])
        end.daemon = True
        end.start()
        try:
            return next(decoded, None)
        except _BROKEN as error:
            # Where all are alive the error is a worker's, the store's or this machine's.
            if _RAISED.match(str(error)) is None and (ends := _ends(workers)):
                _end_all(workers)
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
        """Says what to do when a worker dies. Torch raises that from a signal handler, anywhere in the main thread.

        Raises:
            RunError: a worker died, or raised an exception.
        """
        try:
            yield
        except _BROKEN as error:
            if self._frozen:
                raise RunError(
                    f"the decoding processes delivered nothing for {self._patience:g} s ({option('timeout')}): one is "
                    "frozen, or the files' storage does not answer",
                    setting="timeout",
                ) from error
            if _RAISED.match(str(error)):
                raise RunError(f"{str(error).splitlines()[-1]} (in a decoding process)") from error
            if not isinstance(error, _WorkerDiedError) and _DEAD not in str(error):
                raise
            raise RunError(
                f"a decoding process died ({' '.join(str(error).split())[:200]}): it was killed, ran out of memory, or "
                "/dev/shm is too small",
                f"try {option('num_workers', 0)}",
                setting="num_workers",
            ) from error


def _ends(workers: Sequence[multiprocessing.Process]) -> str:
    """How one of the workers ended; empty if all are alive."""
    ended = wait([worker.sentinel for worker in workers], _DYING_SECONDS) if workers else []
    for worker in workers:
        if worker.sentinel in ended:
            worker.join()  # the exit status may come a moment later
            code = worker.exitcode or 0
            return f"process {worker.pid}: {signal.Signals(-code).name if code < 0 else f'status {code}'}"
    return ""


def _end_all(workers: Sequence[multiprocessing.Process]) -> None:
    """Ends them here: torch raises an error wherever its signal handler hears of one that dies, once for them all."""
    for worker in workers:
        with contextlib.suppress(RuntimeError):
            worker.kill()
            worker.join()


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
    """Yields the decoded ``batches`` in their order.

    Args:
        source: the images.
        batches: what this rank reads.
        options: how they are decoded.
        num_workers: number of worker processes; 0 decodes in the calling thread.
        pin_memory: page-lock the pixels, so that copies to a GPU overlap with its work.
        ranks_here: number of ranks on this machine, whose workers share its /dev/shm.
        watch: watches over the workers.
        complain: takes a line where workers cannot be started, or shared memory is too small for pixels.
    """
    workers = min(num_workers, len(batches))
    start = partial(_start, source, batches, options, pin_memory, ranks_here)
    try:
        if workers:
            multiprocessing.Lock()  # where this fails, torch's iterator would leave tracebacks of its half-made self
        decoded = start(workers)
    except OSError as error:
        if not workers:
            raise
        reason = f"{error.strerror or error}"
        complain(f"decoding processes cannot be started ({reason}; is /dev/shm too small?): decoding without them")
        decoded = start(0)
    try:
        while (batch := watch.next_of(decoded) if workers else next(decoded, None)) is not None:
            if workers and isinstance(batch.pixels, np.ndarray):
                complain("/dev/shm is too small for decoded batches, which take a slower way: give the container more")
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
        # More workers than cores is the user's choice, and nothing freezes.
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
            # With the default generator the random numbers of a training script would change.
            generator=torch.Generator(),
        )
        return iter(loader)


def _prepared(source: ImageSet, batches: Sequence[PlannedBatch], workers: int) -> Iterable[PlannedBatch | FetchedBatch]:
    """What the decoders get: the plan, or batches that this process reads ahead of them.

    It does so where images can only be read from first to last, and where a store is slow and no worker waits for it.
    """
    if source.in_order or (source.source.files.remote and not workers):
        return Prefetcher(fetch_batches(source, batches))
    return batches


def _begin_worker(spelling: Spelling, _: int) -> None:
    """A worker must not outlive its rank, however that ends, and must leave the terminal's signals to it."""
    spell_by(spelling)
    signals.reset_in_worker()
    with contextlib.suppress(OSError, AttributeError):  # only Linux has prctl; torch's own watch takes seconds
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
