"""Checks that images are the same on all ranks and do not change during the run."""

from __future__ import annotations

import socket
from dataclasses import replace

from fidtool.distributed.world import World
from fidtool.errors import FidtoolError, InputError, on_every_rank
from fidtool.sources.contents import SAME_FILES, ValueRange
from fidtool.sources.image_set import ImageSet
from fidtool.sources.memory import Images


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
    sent = world.broadcast(None if images is None else images.for_other_ranks())
    assert sent is not None
    mine = images or sent.received()
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
        changed = images.changed()
    except FidtoolError as error:
        return f"cannot check whether {images.path} changed while it was read: {error}"
    if not changed:
        return ""
    return (
        f"{len(changed)} files of {images.path} changed while they were read, including {changed[0]}: the results may "
        "be of a mixture of old and new images; run it again"
    )
