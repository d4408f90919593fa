"""Rows of a set's images, such as their features: in memory, or in a file if they are large."""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fidtool.system.cache_dir import cache_dir, storage_error
from fidtool.system.variables import FEATURE_BYTES

CHUNK_BYTES = 1 << 26
"""Bytes that are read, written or sent at once."""


def empty_rows(count: int, dims: int, dtype: DTypeLike = np.float32) -> NDArray[Any]:
    """Return a matrix of zeros, (count, dims): in memory, or if it is large memory-mapped from an
    unnamed file.

    Raises:
        RunError: if there is not enough space for it.
    """
    size = count * dims * np.dtype(dtype).itemsize
    if size <= FEATURE_BYTES.byte_limit():
        return np.zeros((count, dims), dtype)
    try:
        cache_dir().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=cache_dir()) as file:
            if sys.platform == "linux":
                os.posix_fallocate(file.fileno(), 0, size)  # later, a full disk would be a signal
            return np.memmap(file, dtype, "w+", shape=(count, dims))
    except OSError as error:
        what = f"{size / 2**30:.2f} GiB of features"
        raise storage_error(what, error, "omit the metrics that need per-image features") from None


def reorder(rows: NDArray[Any], order: NDArray[np.int64]) -> NDArray[Any]:
    """Return ``rows[order]``, memory-mapped from an unnamed file if it is large."""
    result = empty_rows(len(order), rows.shape[1], rows.dtype)
    # NumPy's other modes copy the result.
    return np.take(rows, order, axis=0, out=result, mode="clip")
