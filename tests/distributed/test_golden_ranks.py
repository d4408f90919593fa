"""Goldens of two ranks: the run's part of the JSON, and a checkpoint that a single process resumes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.command_line import Outcome, Run
from support.exact_sets import NETWORK, beside_network
from support.goldens import Golden
from support.old_files import BATCH, FAKE, REAL, make_sets


@pytest.fixture
def place(environment: dict[str, str], tmp_path: Path) -> Path:
    """The images of the old files."""
    make_sets(beside_network(tmp_path))
    return tmp_path


def run(fidtool: Run, folder: str, **launch: int) -> Outcome:
    own = ("--extractor", NETWORK, "--device", "cpu", "--batch-size", BATCH, "--no-cache", "--json", "--quiet")
    metrics = ("--metrics", "fid,kid", "--kid-subset-size", 9)
    outcome = fidtool("compute", "real", "fake", *own, *metrics, "--checkpoint", folder, **launch)
    assert outcome.status == 0, outcome.stderr
    return outcome


def test_two_ranks(golden: Golden, fidtool: Run, place: Path) -> None:
    """Each rank writes a part of each set, from all of which a single process resumes."""
    both = run(fidtool, "kept", ranks=2)
    names = [re.sub(r"-\w+-[^-]+-", "-RUN-ATTEMPT-", file.name) for file in (place / "kept").iterdir()]
    kept = ("world_size", "backend", "batch_size", "images_computed", "images_resumed", "cached", "config")
    golden("resume/two_ranks", {"files": sorted(names), "run": {name: both.json["run"][name] for name in kept}})
    resumed = run(fidtool, "kept")
    assert (resumed.json["run"]["images_resumed"], resumed.json["run"]["images_computed"]) == (REAL + FAKE, 0)
    assert resumed.json["results"] == both.json["results"]
