"""Kept features inside a statistics file: read piece by piece, so that they need not fit into memory."""

from __future__ import annotations

from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.lib.npyio import NpzFile

from fidtool.statistics.kept import Features, RowFile

_BLOCK_BYTES = 1 << 26


def read_features(archive: NpzFile, name: str) -> Features:
    """The array ``name`` of an archive.

    Returns:
        float32 array of shape (n, dims), mapped from a file without a name if it is large.

    Raises:
        ValueError: it is no such array, or holds values that are not finite.
        RunError: there is no room for it.
    """
    assert archive.zip is not None
    with archive.zip.open(f"{name}.npy") as member:
        shape, dtype = _header(member, name)
        count, dims = shape
        kept = RowFile(count, dims)
        block = max(1, _BLOCK_BYTES // (dtype.itemsize * dims))
        for start in range(0, count, block):
            rows = min(block, count - start)
            data = member.read(rows * dims * dtype.itemsize)
            if len(data) != rows * dims * dtype.itemsize:
                raise ValueError(f"{name} is cut off")
            values = np.frombuffer(data, dtype=dtype).reshape(rows, dims).astype(np.float32)
            if not np.isfinite(values).all():
                raise ValueError(f"{name} holds NaN or infinite values")
            kept.write(start, values)
    return kept.array()


def _header(member: IO[bytes], name: str) -> tuple[tuple[int, int], np.dtype[Any]]:
    version = npy.read_magic(member)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, by_column, dtype = read(member)
    if len(shape) != 2 or 0 in shape or by_column or dtype.kind != "f":
        raise ValueError(f"{name} has shape {shape} and dtype {dtype}; it should be floats, a row an image")
    return (shape[0], shape[1]), dtype
