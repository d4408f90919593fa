"""That the images are the same on every rank, undamaged, and unchanged from the listing to the end of the run."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace

from fidtool.distributed.world import World
from fidtool.errors import FidtoolError, InputError, on_every_rank
from fidtool.sources.arrays import ValueRange
from fidtool.sources.contents import StoreError
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


class Verification:
    """Looks for damage in a set's files while their images are being measured.

    Args:
        images: the set, on rank zero; None on the others, where there is nothing to do.
    """

    def __init__(self, images: ImageSet | None) -> None:
        self._damage = ""
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        if images is not None and images.source.reader.has_checksums:
            self._thread = threading.Thread(target=self._look, args=[images], daemon=True, name="fidtool-verify")
            self._thread.start()

    def _look(self, images: ImageSet) -> None:
        self._damage = images.source.reader.damage(self._over.is_set)

    def settle(self) -> None:
        """Waits for the end of the search.

        Raises:
            InputError: a file is damaged.
        """
        if self._thread is not None:
            self._thread.join()
        if self._damage:
            raise InputError(self._damage)

    def __enter__(self) -> Verification:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()


def changes_of(images: ImageSet) -> str:
    """What to say where the images may not have stayed the same; empty if they have."""
    try:
        changed = images.changed()
    except (FidtoolError, StoreError) as error:
        return f"whether {images.path} changed while it was being read is not known: {error}"
    if not changed:
        return ""
    return (
        f"{len(changed)} files of {images.path} changed while they were being read, {changed[0]} among them: the "
        "number may be of a mixture; run it again"
    )
