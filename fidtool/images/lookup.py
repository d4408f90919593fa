"""Reads single images again for a report, by the paths under which they are shown."""

from __future__ import annotations

import functools
import os
import stat
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from fidtool.sources.contents import ContentError, Read, ValueRange
from fidtool.sources.image_set import ImageSet


class ImageLookup:
    """Reads single images of some sets again.

    A path that is in none of them is that of a file on this machine; ``spent`` names iterables, which cannot
    be read again; ``floats`` is how floats in files become bytes.
    """

    def __init__(
        self, sets: Sequence[ImageSet] = (), spent: Collection[str] = (), floats: ValueRange | None = None
    ) -> None:
        # Files of a local folder, of which there may be millions, are opened by their paths instead.
        self._sets = [images for images in sets if images.file_index is not None or images.reader.files.remote]
        self._spent, self.floats = spent, floats
        self._prefetched: dict[str, Read] = {}

    @functools.cached_property
    def _positions(self) -> dict[str, tuple[ImageSet, int]]:
        return {images.file(index): (images, index) for images in self._sets for index in range(len(images))}

    def read(self, file: str) -> Read:
        """Returns the content of an image, or the error that occurred."""
        if file.rpartition("[")[0] in self._spent:
            return ContentError("an iterable cannot be read again")
        if file not in self._prefetched and file in self._positions:
            images, index = self._positions[file]
            if not images.in_order:
                return next(images.read([index]))
            self.prefetch([file])
        return self._prefetched[file] if file in self._prefetched else _file_content(file)

    def prefetch(self, files: Iterable[str]) -> None:
        """Reads and stores the requested images that must be read sequentially, in one pass over each source."""
        found = {file: self._positions[file] for file in files if file in self._positions}
        for images in self._sets:
            wanted = sorted(
                (int(images.order[index]), index, file) for file, (own, index) in found.items() if own is images
            )
            if images.in_order and wanted:
                contents = images.read(np.array([index for _, index, _ in wanted]))
                self._prefetched |= dict(zip((file for *_, file in wanted), contents, strict=False))


def _file_content(file: str) -> Read:
    try:  # regular files only, because reading a pipe may block forever
        if not file or not stat.S_ISREG(os.stat(file).st_mode):
            return FileNotFoundError(file)
        with open(file, "rb") as handle:
            return handle.read()
    except (OSError, ValueError) as error:
        return error
