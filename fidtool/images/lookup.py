"""Single images by the paths under which they are shown, wherever they live. Imports no torch."""

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
        sets: where they are; a path that is in none of them is a file's.
        spent: names of iterables, whose images have gone.
    """

    def __init__(self, sets: Sequence[ImageSet] = (), spent: Collection[str] = ()) -> None:
        self._sets, self._spent = sets, spent
        self._places: dict[str, tuple[ImageSet, int]] | None = None
        self._kept: dict[str, Read] = {}

    def read(self, file: str) -> Read:
        """Contents of the image, or why there are none."""
        if file in self._kept:
            return self._kept[file]
        if file.rpartition("[")[0] in self._spent:
            return ContentError("an iterable is gone through once")
        if (place := self._place(file)) is None:
            return _file_content(file)
        images, index = place
        if images.in_order:
            self.keep([file])
            return self._kept[file]
        return images.read([index])[0]

    @property
    def in_order(self) -> bool:
        """Whether it pays to `keep` images before they are asked for."""
        return any(images.in_order for images in self._sets)

    def keep(self, files: Iterable[str]) -> None:
        """Reads those of these images that can only be read in order: once through each source."""
        wanted: dict[int, list[tuple[int, str]]] = {}
        for file in dict.fromkeys(files):
            if (place := self._place(file)) is not None and place[0].in_order:
                wanted.setdefault(self._sets.index(place[0]), []).append((place[1], file))
        for number, entries in wanted.items():
            images = self._sets[number]
            entries.sort(key=lambda entry: int(images.order[entry[0]]))
            contents = images.stream(np.array([index for index, _ in entries]))
            self._kept |= dict(zip((file for _, file in entries), contents, strict=False))

    def _place(self, file: str) -> tuple[ImageSet, int] | None:
        if self._places is None:
            # Files are opened by their paths: millions need no dictionary.
            others = [images for images in self._sets if images.source.file_index is not None]
            self._places = {images.file(index): (images, index) for images in others for index in range(len(images))}
        if file in self._places:
            return self._places[file]
        return next(
            ((images, index) for images in self._sets for index in _place_in(images, file)),
            None,
        )


def _place_in(images: ImageSet, file: str) -> list[int]:
    """Where a remote folder has the image of this path; empty for other sets."""
    if images.source.files.timed or not file.startswith(images.source.prefix):
        return []
    return [index for index in range(len(images)) if images.file(index) == file]


def _file_content(file: str) -> Read:
    """The bytes of a regular file: from a pipe one could wait forever."""
    try:
        if not file or not stat.S_ISREG(os.stat(file).st_mode):
            return FileNotFoundError(file)
        with open(file, "rb") as handle:
            return handle.read()
    except (OSError, ValueError) as error:
        return error
