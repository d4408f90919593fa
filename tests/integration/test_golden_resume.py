"""Resuming from files of version 0.1.0: a checkpoint and a cache entry."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.command_line import Outcome, Run
from support.exact_sets import beside_network
from support.goldens import Golden, masked
from support.old_files import BATCH, FAKE, FILES, REAL, make_sets
from support.printed import CPU

OLD = FILES / "checkpoint"
MANIFEST = "fidtool-checkpoint.json"


@pytest.fixture
def place(environment: dict[str, str], tmp_path: Path) -> Path:
    """A folder with the sets from which the old files were computed."""
    beside_network(tmp_path)
    make_sets(tmp_path)
    time.sleep(0.08)  # younger files are not cached
    return tmp_path


def run(here: Run, folder: str) -> Outcome:
    metrics = ("--metrics", "fid,kid", "--kid-subset-size", 9, "--batch-size", BATCH)
    outcome = here("compute", "real", "fake", *CPU, *metrics, "--no-cache", "--checkpoint", folder, "--json")
    assert outcome.status == 0, outcome.stderr
    return outcome


def moved(fresh: Path, kept: Path) -> int:
    """Copy the old parts to a folder as parts of the run that made ``fresh``. Return the number of images in them.

    A checkpoint belongs to a machine and to files with certain time stamps. These values in the manifest, the run's
    name and the marks of the files are those of the new run. All else is old.
    """
    kept.mkdir()
    (kept / MANIFEST).write_text(json.dumps(of_today(fresh), indent=1))
    images = 0
    for part in sorted(fresh.glob("*.part.npz")):
        number, name, _ = part.name.split("-", 2)
        with np.load(part) as today, np.load(OLD / f"{number}-run-writer.part.npz") as old:
            assert today["done"].all()
            arrays = {name: old[name] for name in old.files}
            arrays["marks"] = today["marks"][old["done"]]
        images += int(arrays["count"])
        np.savez(kept / f"{number}-{name}-old-00000.part.npz", **arrays)
        for rows in OLD.glob(f"{number}-run-writer.*.rows"):
            shutil.copy(rows, kept / rows.name.replace("run-writer", f"{name}-old-00000"))
    return images


def of_today(fresh: Path) -> dict[str, Any]:
    """Return the old manifest with the machine and the folders of the one in ``fresh``."""
    old, today = (json.loads((folder / MANIFEST).read_text()) for folder in (OLD, fresh))
    arithmetic = today["identity"]["arithmetic"]
    old["identity"]["arithmetic"] = {name: arithmetic[name] for name in old["identity"]["arithmetic"]}
    for each, known in zip(old["identity"]["sets"], today["identity"]["sets"], strict=True):
        each |= {name: known[name] for name in ("path", "identity")}
    found: dict[str, Any] = old
    return found


def test_an_old_checkpoint_is_resumed(here: Run, place: Path) -> None:
    """The result is bitwise equal, and the old work counts as resumed."""
    fresh = run(here, "fresh")
    images = moved(place / "fresh", place / "kept")
    assert REAL < images < REAL + FAKE
    resumed = run(here, "kept")
    assert resumed.stderr == fresh.stderr
    assert resumed.json["run"]["images_resumed"] == images
    assert resumed.json["run"]["images_computed"] == REAL + FAKE - images
    (result,) = resumed.json["results"]
    _, unknown = (each for each in result["diagnosis"]["findings"] if each["code"] == "not compared")
    assert "an earlier version" in unknown["message"]
    result["diagnosis"]["findings"].remove(unknown)
    assert [result] == fresh.json["results"]


def test_the_checkpoint_format_has_not_changed(golden: Golden, here: Run, place: Path) -> None:
    """Compares the manifest and the file names, without the parts that differ between runs."""
    run(here, "fresh")
    manifest = json.loads((place / "fresh" / MANIFEST).read_text())
    names = [file.name.split("-", 1)[0] + "." + file.name.split(".", 1)[1] for file in (place / "fresh").glob("0*")]
    of_machine = ("identity.arithmetic.*", "identity.sets.*.path", "identity.sets.*.identity")
    golden("resume/checkpoint", {"manifest": masked(manifest, *of_machine), "files": sorted(names)})
    old = json.loads((OLD / MANIFEST).read_text())
    assert shape(manifest) == shape(old)
    assert manifest["identity"]["definition"] == old["identity"]["definition"]
    assert manifest["identity"]["order"] == old["identity"]["order"]


def shape(value: Any) -> Any:
    """Return the keys in order."""
    if isinstance(value, dict):
        return [(name, shape(each)) for name, each in value.items()]
    return [shape(each) for each in value] if isinstance(value, list) else None


def test_an_old_cache_entry_is_read(here: Run, place: Path) -> None:
    """It is copied to the current name of the entry, which depends on the machine and the files' time stamps."""
    command = ("compute", "real", "fake", *CPU, "--json")
    first = here(*command)
    entries = {entry["path"]: entry["id"] for entry in here("cache", "--json").json["entries"]}
    today = place / "fidtool-cache" / "statistics" / f"{entries[str(place / 'real')]}.npz"
    with np.load(today) as new, np.load(FILES / "cache_entry.npz") as old:
        assert [name for name in new.files if name != "details"] == old.files
        different = [name for name in old.files if new[name].tobytes() != old[name].tobytes()]
        assert set(different) <= {"run", "folder", "source"}
        assert json.loads(str(new["run"])).keys() == json.loads(str(old["run"])).keys()
    shutil.copy(FILES / "cache_entry.npz", today)
    again = here(*command)
    assert again.json["run"]["cached"] == ["real", "fake"]
    assert again.json["run"]["images_computed"] == 0
    assert again.json["results"][0]["metrics"] == first.json["results"][0]["metrics"]
    listed = {entry["id"]: entry for entry in here("cache", "--json").json["entries"]}[today.stem]
    assert (listed["path"], listed["images"], listed["dims"]) == ("/data/real", REAL, 12)
