"""A checkpoint of version 0.1.0: its parts are read tomorrow, and what is written then is the same."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import fidtool
from fidtool.features.protocol import FEATURES
from fidtool.images.inspection import RECORD
from fidtool.images.traits import Traits
from fidtool.statistics.checkpoint import MANIFEST, Checkpoint
from fidtool.statistics.share import RECORDS, Layer, Share
from support.exact_sets import bells
from support.goldens import Golden
from support.old_files import BATCH, FAKE, FILES, REAL

OLD = FILES / "checkpoint"
SIZES = {0: [BATCH] * 5 + [1], 1: [BATCH] * 4 + [2]}
assert (sum(SIZES[0]), sum(SIZES[1])) == (REAL, FAKE)


def layers() -> dict[str, Layer]:
    definition = fidtool.read_statistics(FILES / "own.npz").definition
    assert definition is not None
    return {FEATURES: Layer(definition, kept=True)}


def archive(file: Path) -> dict[str, NDArray[Any]]:
    with np.load(file, allow_pickle=False) as found:
        return {name: found[name] for name in found.files}


def empty_share(number: int) -> Share:
    """Of the set that a part is of, before anything is in."""
    part = archive(OLD / f"00{number}-run-writer.part.npz")
    marks = np.zeros(len(SIZES[number]), dtype=np.uint64)
    marks[part["done"]] = part["marks"]
    return Share(marks, layers(), SIZES[number], inspected=True)


def opened(folder: Path, said: list[str]) -> Checkpoint:
    """The folder, as a run opens it that is the one of its manifest."""
    checkpoint = Checkpoint(str(folder), 15.0, 178_956_970, said.append)
    run = checkpoint.claim(json.loads((OLD / MANIFEST).read_text())["identity"])
    checkpoint.join(run, "attempt", 0)
    for file in folder.glob("*-run-writer.*"):
        file.rename(folder / file.name.replace("-run-writer", f"-{run}-writer-00000"))
    return checkpoint


@pytest.mark.parametrize("number", [0, 1])
def test_old_parts_are_read(golden: Golden, tmp_path: Path, number: int) -> None:
    """Sums, kept features and records, to the last bit; the other set's part is left alone."""
    folder = tmp_path / "kept"
    shutil.copytree(OLD, folder)
    said: list[str] = []
    share = empty_share(number)
    opened(folder, said).load(number, share, lambda skipped: "")
    assert said == []
    part = archive(OLD / f"00{number}-run-writer.part.npz")
    found = {
        "count": share.count,
        "done": share.done.tolist(),
        "sum": share.moments[FEATURES].totals()["sum"].tolist(),
        "low": share.moments[FEATURES].totals()["low"][:6].tolist(),
    }
    rows = share.kept[FEATURES]
    first = np.concatenate([rows.rows(int(batch)) for batch in np.flatnonzero(share.done)])
    assert share.kept[RECORDS].rows(0).shape == (BATCH, RECORD.itemsize)
    assert np.array_equal(share.moments[FEATURES].totals()["low"], part["low"])
    found["features"] = [list(first.shape), hashlib.sha256(first.astype("<f4").tobytes()).hexdigest()]
    golden("statistics/old_checkpoint_0" if number == 0 else "statistics/old_checkpoint_1", found)


def test_the_name_of_a_run(golden: Golden, tmp_path: Path) -> None:
    """It is in the names of its parts: another one, and nothing is resumed."""
    identity = json.loads((OLD / MANIFEST).read_text())["identity"]
    run = Checkpoint(str(tmp_path / "kept"), 15.0, 100, print).claim(identity)
    assert json.loads((tmp_path / "kept" / MANIFEST).read_text()) == json.loads((OLD / MANIFEST).read_text())
    golden("statistics/checkpoint_run", {"run": run, "manifest": MANIFEST})


def written(folder: Path) -> dict[str, NDArray[Any]]:
    """A part of made-up batches, as a run writes it; the run's name is that of the manifest."""
    share = Share(np.arange(3, dtype=np.uint64) + 7, layers(), [2, 2, 1], inspected=True)
    features = torch.from_numpy(bells(5, 12, 1))
    records = np.zeros(5, dtype=RECORD)
    records["width"] = np.arange(5)
    share.add(0, {FEATURES: features[:2]}, Traits(alpha=1), records[:2], [])
    share.add(2, {FEATURES: features[4:]}, Traits(lossy=1), records[4:], [])
    checkpoint = opened(folder, [])
    checkpoint.keep(4, share)
    (part,) = folder.glob("004-*.part.npz")
    return archive(part)


def test_new_parts_are_as_the_old_ones(golden: Golden, tmp_path: Path) -> None:
    """Names in their order, types, and the bits of made-up sums."""
    found = written(tmp_path / "kept")
    old = archive(OLD / "000-run-writer.part.npz")
    assert list(found) == list(old)
    kinds = {name: array.dtype.str for name, array in old.items() if array.dtype.kind != "U"}
    assert {name: found[name].dtype.str for name in kinds} == kinds
    shapes = {name: list(array.shape) for name, array in found.items()}
    values = {name: array.tolist() for name, array in found.items() if array.size < 30}
    names = sorted(file.name.replace("attempt", "ATTEMPT") for file in (tmp_path / "kept").iterdir())
    rows = {file.name.split(".")[1]: list(file.read_bytes()[:8]) for file in (tmp_path / "kept").glob("*.rows")}
    golden("statistics/new_checkpoint", {"files": names, "shapes": shapes, "values": values, "rows": rows})
