"""Batches of images, and their assignment to ranks.

The assignment depends only on the number of images and the seed. Images are divided into batches before batches are
distributed to ranks, so that every forward pass processes the same images at any world size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fidtool.sources.image_set import ImageSet, Indices

T = TypeVar("T")


def plan_batches(images: ImageSet, batch_size: int) -> Sequence[Indices]:
    """Divides the positions 0 .. len(images) - 1 into batches. The last may be smaller; none is empty.

    The positions in a batch are consecutive. If images can only be read sequentially, a batch contains images that are
    stored next to each other instead.
    """
    if not images.in_order:
        return cut_batches(len(images), batch_size)
    stored = stored_order(images)
    return [stored[batch.start : batch.stop] for batch in cut_batches(len(images), batch_size)]


def stored_order(images: ImageSet) -> NDArray[np.int64]:
    """Returns the positions of a set's images in stored order, int64 array of shape (images,)."""
    return np.argsort(images.order, kind="stable")


def cut_batches(count: int, batch_size: int) -> list[range]:
    """Divides the positions 0 .. count - 1 into consecutive batches. The last may be smaller; none is empty."""
    return [range(start, min(start + batch_size, count)) for start in range(0, count, batch_size)]


def deal(batches: Sequence[T], rank: int, world_size: int, in_order: bool = False) -> list[T]:
    """Returns the batches of one rank. Each batch is assigned to exactly one rank, and all ranks get similar numbers.

    A rank gets every ``world_size``-th batch. If images can only be read sequentially (``in_order``), it gets
    consecutive batches, so that it need not read past its own last image.
    """
    if in_order:
        return list(batches[len(batches) * rank // world_size : len(batches) * (rank + 1) // world_size])
    return list(batches[rank::world_size])
