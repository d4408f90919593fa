"""Rows of images: each at its position regardless of its rank, in memory or in a file; and in checkpoints."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from fidtool.errors import RunError
from fidtool.features.definition import Definition
from fidtool.features.protocol import EMBEDDING, FEATURES
from fidtool.images.decode import ImageProperties
from fidtool.images.records import RECORD
from fidtool.statistics.checkpoint import Checkpoint
from fidtool.statistics.feature_buffer import FeatureBuffer, Features, RowStorage
from fidtool.statistics.partial import RECORDS, Layer, PartialStatistics

SIZES = (3, 3, 3, 2)
DEFINITION = Definition("made up", "", 4, 18, 8, "", "bilinear", "pillow", 1)


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


class TestCheckpoints:
    """Parts of a checkpoint contain per-image features."""

    @staticmethod
    def partial(batches: list[int]) -> PartialStatistics:
        layers = {FEATURES: Layer(DEFINITION, with_features=True), EMBEDDING: Layer(DEFINITION)}
        partial = PartialStatistics(np.arange(4, dtype=np.uint64), layers, SIZES, inspected=True)
        TestCheckpoints.more(partial, batches)
        return partial

    @staticmethod
    def more(partial: PartialStatistics, batches: list[int]) -> None:
        for batch in batches:
            features = torch.from_numpy(vectors(batch, SIZES[batch])) / 64
            records = np.zeros(SIZES[batch], dtype=RECORD)
            records["digest"] = 10 * batch + np.arange(SIZES[batch])
            partial.add(batch, {FEATURES: features, EMBEDDING: -features}, ImageProperties(), records, [])

    @staticmethod
    def open(folder: Path, name: str, said: list[str]) -> Checkpoint:
        checkpoint = Checkpoint(str(folder), 0.0, 100, said.append)
        checkpoint.join("run", name, 0)
        return checkpoint

    def loaded(self, folder: Path, said: list[str]) -> PartialStatistics:
        partial = self.partial([])
        self.open(folder, "later", said).load(0, partial, lambda skipped: "")
        return partial

    def test_parts_add_up(self, tmp_path: Path, place: str) -> None:
        said: list[str] = []
        for name, batches in (("a", [3, 0]), ("b", [1])):
            self.open(tmp_path, name, said).save(0, self.partial(batches))
        partial = self.loaded(tmp_path, said)
        assert partial.done.tolist() == [True, True, False, True]
        self.more(partial, [2])
        whole = self.partial([0, 1, 2, 3])
        assert np.array_equal(partial.buffers[FEATURES].array(), whole.buffers[FEATURES].array())
        digests = np.hstack([partial.buffers[name].array() for name in RECORDS]).view(RECORD)["digest"].reshape(-1)
        assert digests.tolist() == [0, 1, 2, 10, 11, 12, 20, 21, 22, 30, 31]
        for layer in (FEATURES, EMBEDDING):
            ours, theirs = (each.moments[layer].mean_covariance(1) for each in (partial, whole))
            assert ours.sigma.tobytes() == theirs.sigma.tobytes()
        assert said == []

    def test_a_part_without_its_features_does_not_count(self, tmp_path: Path) -> None:
        said: list[str] = []
        self.open(tmp_path, "a", said).save(0, self.partial([0, 1]))
        for file in tmp_path.glob("*.rows"):
            file.unlink()
        partial = self.loaded(tmp_path, said)
        assert not partial.done.any()
        assert partial.count == 0
        assert ["computed again" in line for line in said] == [True]
