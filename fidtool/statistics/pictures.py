"""The single images behind a set's statistics: their names, and what was seen of each."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fidtool.images.inspection import RECORD, Records
from fidtool.redaction import redacted
from fidtool.sources.contents import BadFile
from fidtool.sources.image_set import ImageSet, Names, absolute_prefix

_SEPARATOR = b"\0"
ARRAYS = ("records", "names", "folder")
"""What a statistics file calls them."""


@dataclass(frozen=True)
class Pictures:
    """The images that count in a set, in its canonical order.

    Attributes:
        records: what was seen of each, see `fidtool.images.inspection.RECORD`: array of shape (images,).
        names: what tells them apart.
        prefix: what stands before a name where an image is shown: the source as the user typed it, or, of a statistics
            file, where it was.
    """

    records: Records
    names: Sequence[str]
    prefix: str = ""

    @classmethod
    def of(cls, images: ImageSet, records: NDArray[np.uint8], skipped: Sequence[BadFile]) -> Pictures:
        """Those of a set.

        Args:
            images: the set, in canonical order.
            records: theirs, as bytes: shape (images, bytes of `RECORD`).
            skipped: its files that are not among them.
        """
        left_out = {bad.file for bad in skipped}
        names = (name for name in images.names if f"{images.source.prefix}{name}" not in left_out)
        return cls(np.ascontiguousarray(records).view(RECORD).reshape(-1), Names(names), images.source.prefix)

    def __len__(self) -> int:
        return len(self.names)

    def file(self, index: int) -> str:
        """Path of image ``index``, for people."""
        return f"{self.prefix}{self.names[index]}"

    def redacted(self) -> Pictures:
        """The same without what may be secret in addresses: for others, and not to find the images again."""
        prefix = redacted(self.prefix)
        if not any("://" in text for text in (prefix, *self.names[:1])):
            return self
        files = (redacted(f"{self.prefix}{name}") for name in self.names)
        return replace(self, names=Names(file.removeprefix(prefix) for file in files), prefix=prefix)


def pictures_arrays(pictures: Pictures) -> dict[str, NDArray[Any]]:
    """What a statistics file keeps of them, for `read_pictures`."""
    names = _SEPARATOR.join(map(os.fsencode, pictures.names))
    texts = {"names": names, "folder": os.fsencode(absolute_prefix(pictures.prefix))}
    return {"records": pictures.records} | {name: np.frombuffer(text, dtype=np.uint8) for name, text in texts.items()}


def read_pictures(arrays: Mapping[str, NDArray[Any]], count: int | None) -> Pictures | None:
    """The images of a statistics file; None where it has none that this version can read."""
    if not arrays.keys() >= set(ARRAYS):
        return None
    records, names, folder = (arrays[name] for name in ARRAYS)
    if records.dtype != RECORD or records.shape != (count,) or {names.dtype, folder.dtype} != {np.dtype(np.uint8)}:
        return None
    found = [os.fsdecode(name) for name in names.tobytes().split(_SEPARATOR)]
    return Pictures(records, found, os.fsdecode(folder.tobytes())) if len(found) == count else None
