"""Batches of images, their assignment to ranks, and checks that the images are the same on all ranks and do not change.

The assignment depends only on the number of images and the seed. Images are divided into batches before batches are
distributed to ranks, so that every forward pass processes the same images at any world size.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fidtool.distributed.world import World
from fidtool.errors import FidtoolError, InputError, on_every_rank
from fidtool.sources.contents import SAME_FILES, ValueRange
from fidtool.sources.image_set import ImageSet, Indices
from fidtool.sources.memory import Images

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


def broadcast_images(
    world: World, images: ImageSet | None, in_memory: Images | None = None, value_range: ValueRange | None = None
) -> ImageSet:
    """Broadcasts rank zero's list of images, to which others pass None. A collective.

    The ranks then compare a sample of the contents, because a path may refer to different files on another machine: an
    InputError if they differ. Images in memory are this rank's own.
    """
    if world.size == 1:
        assert images is not None
        return images
    sent = world.broadcast(images)
    assert sent is not None
    mine = images or sent
    with world.together():
        if in_memory is not None:
            own = in_memory.image_set(value_range)
            mine = replace(mine, reader=mine.reader.around(own.reader))
        seen = mine.sample(), socket.gethostname()
    (first, _), *others = world.gather(seen)
    for rank, (sample, host) in enumerate(others, 1):
        if sample != first:
            raise on_every_rank(
                InputError(
                    f"{mine.path} has different contents on rank {rank} ({host}) and rank 0, but the same names: "
                    f"{SAME_FILES}"
                )
            )
    return mine


def change_warning(images: ImageSet) -> str:
    """Returns a warning if a set's files changed since they were listed, or if this is unknown; else empty."""
    try:
        changed = images.reader.files.changed()
    except FidtoolError as error:
        return f"cannot check whether {images.path} changed while it was read: {error}"
    if not changed:
        return ""
    return (
        f"{len(changed)} files of {images.path} changed while they were read, including {changed[0]}: the results may "
        "be of a mixture of old and new images; run it again"
    )
