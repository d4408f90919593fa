"""Parts of a checkpoint: they add up to the whole set, each is used completely or not at all, by anyone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fidtool.features.protocol import EMBEDDING, FEATURES, Definition
from fidtool.images.batches import Batch
from fidtool.images.decode import ImageProperties
from fidtool.images.loader import DecodedBatch
from fidtool.images.records import RECORD
from fidtool.sources.contents import BadFile
from fidtool.statistics.accumulator import RECORDS, Accumulator, Layer
from fidtool.statistics.saved import Checkpoint, Part, parts_of
from support.edits import arrays_of, edits_of, save

DEFINITION = Definition("made up", "", 2, 18, 8, "", "bilinear", "pillow", 1)
PARTS = [Part("000-00", range(3), 7), Part("000-01", range(3, 4), 8), Part("000-02", range(4, 8), 9)]


def empty() -> Accumulator:
    layers = {FEATURES: Layer(DEFINITION, with_features=True), EMBEDDING: Layer(DEFINITION)}
    return Accumulator(layers, range(2, 10), inspected=True)


def add(batches: list[int], into: Callable[..., None]) -> None:
    """Add batches. Batch b has b + 1 images, each with different features, and a file that was skipped."""
    for batch in batches:
        features = torch.arange(2.0 * (batch + 1)).view(-1, 2) / 4.0 + batch
        records = np.zeros(batch + 1, dtype=RECORD)
        records["digest"] = 10 * batch + np.arange(batch + 1)
        bad = [BadFile(f"{batch}", "broken")]
        traits = ImageProperties(lossy=batch)
        decoded = DecodedBatch(batch, batch + 1, properties=traits, records=records, skipped=bad)
        into(decoded, [{FEATURES: features, EMBEDDING: -features}])


def whole(batches: list[int]) -> Accumulator:
    found = empty()
    add(batches, found.add)
    return found


def shown(found: Accumulator) -> tuple[Any, ...]:
    sums = [{name: each.tolist() for name, each in moments.totals().items()} for moments in found.moments.values()]
    rows = {name: each.tolist() for name, each in found.rows().items()}
    return sums, rows, found.traits, sorted(bad.file for bad in found.skipped), found.counts.tolist()


def checkpoint(folder: Path, said: list[str]) -> Checkpoint:
    return Checkpoint(str(folder), "run", 100, said.append)


def loaded(folder: Path, parts: list[Part] = PARTS) -> tuple[Accumulator, list[Part], list[str]]:
    found, said = empty(), list[str]()
    left = checkpoint(folder, said).load(parts, found)
    return found, left, said


def test_parts_add_up_whoever_wrote_them(tmp_path: Path) -> None:
    """Also if two runs write the same part."""
    for mine in (PARTS[1:], PARTS[:2]):
        total = empty()
        add([batch for part in mine for batch in part.batches], checkpoint(tmp_path, []).part_by_part(mine, total))
        assert shown(total) == shown(whole([batch for part in mine for batch in part.batches]))
    found, left, said = loaded(tmp_path)
    assert (shown(found), left, said) == (shown(whole([*range(8)])), [], [])
    assert RECORDS in found.rows()
    assert len(list(tmp_path.iterdir())) == 3


def test_an_unfinished_part_is_not_saved(tmp_path: Path) -> None:
    add([0, 1, 2, 3, 4, 5], checkpoint(tmp_path, []).part_by_part(PARTS, empty()))
    found, left, _ = loaded(tmp_path)
    assert (shown(found), left) == (shown(whole([0, 1, 2, 3])), PARTS[2:])


DAMAGED = ["low", "sum", "count", "largest", "counts", "record", f"kept.{FEATURES}", f"kept.{RECORDS}"]


@pytest.mark.parametrize("damaged", DAMAGED)
@pytest.mark.parametrize("how", ["missing", "text", "short"])
def test_a_part_is_used_whole_or_not_at_all(tmp_path: Path, damaged: str, how: str) -> None:
    add([0, 1, 2, 3], checkpoint(tmp_path, []).part_by_part(PARTS, empty()))
    file = tmp_path / "run-000-00.npz"
    with np.load(file) as archive:
        arrays = dict(archive)
    if how == "missing":
        del arrays[damaged]
    elif how == "text" or not arrays[damaged].ndim:
        arrays[damaged] = np.array("no number")
    else:
        arrays[damaged] = arrays[damaged][:-1]
    np.savez(file, **arrays)
    found, left, (line,) = loaded(tmp_path)
    assert (shown(found), left) == (shown(whole([3])), [PARTS[0], PARTS[2]])
    assert line.startswith(f"{file} is damaged (")


def test_an_edited_part_is_not_used(tmp_path: Path) -> None:
    """Also if its arrays could be those of a part."""
    add([0, 1, 2, 3], checkpoint(tmp_path, []).part_by_part(PARTS, empty()))
    file, rest = tmp_path / "run-000-00.npz", shown(whole([3]))
    arrays = arrays_of(file)
    for _, what, edited in edits_of(arrays):
        save(file, edited)
        found, left, said = loaded(tmp_path)
        assert (shown(found), left) == (rest, [PARTS[0], PARTS[2]]), what
        assert [line.startswith(f"{file} is damaged (") for line in said] == [True], what


def test_a_stale_part_is_not_used(tmp_path: Path) -> None:
    add([*range(8)], checkpoint(tmp_path, []).part_by_part(PARTS, empty()))
    changed = [PARTS[0], Part("000-01", range(3, 4), 0), PARTS[2]]
    assert loaded(tmp_path, changed)[1] == changed[1:2]


@pytest.mark.parametrize(("batches", "parts"), [(1, 1), (64, 64), (65, 64), (1000, 64)])
def test_a_set_has_at_most_64_parts(batches: int, parts: int) -> None:
    class Images:
        def marks(self, parts: Any) -> list[int]:
            return [int(each.sum()) for each in parts]

    found = parts_of(3, Images(), [Batch(batch, [2 * batch, 2 * batch + 1]) for batch in range(batches)])  # type: ignore[arg-type]
    assert len(found) == parts
    assert [batch for part in found for batch in part.batches] == [*range(batches)]
    assert sum(part.mark for part in found) == sum(range(2 * batches)), "marks are of all images"
    assert found[0].name == "003-00"
