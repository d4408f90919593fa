"""Images that raise an FID, and the FID without them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fidtool.labels import Labels
from support import degenerate
from support.command_line import Run, frechet
from support.places import TINY

DISTANCE = Labels(TINY).key("fid")


def with_harmful(folder: Path, good: int, bad: int) -> Path:
    """Write images of the toy generator, and some of noise among them."""
    degenerate.distinct(folder, good)
    return degenerate.write(
        folder,
        ((f"bad-{i}.png", np.random.default_rng(i).integers(0, 256, (32, 32, 3), dtype=np.uint8)) for i in range(bad)),
    )


def influence_of(here: Run, real: Path, fake: Path, *flags: object) -> tuple[float, dict[str, Any]]:
    outcome = here("compute", real, fake, *flags, "--influence", "--json")
    assert outcome.status == 0, outcome.stderr
    (result,) = outcome.json["results"]
    return frechet(result), result["influence"]


def fid_without(here: Run, real: Path, fake: Path, files: list[str], *flags: object) -> float:
    """Return the FID of a copy of the folder without these files."""
    rest = fake.with_name(f"{fake.name}-without-{len(files)}")
    shutil.copytree(fake, rest)
    for file in files:
        (rest / Path(file).name).unlink()
    fid = here("compute", real, rest, *flags, "--json").fid
    shutil.rmtree(rest)
    return fid


def check_removals(
    here: Run, real: Path, fake: Path, *flags: object, distance: str = DISTANCE, by_files: int = 3
) -> dict[str, Any]:
    """Check that the predicted effects are right to 20 %; for the largest ``by_files`` removals, with real files.

    Removing random files does not have the predicted effect.
    """
    fid, found = influence_of(here, real, fake, *flags)
    everything = sorted(str(file) for file in fake.iterdir())
    assert [part["fraction"] for part in found["removals"]] == [0.005, 0.01, 0.02]
    for part in found["removals"]:
        count = part["images"]
        assert count == max(1, round(part["fraction"] * len(everything)))
        worst = [image["file"] for image in found["most_harmful"][:count]]
        assert part["predicted"] - fid == pytest.approx(part[distance] - fid, rel=0.2)
        if part not in found["removals"][-by_files:]:
            continue
        measured = fid_without(here, real, fake, worst, *flags)
        assert part[distance] == pytest.approx(measured, rel=1e-9)
        draws = [
            np.random.default_rng(seed).choice(everything, count, replace=False).tolist() for seed in range(by_files)
        ]
        changes = [fid_without(here, real, fake, some, *flags) - fid for some in draws]
        assert abs(np.mean(changes)) < 0.2 * abs(measured - fid)
    assert found["doubt"] == ""
    return found
