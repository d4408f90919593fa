"""Batches of images, and their assignment to ranks.

The assignment depends only on the number of images and the seed. Images are divided into batches before batches are
distributed to ranks, so that every forward pass processes the same images at any world size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fidtool.sources.contents import Read
from fidtool.sources.image_set import ImageSet, Indices

T = TypeVar("T")


@dataclass(frozen=True)
class PlannedBatch:
    """A batch before it is decoded, or a part of one.

    Attributes:
        indices: positions of its images in the set.
        ends: whether no part of the batch follows.
        files: names of the images, if they have been read.
        contents: what was read; None if the images are read where they are decoded.
    """

    number: int
    indices: Indices
    ends: bool = True
    files: Sequence[str] = ()
    contents: Sequence[Read] | None = None

    def part(self, start: int, stop: int) -> PlannedBatch:
        """Returns images ``start`` to ``stop`` of this batch."""
        contents = None if self.contents is None else self.contents[start:stop]
        ends = self.ends and stop >= len(self.indices)
        return replace(
            self, indices=self.indices[start:stop], ends=ends, files=self.files[start:stop], contents=contents
        )


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
