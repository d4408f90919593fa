"""Influence of images on FID: its prediction, and the FID without the images."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support import degenerate
from support.command_line import Run
from support.influences import with_harmful
from support.places import TINY


def fid_without(here: Run, real: Path, fake: Path, files: list[str]) -> float:
    """Return the FID of a copy of the folder without these files."""
    rest = fake.with_name("rest")
    shutil.copytree(fake, rest)
    for file in files:
        (rest / Path(file).name).unlink()
    fid = here("compute", real, rest, "--extractor", TINY, "--json").fid
    shutil.rmtree(rest)
    return fid


def test_predicted_and_computed_fid_agree(here: Run, tmp_path: Path) -> None:
    """The predicted effects are right to 20 %. Removing random files does not have the predicted
    effect.
    """
    real = degenerate.distinct(tmp_path / "real", 300, first=5000)
    fake = with_harmful(tmp_path / "fake", 360, 40)
    outcome = here("compute", real, fake, "--extractor", TINY, "--influence", "--json")
    found: dict[str, Any] = outcome.json["results"][0]["influence"]
    worst = [image["file"] for image in found["most_harmful"]]
    assert [file for file in worst if "bad-" not in file] == []
    assert found["doubt"] == ""
    for part in found["removals"]:
        assert part["predicted"] - outcome.fid == pytest.approx(
            part["distance"] - outcome.fid, rel=0.2
        )
    last = found["removals"][-1]
    assert (last["fraction"], last["images"]) == (0.02, 8)
    assert last["distance"] == pytest.approx(fid_without(here, real, fake, worst[:8]), rel=1e-9)
    everything = sorted(str(file) for file in fake.iterdir())
    some = np.random.default_rng(0).choice(everything, 8, replace=False).tolist()
    change = fid_without(here, real, fake, some) - outcome.fid
    assert abs(change) < 0.2 * abs(last["distance"] - outcome.fid)


def test_effects_that_do_not_add_up_are_reported(here: Run, tmp_path: Path) -> None:
    """After all faulty images are removed, the sum of the predicted effects exceeds the drop in
    FID.
    """
    real = degenerate.distinct(tmp_path / "real", 300, first=5000)
    fake = with_harmful(tmp_path / "fake", 392, 8)
    outcome = here("compute", real, fake, "--extractor", TINY, "--influence", "--json")
    doubt = outcome.json["results"][0]["influence"]["doubt"]
    assert doubt.startswith("without the 8 worst images, the effects predict")
