"""Rows of images: each at its position regardless of its rank, in memory or in a file."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from fidtool.errors import RunError
from fidtool.features.protocol import FEATURES, Definition
from fidtool.images.loader import Piece
from fidtool.statistics.accumulator import Accumulator, Layer
from fidtool.statistics.set_statistics import Features, RowStorage

SIZES = (3, 3, 3, 2)


def vectors(batch: int, count: int, dims: int = 4) -> Features:
    return np.arange(count * dims, dtype=np.float32).reshape(count, dims) + 100 * batch + 1


@pytest.fixture(params=["memory", "file"])
def place(request: pytest.FixtureRequest, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    """The storage of rows: in memory for small sets, or in a file as for large sets, with a limit of 0."""
    if request.param == "file":
        monkeypatch.setenv("FIDTOOL_FEATURE_BYTES", "0")
    return str(request.param)


@pytest.mark.parametrize("counts", [SIZES, (3, 0, 1, 2)])
def test_batches_may_be_added_in_any_order_and_skipped_files_leave_no_gaps(place: str, counts: tuple[int, ...]) -> None:
    layer = Layer(Definition("made up", "", 4, 8, 8, "", "bilinear", "pillow", 1), with_features=True)
    found = Accumulator({FEATURES: layer}, sum(SIZES))
    for batch in (2, 0, 3, 1):
        some = torch.from_numpy(vectors(batch, counts[batch]))
        used = [place < len(some) for place in range(SIZES[batch])]
        places = 3 * batch + np.arange(SIZES[batch])
        found.add(Piece(batch, places, used=used), [{FEATURES: some}] if len(some) else [], places)
    rows = found.rows()[FEATURES]
    assert np.array_equal(rows, np.concatenate([vectors(batch, count) for batch, count in enumerate(counts)]))
    assert isinstance(rows, np.memmap) == (place == "file")


def test_rows_may_be_anywhere(place: str) -> None:
    """As those of a batch of an archive, whose order is not that of the set."""
    places = np.random.RandomState(0).permutation(9)
    storage = RowStorage(9, 4)
    for some in np.array_split(np.arange(9), 4):
        storage.scatter(places[some], vectors(0, 9)[places[some]])
    assert np.array_equal(storage.array(), vectors(0, 9))


def test_a_full_disk_is_reported(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIDTOOL_FEATURE_BYTES", "0")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(RunError, match=r"GiB of features cannot be stored in .*No space left.*FIDTOOL_CACHE"):
        RowStorage(10, 4).write(0, vectors(0, 3))
