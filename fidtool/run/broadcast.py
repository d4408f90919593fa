"""Rank 0's list of images on every rank, and a check that their contents are the same."""

from __future__ import annotations

import socket
from dataclasses import replace

from fidtool.distributed.world import World
from fidtool.errors import InputError, mark_agreed
from fidtool.run.sets import RequestedSet
from fidtool.settings.settings import Settings
from fidtool.sources.contents import SAME_FILES
from fidtool.sources.image_set import ImageSet
from fidtool.sources.memory import Images


def broadcast_images(
    world: World, images: ImageSet | None, request: RequestedSet, settings: Settings
) -> ImageSet:
    """Broadcast rank 0's list of images, to which others pass None. A collective.

    The ranks then compare a sample of the contents, because a path may refer to different files on
    another machine: an InputError if they differ. Images in memory are this rank's own.
    """
    if world.size == 1:
        assert images is not None
        return images
    sent = world.broadcast(images)
    assert sent is not None
    mine = images or sent
    with world.together():
        if isinstance(request.data, Images):
            own = request.data.image_set(settings.floats)
            mine = replace(mine, reader=mine.reader.wrap(own.reader))
        sample = mine.run_with_timeout(mine.hash_sample, settings.timeout)
    samples = world.gather((sample, socket.gethostname()))
    for rank, (other, host) in enumerate(samples):
        if other != samples[0][0]:
            raise mark_agreed(
                InputError(
                    f"{mine.path} has different contents on rank {rank} ({host}) and rank 0, but "
                    f"the same names: {SAME_FILES}"
                )
            )
    return mine
