"""Reads single images again for a report, by the paths under which they are shown."""

from __future__ import annotations

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
        self._sets, self._spent, self.floats = sets, spent, floats
        self._positions: dict[str, tuple[int, int]] | None = None
        self._prefetched: dict[str, Read] = {}

    def read(self, file: str) -> Read:
        """Returns the content of an image, or the error that occurred."""
        if file in self._prefetched:
            return self._prefetched[file]
        if file.rpartition("[")[0] in self._spent:
            return ContentError("an iterable cannot be read again")
        if (position := self._position(file)) is None:
            return _file_content(file)
        number, index = position
        if self._sets[number].in_order:
            self.prefetch([file])
            return self._prefetched[file]
        return next(self._sets[number].read([index]))

    def prefetch(self, files: Iterable[str]) -> None:
        """Reads and stores the requested images that must be read sequentially, in one pass over each source."""
        wanted: dict[int, list[tuple[int, str]]] = {}
        for file in dict.fromkeys(files):
            if (position := self._position(file)) is not None and self._sets[position[0]].in_order:
                wanted.setdefault(position[0], []).append((position[1], file))
        for number, entries in wanted.items():
            images = self._sets[number]
            entries.sort(key=lambda entry: int(images.order[entry[0]]))
            contents = images.read(np.array([index for index, _ in entries]))
            self._prefetched |= dict(zip((file for _, file in entries), contents, strict=False))

    def _position(self, file: str) -> tuple[int, int] | None:
        """Returns the number of the image's set and its position in the set; None for files on this machine."""
        if self._positions is None:
            self._positions = {
                images.file(index): (number, index)
                for number, images in enumerate(self._sets)
                # Files of a local folder, of which there may be millions, are opened by their paths instead.
                if images.file_index is not None or images.reader.files.remote
                for index in range(len(images))
            }
        return self._positions.get(file)


def _file_content(file: str) -> Read:
    try:  # regular files only, because reading a pipe may block forever
        if not file or not stat.S_ISREG(os.stat(file).st_mode):
            return FileNotFoundError(file)
        with open(file, "rb") as handle:
            return handle.read()
    except (OSError, ValueError) as error:
        return error
