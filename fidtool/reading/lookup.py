"""Reads single images of a run again, for a report."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from fidtool.errors import RunError
from fidtool.sources.contents import (
    ContentError,
    Files,
    Read,
    ValueRange,
)
from fidtool.sources.image_set import ImageSet
from fidtool.system.local_files import READ_SECONDS, read_with_timeout


@dataclass
class ImageLookup:
    """Reads single images of some ``sets`` again for a report, by the paths under which they are
    shown.

    A path that is in none of them is that of a file on this machine; ``spent`` names iterables,
    which cannot be read again; ``floats`` is how floats in files become bytes; ``seconds`` is how
    long the storage may take.
    """

    sets: Sequence[ImageSet] = ()
    iterables: Collection[str] = ()
    floats: ValueRange | None = None
    seconds: float = READ_SECONDS
    _prefetched: dict[str, Read] = field(default_factory=dict, init=False)

    def prefetch(self, files: Collection[str]) -> None:
        """Read and keep those of these images that are no files on this machine, in one pass over
        each source.
        """
        for images in self.sets:
            # Files of a local folder, of which there may be millions, are opened by their paths
            # instead.
            if images.reader.file_index is not None or images.files.remote:
                self._prefetch(images, files)

    def _prefetch(self, images: ImageSet, files: Collection[str]) -> None:
        wanted = [index for index in range(len(images)) if images.file(index) in files]
        wanted.sort(key=images.order.__getitem__)
        contents: Sequence[Read]
        try:
            contents = images.run_with_timeout(lambda: list(images.read(wanted)), self.seconds)
        except RunError as error:
            contents = [error] * len(wanted)
        self._prefetched |= zip(map(images.file, wanted), contents, strict=False)

    def read(self, file: str) -> Read:
        """Return the content of an image, or the error that occurred. What is no local file must
        be prefetched.
        """
        if file in self._prefetched:
            return self._prefetched[file]
        if file.rpartition("[")[0] in self.iterables:
            return ContentError("an iterable cannot be read again")
        try:
            return read_with_timeout(file, lambda: Files([file]).read_bytes(0), self.seconds)
        except RunError as error:
            return error
