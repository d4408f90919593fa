"""Which image is in which batch, and which rank has which batch. Imports no torch.

The plan is made from the number of images and the seed alone. Batches are cut before they are dealt to the ranks, so
that every forward pass has the same images in it at any world size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fidtool.sources.image_set import ImageSet, Indices

Batch = TypeVar("Batch")


def plan_batches(images: ImageSet, batch_size: int) -> Sequence[Indices]:
    """Cuts the positions 0 .. len(images) - 1 into batches; the last may be smaller, none is empty.

    Consecutive ones, or those that are stored next to each other where images can only be read as they are stored.
    """
    if not images.in_order:
        return cut_batches(len(images), batch_size)
    stored = stored_order(images)
    return [stored[batch.start : batch.stop] for batch in cut_batches(len(images), batch_size)]


def stored_order(images: ImageSet) -> NDArray[np.int64]:
    """The positions of the images of a set as they are stored: array of shape (images,)."""
    return np.argsort(images.order, kind="stable")


def cut_batches(count: int, batch_size: int) -> list[range]:
    """Cuts positions 0 .. count - 1 into consecutive batches; the last may be smaller, none is empty."""
    return [range(start, min(start + batch_size, count)) for start in range(0, count, batch_size)]


def deal(batches: Sequence[Batch], rank: int, world_size: int, in_order: bool = False) -> list[Batch]:
    """The batches of one rank, so that each batch has one rank, and ranks finish together.

    Every ``world_size``-th; where images can only be read in order a run of consecutive ones, so that a rank has to
    pass over no more than comes before it.
    """
    if in_order:
        return list(batches[len(batches) * rank // world_size : len(batches) * (rank + 1) // world_size])
    return list(batches[rank::world_size])
