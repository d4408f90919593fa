"""Decoded batches, in this process or from worker processes."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, get_worker_info

from fidtool.config import MAX_PIXELS
from fidtool.distributed import signals
from fidtool.errors import RunError
from fidtool.images.decode import DecodeError, decode
from fidtool.images.inspection import Records, inspect, no_records, traits_of
from fidtool.images.source import BadFile, ImageFolder
from fidtool.images.traits import Traits

_PREFETCH = 2
"""Batches that each worker keeps ready."""
_SHARED_MEMORY = "/dev/shm"
_PR_SET_PDEATHSIG = 1
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""What a good file meets on a machine with too much to do: to skip it would make the result depend on the load."""


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
        failure: what is wrong with the file that ends the run, with its path; then there are no pixels.
        exhausted: it is the machine that has no more memory or open files, and the file may be a good one.
    """

    number: int
    pixels: torch.Tensor | NDArray[np.uint8]
    sizes: list[tuple[int, int]] = field(default_factory=list)
    traits: Traits = field(default_factory=Traits)
    records: Records = field(default_factory=no_records)
    skipped: list[BadFile] = field(default_factory=list)
    failure: str | None = None
    exhausted: bool = False

    def pin_memory(self) -> DecodedBatch:
        """Called by the DataLoader where the batch is bound for a GPU."""
        self.pixels = torch.as_tensor(self.pixels).pin_memory()
        return self

    def images(self, device: torch.device) -> list[torch.Tensor]:
        """The images on ``device``, each a uint8 tensor of shape (height, width, 3)."""
        pixels = torch.as_tensor(self.pixels).to(device, non_blocking=True)
        parts = torch.split(pixels, [height * width * 3 for height, width in self.sizes])
        return [part.view(*size, 3) for part, size in zip(parts, self.sizes, strict=True)]


@dataclass(frozen=True)
class PlannedBatch:
    """One batch of the plan: its number, and its images' positions in the source."""

    number: int
    indices: range


class _PlannedBatches(Dataset[DecodedBatch]):
    def __init__(self, source: ImageFolder, batches: Sequence[PlannedBatch], reading: Reading, sharers: int) -> None:
        self._source, self._batches, self._reading, self._sharers = source, batches, reading, sharers

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, position: int) -> DecodedBatch:
        batch = decode_batch(self._source, self._batches[position], self._reading)
        if get_worker_info() is not None and not _fits(len(batch.pixels), self._sharers):
            batch.pixels = np.asarray(batch.pixels)  # a tensor would travel through /dev/shm, an array does by pipe
        return batch


def _fits(size: int, sharers: int) -> bool:
    """Whether shared memory surely holds ``size`` bytes more, the next batches of all workers of all ranks included.

    Without this a container's 64 MiB end the worker with a bus error.
    """
    try:
        status = os.statvfs(_SHARED_MEMORY)
    except OSError:
        return True  # another system, with its own ways
    return status.f_bavail * status.f_frsize > 2 * (sharers + 1) * size


def decode_batch(source: ImageFolder, batch: PlannedBatch, reading: Reading) -> DecodedBatch:
    """Reads and decodes the images of a batch; stops at the first that cannot be read unless these are skipped."""
    decoded = DecodedBatch(batch.number, torch.empty(0, dtype=torch.uint8, device="cpu"))
    flat, records = [], []
    for index in batch.indices:
        file = source.file(index)
        try:
            image = decode(source.read(index), reading.max_pixels)
        except (DecodeError, OSError, MemoryError) as error:
            verb, reason = _problem(error)
            exhausted = isinstance(error, MemoryError) or getattr(error, "errno", None) in _EXHAUSTED
            if exhausted or not reading.skip:
                failure = f"cannot {verb} {file}: {reason}"
                return DecodedBatch(batch.number, decoded.pixels, failure=failure, exhausted=exhausted)
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


