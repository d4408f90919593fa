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
    world: World, images: ImageSet | None, in_memory: Images | None = None, value_range: ValueRange | None = None
) -> ImageSet:
    """Rank zero's list of images, on every rank. A collective.

    All ranks compare a sample of the contents: a path can mean other files on another machine.

    Args:
        world: the ranks.
        images: the set, on rank zero; None on the others.
        in_memory: this rank's images, where a program passed images in place of a path; else None.
        value_range: values of black and white, where these are floats.

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
        if in_memory is not None:
            mine = replace(mine, source=in_memory.image_set(value_range).source)
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


class IntegrityCheck:
    """Compares a set's files with the checksums in them, in a thread, while their images are being measured.

    Args:
        images: the set, on rank zero; None on the other ranks, which do nothing.
    """

    def __init__(self, images: ImageSet | None) -> None:
        self._damage = ""
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        if images is not None and images.source.reader.has_checksums:
            self._thread = threading.Thread(target=self._compare, args=[images], daemon=True, name="fidtool-verify")
            self._thread.start()

    def _compare(self, images: ImageSet) -> None:
        self._damage = images.source.reader.damage(self._over.is_set)

    def wait(self) -> None:
        """Waits until all files have been compared.

        Raises:
            InputError: a file is damaged.
        """
        if self._thread is not None:
            self._thread.join()
        if self._damage:
            raise InputError(self._damage)

    def __enter__(self) -> IntegrityCheck:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()


def change_warning(images: ImageSet) -> str:
    """A warning if a set's files changed since they were listed, or if that is unknown; else empty."""
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
