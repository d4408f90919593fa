"""The single images behind a set's statistics: their names, and what was seen of each."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fidtool.images.inspection import RECORD, Records
from fidtool.images.source import BadFile, ImageFolder

_SEPARATOR = b"\0"
ARRAYS = ("records", "names", "folder")
"""What a statistics file calls them."""


@dataclass(frozen=True)
class Pictures:
    """The images that count in a set, in its canonical order.

    Attributes:
        records: what was seen of each, see `fidtool.images.inspection.RECORD`: array of shape (images,).
        names: their paths relative to ``folder``.
        folder: where they are, as the user typed it; of a statistics file, where they were.
    """

    records: Records
    names: Sequence[str]
    folder: str = ""

    @classmethod
    def of(cls, folder: ImageFolder, records: NDArray[np.uint8], skipped: Sequence[BadFile]) -> Pictures:
        """The images of a folder.

        Args:
            folder: in canonical order.
            records: theirs, as bytes: shape (images, bytes of `RECORD`).
            skipped: its files that are not among them.
        """
        names = folder.names
        if skipped:
            left_out = {bad.file for bad in skipped}
            names = tuple(name for index, name in enumerate(names) if folder.file(index) not in left_out)
        return cls(np.ascontiguousarray(records).view(RECORD).reshape(-1), names, folder.path)

    def __len__(self) -> int:
        return len(self.names)

    def file(self, index: int) -> str:
        """Path of image ``index``."""
        return os.path.join(self.folder, self.names[index])


def pictures_arrays(pictures: Pictures) -> dict[str, NDArray[Any]]:
    """What a statistics file keeps of them, for `read_pictures`."""
    names = _SEPARATOR.join(map(os.fsencode, pictures.names))
    texts = {"names": names, "folder": os.fsencode(os.path.realpath(pictures.folder))}
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
