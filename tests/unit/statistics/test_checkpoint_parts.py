"""Parts of a checkpoint: they add up to the whole set, none counts twice, and each is used completely or not at all."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fidtool.features.definition import Definition
from fidtool.features.protocol import FEATURES
from fidtool.images.decode import ImageProperties
from fidtool.images.records import no_records
from fidtool.sources.contents import BadFile
from fidtool.statistics.checkpoint import Checkpoint
from fidtool.statistics.partial import Layer, PartialStatistics, StaleError

DEFINITION = Definition("made up", "", 2, 18, 8, "", "bilinear", "pillow", 1)


def empty(marks: int = 0) -> PartialStatistics:
    layers = {FEATURES: Layer(DEFINITION)}
    return PartialStatistics(np.arange(8, dtype=np.uint64) + np.uint64(marks), layers, range(1, 9))


def readable(skipped: Sequence[BadFile]) -> str:
    return ""


def partial_of(batches: list[int]) -> PartialStatistics:
    """Returns statistics of these batches. Batch b has b + 1 images, each with different features."""
    partial = empty()
    for batch in batches:
        features = torch.arange(2 * (batch + 1)).view(-1, 2) / 4.0 + batch
        partial.add(
            batch, {FEATURES: features}, ImageProperties(lossy=batch), no_records(), [BadFile(f"{batch}", "broken")]
        )
    return partial


def totals(partial: PartialStatistics) -> tuple[Any, ...]:
    frozen = partial.moments[FEATURES].totals()
    low, high = frozen["low"].astype(object), frozen.get("high", np.zeros_like(frozen["low"])).astype(object)
    return (
        int(frozen["count"]),
        frozen["sum"].tolist(),
        (low + high * 2**32).tolist(),
        partial.traits,
        sorted(bad.file for bad in partial.skipped),
        partial.done.tolist(),
    )


def checkpoint(folder: Path, name: str, said: list[str] | None = None) -> Checkpoint:
    made = Checkpoint(str(folder), 0.0, 100, (said if said is not None else []).append)
    made.join("run", name, 0)
    return made


def test_no_batch_counts_twice(tmp_path: Path) -> None:
    """Concurrent runs with the same folder write parts with batches in common."""
    for few, many in ("ab", "ba"):
        folder = tmp_path / few
        checkpoint(folder, few).save(0, partial_of([2, 3]))
        checkpoint(folder, many).save(0, partial_of([0, 1, 2]))
        loaded, said = empty(), list[str]()
        checkpoint(folder, "c", said).load(0, loaded, readable)
        assert totals(loaded) == totals(partial_of([0, 1, 2])), "the part with more work counts"
        (line,) = said
        assert f"000-run-{few}-00000.part.npz is not used" in line


@pytest.mark.parametrize("damaged", ["low", "high", "sum", "count", "largest", "done", "marks", "record"])
def test_a_part_is_added_whole_or_not_at_all(damaged: str) -> None:
    partial, other = partial_of([0, 1]), partial_of([2]).to_arrays()
    assert other is not None
    other["high"] = np.zeros_like(other["low"])
    before = totals(partial)
    other[damaged] = np.array("no number")
    with pytest.raises((ValueError, KeyError, TypeError, AttributeError, StaleError)):
        partial.absorb(other, {})
    assert totals(partial) == before


@pytest.mark.parametrize("killed", [False, True], ids=["whole", "killed before the old parts were deleted"])
def test_a_part_replaces_the_parts_that_it_contains(
    tmp_path: Path, killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint(tmp_path, "a").save(0, partial_of([0, 1]))
    second = checkpoint(tmp_path, "b")
    partial = empty()
    second.load(0, partial, readable)
    partial.absorb(partial_of([5]).to_arrays() or {}, {})
    if killed:
        monkeypatch.setattr(Path, "unlink", lambda self, missing_ok=False: None)
    second.save(0, partial)
    assert len(list(tmp_path.glob("*.part.npz"))) == 1 + killed
    for _ in range(2):
        loaded, said = empty(), list[str]()
        checkpoint(tmp_path, "c", said).load(0, loaded, readable)
        assert (totals(loaded), said) == (totals(partial_of([0, 1, 5])), [])


def test_an_interrupted_addition_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a worker dies, an exception may be raised anywhere in the main thread."""
    partial = partial_of([0, 1])
    checkpoint(tmp_path, "a").save(0, partial)
    monkeypatch.setattr(ImageProperties, "__add__", lambda self, other: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        partial.add(2, {FEATURES: torch.zeros(1, 2)}, ImageProperties(), no_records(), [])
    monkeypatch.undo()
    checkpoint(tmp_path, "a").save(0, partial)
    loaded = empty()
    checkpoint(tmp_path, "b").load(0, loaded, readable)
    assert totals(loaded) == totals(partial_of([0, 1]))


def test_incomplete_files_are_deleted(tmp_path: Path) -> None:
    old, young = tmp_path / ".000-run-a-00000.part.npz.x.tmp", tmp_path / ".000-run-b-00000.part.npz.y.tmp"
    old.touch()
    young.touch()
    os.utime(old, (time.time() - 100, time.time() - 100))
    checkpoint(tmp_path, "c").load(0, empty(), readable)
    assert not old.exists()
    assert young.exists()
