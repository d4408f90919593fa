"""Storage of one row per image (feature vector or record): in memory for small sets, in a file for large ones."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO, Any

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import DTypeLike, NDArray

from fidtool.cache_dir import byte_limit, cache_dir
from fidtool.errors import RunError
from fidtool.sources.arrays import read_header
from fidtool.sources.contents import BadFile
from fidtool.sources.image_set import ImageSet

CHUNK_BYTES = 1 << 26
"""Bytes that are read, written or sent at once."""

Features = NDArray[np.float32]
"""Feature vectors of images, of shape (images, dims)."""


class RowStorage:
    """A matrix that is written row by row: in memory, or in an unnamed temporary file that the system deletes."""

    def __init__(self, count: int, dims: int, dtype: DTypeLike = np.float32) -> None:
        self._shape, self._dtype = (count, dims), np.dtype(dtype)
        self.row_bytes = dims * self._dtype.itemsize
        self._file: IO[bytes] | None = None
        fits = count * self.row_bytes <= byte_limit("FIDTOOL_FEATURE_BYTES")
        self._memory = np.zeros(self._shape if fits else (0, dims), dtype=self._dtype)
        if fits:
            return
        try:
            cache_dir().mkdir(parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=cache_dir())  # noqa: SIM115 - open during this object's lifetime
        except OSError as error:
            raise self._no_room(error) from None

    def write(self, start: int, rows: NDArray[Any]) -> None:
        if self._file is None:
            self._memory[start : start + len(rows)] = rows
            return
        data = np.ascontiguousarray(rows, dtype=self._dtype).data.cast("B")
        position = start * self.row_bytes
        try:
            while data:
                written = os.pwrite(self._file.fileno(), data, position)
                data, position = data[written:], position + written
        except OSError as error:
            raise self._no_room(error) from None

    def array(self) -> NDArray[Any]:
        """Returns the matrix for reading: shape (count, dims), memory-mapped if it is stored in a file."""
        if self._file is None:
            return self._memory
        self._file.truncate(self._shape[0] * self.row_bytes)  # the last rows may not have been written
        return np.memmap(self._file, dtype=self._dtype, mode="r", shape=self._shape)

    def _no_room(self, error: OSError) -> RunError:
        size = self._shape[0] * self.row_bytes / 2**30
        return RunError(
            f"{size:.2f} GiB of features cannot be stored in {cache_dir()} ({error.strerror or error}):",
            "set FIDTOOL_CACHE to a folder with enough space",
            "omit the metrics that need per-image features",
        )


def in_canonical_order(images: ImageSet, rows: NDArray[Any], skipped: Sequence[BadFile]) -> NDArray[Any]:
    """Returns the rows of a set's images in the canonical order of the set, by which subsets are drawn.

    The ``rows``, without those of ``skipped`` images, have the order of the plan. They are returned themselves if that
    is the canonical order; otherwise the result is a copy, memory-mapped if it is large.
    """
    if not images.reader.in_order:
        return rows
    return reordered(rows, np.argsort(np.argsort(images.numbers(skipped))))


def reordered(rows: NDArray[Any], order: NDArray[np.int64]) -> NDArray[Any]:
    """Returns ``rows[order]``, memory-mapped from an unnamed file if it is large."""
    storage = RowStorage(len(order), rows.shape[1], rows.dtype)
    chunk = max(1, CHUNK_BYTES // (rows.shape[1] * rows.itemsize))
    for start in range(0, len(order), chunk):
        storage.write(start, rows[order[start : start + chunk]])
    return storage.array()


def read_features(source: NpzFile | Sequence[NDArray[Any]], name: str) -> Features:
    """Reads feature vectors from an archive, a part at a time, or from the parts of an array.

    Returns a float32 array of shape (n, dims), memory-mapped from an unnamed file if it is large.
    """
    with contextlib.ExitStack() as stack:
        if isinstance(source, NpzFile):
            assert source.zip is not None
            member = stack.enter_context(source.zip.open(f"{name}.npy"))
            array = read_header(member)
            by_column, dtype = not array.strides, array.dtype
            shapes, parts = [array.shape], _chunks(member, name, array.shape, dtype)
        else:
            shapes, parts = [each.shape for each in source], iter(source)
            by_column, dtype = False, next((each.dtype for each in source if each.dtype.kind != "f"), source[0].dtype)
        unequal = len({shape[1:] for shape in shapes}) > 1 or any(len(shape) != 2 or 0 in shape for shape in shapes)
        if unequal or by_column or dtype.kind != "f":
            shown = ", ".join(map(str, dict.fromkeys(shapes)))
            raise ValueError(f"{name} has shape {shown} and dtype {dtype}; it should contain floats, one row per image")
        storage, start = RowStorage(sum(shape[0] for shape in shapes), shapes[0][1]), 0
        for part in parts:
            values = part.astype(np.float32)
            if not np.isfinite(values).all():
                raise ValueError(f"{name} contains NaN or infinite values")
            storage.write(start, values)
            start += len(values)
    return storage.array()


def _chunks(member: IO[bytes], name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Iterator[NDArray[Any]]:
    count, dims = shape
    chunk = max(1, CHUNK_BYTES // (dtype.itemsize * dims))
    for start in range(0, count, chunk):
        rows = min(chunk, count - start)
        data = member.read(rows * dims * dtype.itemsize)
        if len(data) != rows * dims * dtype.itemsize:
            raise ValueError(f"{name} is truncated")
        yield np.frombuffer(data, dtype=dtype).reshape(rows, dims)
