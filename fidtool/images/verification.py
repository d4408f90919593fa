"""Whether files are sound and stayed as they were while pieces of them were read. No torch."""

from __future__ import annotations

import threading

from fidtool.errors import FidtoolError, InputError
from fidtool.sources.contents import StoreError
from fidtool.sources.image_set import ImageSet


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
