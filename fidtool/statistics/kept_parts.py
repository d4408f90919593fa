"""Kept features in a checkpoint: beside each part a file a layer, in which each batch has its place of the plan."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fidtool.statistics.kept import KeptRows

_SUFFIX = ".rows"
KEPT_PATTERN = f"*{_SUFFIX}"
"""What these files are called, for `glob`."""

BatchRows = Mapping[int, NDArray[Any]]
"""Rows by batch, each an array of shape (n, dims)."""


def kept_file(part: Path, layer: str) -> Path:
    """The file that holds a layer's features of the batches in ``part``."""
    return part.with_name(f"{part.name.partition('.')[0]}.{layer}{_SUFFIX}")


def part_stem(file: Path) -> str:
    """What the names of a part and of its `kept_file` begin with."""
    return file.name.partition(".")[0]


class KeptWriter:
    """Keeps one layer's features of one rank's part up to date: batches that are in are not written again.

    Args:
        file: see `kept_file`.
        batches: number of batches in the plan.
    """

    def __init__(self, file: Path, batches: int) -> None:
        self._file = file
        self._checksums = np.zeros(batches, dtype=np.uint32)
        self._written = np.zeros(batches, dtype=bool)

    def update(self, kept: KeptRows) -> dict[str, NDArray[Any]]:
        """Writes what is new.

        Returns:
            What must stand in the part for `read_kept`.

        Raises:
            OSError: the file cannot be written; what the last part says of it still holds.
        """
        if not self._file.exists():
            self._written[:] = False
        new = np.flatnonzero((kept.counts >= 0) & ~self._written)
        with open(self._file, "r+b" if self._written.any() else "w+b") as handle:
            for batch in map(int, new):
                data = kept.rows(batch).tobytes()
                handle.seek(kept.row_bytes * kept.start(batch))
                handle.write(data)
                self._checksums[batch] = zlib.crc32(data)
            handle.flush()
            os.fsync(handle.fileno())
        self._written[new] = True  # not before: a full disk is often noticed last
        return {"counts": kept.counts, "checksums": self._checksums}


def read_kept(file: Path, arrays: Mapping[str, NDArray[Any]], empty: KeptRows) -> BatchRows:
    """What `KeptWriter.update` wrote, mapped.

    Args:
        file: see `kept_file`.
        arrays: what it returned.
        empty: where the features will go.

    Raises:
        OSError: there is no such file.
        ValueError, KeyError: it is damaged.
    """
    counts, checksums = arrays["counts"], arrays["checksums"]
    if counts.shape != empty.counts.shape or checksums.shape != empty.counts.shape:
        raise ValueError(f"it is of {counts.size} batches and not of {empty.counts.size}")
    size = os.path.getsize(file) // empty.row_bytes
    rows: NDArray[Any] = np.empty((0, empty.dims), dtype=empty.dtype)
    if size:
        rows = np.memmap(file, dtype=empty.dtype, mode="r", shape=(size, empty.dims))
    found = {}
    for batch in map(int, np.flatnonzero(counts >= 0)):
        start = empty.start(batch)
        found[batch] = rows[start : start + int(counts[batch])]
        if len(found[batch]) != counts[batch] or zlib.crc32(found[batch].tobytes()) != checksums[batch]:
            raise ValueError(f"{file.name} is damaged")
    return found
