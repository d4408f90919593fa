"""The files from which runs resume: a checkpoint, and a cache entry of version 0.1.0."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from support.command_line import Outcome, Run
from support.exact_sets import beside_network
from support.goldens import Golden, masked
from support.old_files import BATCH, FILES, REAL, make_sets
from support.printed import CPU

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
    outcome = here(
        "compute", "real", "fake", *CPU, *metrics, "--no-cache", "--checkpoint", folder, "--json"
    )
    assert outcome.status == 0, outcome.stderr
    return outcome


def test_the_checkpoint_format_has_not_changed(golden: Golden, here: Run, place: Path) -> None:
    """Without what differs between machines."""
    run(here, "fresh")
    manifest = json.loads((place / "fresh" / MANIFEST).read_text())
    files = sorted((place / "fresh").glob("*.npz"))
    names = [file.name.partition("-")[2] for file in files]
    with np.load(files[0]) as part:
        arrays = {
            name: f"{part[name].dtype} {part[name].shape}"
            for name in part.files
            if name not in ("run", "folder")
        }
    of_machine = ("identity.arithmetic.*", "identity.sets.*.path", "identity.sets.*.identity")
    golden(
        "resume/checkpoint",
        {"manifest": masked(manifest, *of_machine), "files": names, "arrays": arrays},
    )


def test_an_old_cache_entry_is_read(here: Run, place: Path) -> None:
    """It is copied to the current name of the entry, which depends on the machine and the files'
    time stamps.
    """
    command = ("compute", "real", "fake", *CPU, "--json")
    first = here(*command)
    entries = {entry["path"]: entry["id"] for entry in here("cache", "--json").json["entries"]}
    today = place / "fidtool-cache" / "statistics" / f"{entries[str(place / 'real')]}.npz"
    with np.load(today) as new, np.load(FILES / "cache_entry.npz") as old:
        newer = [name for name in new.files if name not in old.files]
        assert sorted(newer) == [
            "details",
            "stamps",
            *(f"sums_{key}" for key in ("count", "largest", "low", "sizes", "sum")),
        ]
        assert [name for name in new.files if name in old.files] == old.files
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
