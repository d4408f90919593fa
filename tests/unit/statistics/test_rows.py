"""Rows of images: each at its position regardless of its rank, in memory or in a file."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from fidtool.distributed.launch import Launch
from fidtool.distributed.world import World
from fidtool.errors import RunError
from fidtool.features.protocol import FEATURES, Definition
from fidtool.reading.loader import Piece
from fidtool.statistics import set_statistics
from fidtool.statistics.accumulator import Accumulator, LayerSpec
from fidtool.statistics.rows import empty_rows, reorder
from fidtool.statistics.set_statistics import Features, Statistics, broadcast_features

SIZES = (3, 3, 3, 2)


def vectors(batch: int, count: int, dims: int = 4) -> Features:
    return np.arange(count * dims, dtype=np.float32).reshape(count, dims) + 100 * batch + 1


@pytest.fixture(params=["memory", "file"])
def place(
    request: pytest.FixtureRequest, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> str:
    """The storage of rows: in memory for small sets, or in a file as for large sets, with a limit
    of 0.
    """
    if request.param == "file":
        monkeypatch.setenv("FIDTOOL_FEATURE_BYTES", "0")
    return str(request.param)


@pytest.mark.parametrize("counts", [SIZES, (3, 0, 1, 2)])
def test_batches_may_be_added_in_any_order_and_skipped_files_leave_no_gaps(
    place: str, counts: tuple[int, ...]
) -> None:
    layer = LayerSpec(
        Definition("made up", "", 4, 8, 8, "", "bilinear", "pillow", 1), with_features=True
    )
    found = Accumulator({FEATURES: layer}, sum(SIZES))
    for batch in (2, 0, 3, 1):
        some = torch.from_numpy(vectors(batch, counts[batch]))
        used = [place < len(some) for place in range(SIZES[batch])]
        places = 3 * batch + np.arange(SIZES[batch])
        found.add(Piece(batch, places, used=used), [{FEATURES: some}] if len(some) else [], places)
    found.finish()
    rows = found.rows()[FEATURES]
    assert np.array_equal(
        rows, np.concatenate([vectors(batch, count) for batch, count in enumerate(counts)])
    )
    assert isinstance(rows, np.memmap) == (place == "file")


def test_a_set_in_another_order(place: str) -> None:
    order = np.random.RandomState(0).permutation(9)
    rows = reorder(vectors(0, 9), order)
    assert np.array_equal(rows, vectors(0, 9)[order])
    assert isinstance(rows, np.memmap) == (place == "file")


def test_a_full_disk_is_reported(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any row is written."""
    monkeypatch.setenv("FIDTOOL_FEATURE_BYTES", "0")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(
            RunError, match=r"GiB of features cannot be stored in .*too large.*FIDTOOL_CACHE"
        ):
            empty_rows(10, 4)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("form", ["by column", "some columns", "float64"])
def test_features_of_a_program_reach_the_other_ranks_in_as_many_parts(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other ranks only know the shape. An array of a program may have any strides."""
    monkeypatch.setattr(set_statistics, "CHUNK_BYTES", 64)
    sent: list[tuple[int, ...]] = []

    class Sender(World):
        def broadcast(self, value: Any) -> Any:
            sent.append(np.shape(value))
            return value

        @contextlib.contextmanager
        def together(self) -> Iterator[None]:
            yield

    rows = vectors(0, 9)
    given = {"by column": np.asfortranarray(rows), "some columns": np.hstack([rows, rows])[:, :4]}
    for features in (rows, given.get(form, rows.astype(np.float64))):
        statistics = Statistics.of(np.zeros(4), np.eye(4), 9, features=features)
        broadcast_features("real", statistics, [FEATURES], Sender(Launch(0, 2, 0, 2)))
    assert sent == [(), (4, 4), (4, 4), (1, 4)] * 2
