"""Single images by the paths under which they are shown, read once more for a report."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from fidtool.sources.contents import ContentError, Read
from fidtool.sources.image_set import ImageSet


class ImageLookup:
    """Reads images of some sets once more.

    Args:
        sets: where the images are. A path that is in none of them is taken for that of a file on this machine.
        spent: names of iterables, whose images cannot be read again.
    """

    def __init__(self, sets: Sequence[ImageSet] = (), spent: Collection[str] = ()) -> None:
        self._sets, self._spent = sets, spent
        self._places: dict[str, tuple[int, int]] | None = None
        self._kept: dict[str, Read] = {}

    @property
    def in_order(self) -> bool:
        """Whether it pays to `prefetch` images before they are read."""
        return any(images.in_order for images in self._sets)

    def read(self, file: str) -> Read:
        """Contents of the image, or why there are none."""
        if file in self._kept:
            return self._kept[file]
        if file.rpartition("[")[0] in self._spent:
            return ContentError("an iterable is gone through once")
        if (place := self._place(file)) is None:
            return _file_content(file)
        number, index = place
        if self._sets[number].in_order:
            self.prefetch([file])
            return self._kept[file]
        return self._sets[number].read([index])[0]

    def prefetch(self, files: Iterable[str]) -> None:
        """Reads those of these images that can only be read in order, in one pass over each source, and keeps them."""
        wanted: dict[int, list[tuple[int, str]]] = {}
        for file in dict.fromkeys(files):
            if (place := self._place(file)) is not None and self._sets[place[0]].in_order:
                wanted.setdefault(place[0], []).append((place[1], file))
        for number, entries in wanted.items():
            images = self._sets[number]
            entries.sort(key=lambda entry: int(images.order[entry[0]]))
            contents = images.stream(np.array([index for index, _ in entries]))
            self._kept |= dict(zip((file for _, file in entries), contents, strict=False))

    def _place(self, file: str) -> tuple[int, int] | None:
        """The number of the image's set and its position there; None of files on this machine."""
        if self._places is None:
            self._places = {
                images.file(index): (number, index)
                for number, images in enumerate(self._sets)
                # Files of a local folder are opened by their paths: millions need no dictionary.
                if images.source.file_index is not None or images.source.files.remote
                for index in range(len(images))
            }
        return self._places.get(file)


def _file_content(file: str) -> Read:
    """The bytes of a regular file: from a pipe one could wait forever."""
    try:
        if not file or not stat.S_ISREG(os.stat(file).st_mode):
            return FileNotFoundError(file)
        with open(file, "rb") as handle:
            return handle.read()
    except (OSError, ValueError) as error:
        return error
