"""Decoded batches, in this process or from worker processes."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from fidtool.errors import RunError
from fidtool.images.decode import DecodeError, decode
from fidtool.images.source import ImageFolder

_PREFETCH = 2
"""Batches that each worker keeps ready."""


@dataclass
class DecodedBatch:
    """The pixels of one planned batch, packed end to end, so that a worker hands over one piece of shared memory.

    Attributes:
        indices: positions of the images in the plan.
        pixels: uint8 tensor of shape (sum of height * width * 3,).
        sizes: (height, width) of each image.
        lossy: number of images in a lossy file format.
        alpha: number of images with transparent pixels.
        deep: number of 16-bit images that were scaled to 8 bits.
        failure: what is wrong with the first image that cannot be read, with its path; then the rest is empty.
    """

    indices: range
    pixels: torch.Tensor
    sizes: list[tuple[int, int]] = field(default_factory=list)
    lossy: int = 0
    alpha: int = 0
    deep: int = 0
    failure: str | None = None

    def pin_memory(self) -> DecodedBatch:
        """Called by the DataLoader where the batch is bound for a GPU."""
        self.pixels = self.pixels.pin_memory()
        return self

    def images(self, device: torch.device) -> list[torch.Tensor]:
        """The images on ``device``, each a uint8 tensor of shape (height, width, 3)."""
        pixels = self.pixels.to(device, non_blocking=True)
        parts = torch.split(pixels, [height * width * 3 for height, width in self.sizes])
        return [part.view(*size, 3) for part, size in zip(parts, self.sizes, strict=True)]


class _PlannedBatches(Dataset[DecodedBatch]):
    def __init__(self, source: ImageFolder, batches: Sequence[range]) -> None:
        self._source = source
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, position: int) -> DecodedBatch:
        return decode_batch(self._source, self._batches[position])


def decode_batch(source: ImageFolder, indices: range) -> DecodedBatch:
    """Reads and decodes the images ``indices`` of ``source``; stops at the first that cannot be read."""
    batch = DecodedBatch(indices, torch.empty(0, dtype=torch.uint8))
    flat = []
    for index in indices:
        try:
            image = decode(source.read(index))
        except DecodeError as error:
            return DecodedBatch(indices, batch.pixels, failure=f"cannot decode {source.file(index)}: {error}")
        except OSError as error:
            return DecodedBatch(
                indices, batch.pixels, failure=f"cannot read {source.file(index)}: {error.strerror or error}"
            )
        flat.append(image.pixels.reshape(-1))
        height, width, _ = image.pixels.shape
        batch.sizes.append((height, width))
        batch.lossy += image.lossy
        batch.alpha += image.alpha
        batch.deep += image.deep
    batch.pixels = torch.from_numpy(np.concatenate(flat))
    return batch


@contextlib.contextmanager
def worker_deaths_explained() -> Iterator[None]:
    """Says what to do when a worker dies. torch reports it from a signal handler: anywhere in the main thread.

    Raises:
        RunError: a worker died.
    """
    try:
        yield
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise RunError(
            f"a decoding process died ({' '.join(str(error).split())[:200]}): it was killed, ran out of memory, or "
            "/dev/shm is too small; try --num-workers 0"
        ) from error


def _as_it_is(batch: Any) -> Any:
    return batch


def load(source: ImageFolder, batches: Sequence[range], num_workers: int, pin_memory: bool) -> Iterator[DecodedBatch]:
    """Yields the decoded ``batches`` in their order.

    Args:
        source: the images.
        batches: what this rank reads.
        num_workers: processes that decode; 0 decodes in the calling thread.
        pin_memory: page-lock the pixels, for copies to a GPU that overlap with its work.
    """
    workers = min(num_workers, len(batches))
    with warnings.catch_warnings():
        # More workers than cores is the user's choice, and nothing freezes.
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        loader = DataLoader(
            _PlannedBatches(source, batches),
            batch_size=None,
            collate_fn=_as_it_is,
            num_workers=workers,
            prefetch_factor=_PREFETCH if workers else None,
            pin_memory=pin_memory,
            # A generator of its own: the default one would be advanced, and with it a training script's random numbers.
            generator=torch.Generator(),
        )
        decoded = iter(loader)
    yield from decoded
