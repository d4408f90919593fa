"""Rows of images: each at its position regardless of its rank, in memory or in a file."""

from __future__ import annotations

import os

import numpy as np
import pytest

from fidtool.errors import RunError
from fidtool.statistics.feature_buffer import FeatureBuffer, Features, RowStorage

SIZES = (3, 3, 3, 2)


def vectors(batch: int, count: int, dims: int = 4) -> Features:
    return np.arange(count * dims, dtype=np.float32).reshape(count, dims) + 100 * batch + 1


@pytest.fixture(params=["memory", "file"])
def place(request: pytest.FixtureRequest, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    """The storage of rows: in memory for small sets, or in a file as for large sets, with a limit of 0."""
    if request.param == "file":
        monkeypatch.setenv("FIDTOOL_FEATURE_BYTES", "0")
    return str(request.param)


def test_batches_may_be_added_in_any_order(place: str) -> None:
    buffer = FeatureBuffer(SIZES, 4)
    for batch in (2, 0, 3, 1):
        buffer.put(batch, vectors(batch, SIZES[batch]))
    expected = np.concatenate([vectors(batch, size) for batch, size in enumerate(SIZES)])
    assert np.array_equal(buffer.array(), expected)
    assert isinstance(buffer.array(), np.memmap) == (place == "file")


def test_skipped_files_leave_no_gaps(place: str) -> None:
    buffer = FeatureBuffer(SIZES, 4)
    for batch, count in enumerate((3, 0, 1, 2)):
        buffer.put(batch, vectors(batch, count))
    assert np.array_equal(buffer.array(), np.concatenate([vectors(0, 3), vectors(2, 1), vectors(3, 2)]))


def test_a_full_disk_is_reported(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIDTOOL_FEATURE_BYTES", "0")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(RunError, match=r"GiB of features cannot be stored in .*No space left.*FIDTOOL_CACHE"):
        RowStorage(10, 4).write(0, vectors(0, 3))