def _problem(error: DecodeError | OSError | MemoryError) -> tuple[str, str]:
    if isinstance(error, MemoryError):
        return "decode", "there is not enough memory"
    if isinstance(error, DecodeError):
        return "decode", str(error)
    return "read", error.strerror or str(error)


class WorkerWatch:
    """Watches over decoding processes: ends those that deliver nothing, and says why they died.

    Args:
        patience: seconds that a batch may take them.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._frozen = False

    def next_of(self, decoded: Iterator[DecodedBatch]) -> DecodedBatch | None:
        """The next batch, or None after the last. Torch's own deadline misses a worker that freezes as it delivers."""
        end = threading.Timer(self._patience, self._end, [getattr(decoded, "_workers", [])])
        end.daemon = True
        end.start()
        try:
            return next(decoded, None)
        finally:
            end.cancel()

    def _end(self, workers: Sequence[multiprocessing.Process]) -> None:
        self._frozen = bool(workers)
        for worker in workers:
            worker.kill()

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Says what to do when a worker dies. Torch reports it from a signal handler: anywhere in the main thread.

        Raises:
            RunError: a worker died.
        """
        try:
            yield
        except (RuntimeError, EOFError, OSError) as error:
            if self._frozen:
                raise RunError(
                    f"the decoding processes delivered nothing for {self._patience:g} s (--timeout): one is frozen, or "
                    "the files' storage does not answer"
                ) from error
            if "DataLoader worker" not in str(error):
                raise
            raise RunError(
                f"a decoding process died ({' '.join(str(error).split())[:200]}): it was killed, ran out of memory, or "
                "/dev/shm is too small; try --num-workers 0"
            ) from error


def _as_it_is(batch: Any) -> Any:
    return batch


def load(
    source: ImageFolder,
    batches: Sequence[PlannedBatch],
    reading: Reading,
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
        reading: see `Reading`.
        num_workers: processes that decode; 0 decodes in the calling thread.
        pin_memory: page-lock the pixels, for copies to a GPU that overlap with its work.
        ranks_here: ranks on this machine, whose workers share its /dev/shm.
        watch: watches over the processes.
        complain: takes a line where the processes cannot be started, or pixels have to take a slower way.

    """
    workers = min(num_workers, len(batches))
    try:
        if workers:
            multiprocessing.Lock()  # where this fails, torch's iterator would leave tracebacks of its half-made self
        decoded = _started(source, batches, reading, workers, pin_memory, ranks_here)
    except OSError as error:
        if not workers:
            raise
        reason = f"{error.strerror or error}"
        complain(f"decoding processes cannot be started ({reason}; is /dev/shm too small?): decoding without them")
        decoded = _started(source, batches, reading, 0, pin_memory, ranks_here)
    while (batch := watch.next_of(decoded) if workers else next(decoded, None)) is not None:
        if workers and isinstance(batch.pixels, np.ndarray):
            complain("/dev/shm is too small for decoded batches, which take a slower way: give the container more")
        yield batch


def _started(
    source: ImageFolder,
    batches: Sequence[PlannedBatch],
    reading: Reading,
    workers: int,
    pin_memory: bool,
    ranks_here: int,
) -> Iterator[DecodedBatch]:
    with warnings.catch_warnings():
        # More workers than cores is the user's choice, and nothing freezes.
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        loader = DataLoader(
            _PlannedBatches(source, batches, reading, workers * ranks_here),
            batch_size=None,
            collate_fn=_as_it_is,
            num_workers=workers,
            prefetch_factor=_PREFETCH if workers else None,
            pin_memory=pin_memory,
            worker_init_fn=_begin_worker,
            # A generator of its own: the default one would be advanced, and with it a training script's random numbers.
            generator=torch.Generator(),
        )
        return iter(loader)


def _begin_worker(_: int) -> None:
    """A worker must not outlive its rank, however that ends, nor answer the terminal's signals for it."""
    signals.reset_in_worker()
    with contextlib.suppress(OSError, AttributeError):  # Linux alone has prctl; torch's own watch takes seconds
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
