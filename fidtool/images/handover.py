"""How the ranks come to have the same images: rank zero lists them, hands the list over, and all compare samples."""

from __future__ import annotations

import socket
from dataclasses import replace

from fidtool.distributed.world import World
from fidtool.errors import InputError, on_every_rank
from fidtool.sources.arrays import ValueRange
from fidtool.sources.image_set import ImageSet
from fidtool.sources.memory import Images


def broadcast_images(
    world: World, images: ImageSet | None, given: Images | None = None, value_range: ValueRange | None = None
) -> ImageSet:
    """Rank zero's list of images on every rank, where it was found to mean the same. A collective.

    Args:
        world: the ranks.
        images: the set, on rank zero; None on the others.
        given: what this rank's own program has in the place of files; None where there are files.
        value_range: what black and white are among its floats.

    Raises:
        InputError: a rank sees other contents.
    """
    if world.size == 1:
        assert images is not None
        return images
    listed = world.broadcast(None if images is None else images.for_other_ranks())
    mine = images or listed
    assert mine is not None
    with world.together():
        if given is not None:
            mine = replace(mine, source=given.image_set(value_range).source)
        seen = mine.sample(), socket.gethostname()
    (first, _), *others = world.gather(seen)
    for rank, (sample, host) in enumerate(others, 1):
        if sample != first:
            raise on_every_rank(
                InputError(
                    f"{mine.path} has other contents on rank {rank} ({host}) than on rank 0, under the same names: all "
                    "ranks must see the same files, on a shared file system or as the same copy on every machine"
                )
            )
    return mine
