"""The image records that show duplicates are stored in the cache, in statistics files and in
checkpoints.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from support import degenerate
from support.command_line import Run
from support.degenerate import compared
from support.places import TINY


def in_blocks(rank: int, i: int) -> str:
    """Return a name that places each rank's 40 images after those of the previous rank."""
    return f"{rank * 40 + i:05}.png"


@pytest.fixture
def real(tmp_path: Path) -> Path:
    """Real images of the toy generator's kind, with different seeds."""
    return degenerate.distinct(tmp_path / "real", 120, first=10_000)


def test_the_cache_stores_image_records(here: Run, real: Path, tmp_path: Path) -> None:
    fake = degenerate.same_seed_on_ranks(tmp_path / "fake", 4, 40, in_blocks)
    time.sleep(0.08)  # younger files are not cached
    first, _, once = compared(here, real, fake)
    second, _, again = compared(here, real, fake)
    assert second == first
    assert once.json["run"]["images_computed"] == 120 + 160
    assert again.json["run"]["images_computed"] == 0
    # An entry without records is not sufficient; an entry with records serves both.
    assert compared(here, real, fake, "--no-diagnosis")[2].json["run"]["images_computed"] == 0
    here("cache", "--clear")
    compared(here, real, fake, "--no-diagnosis")
    third, _, anew = compared(here, real, fake)
    assert third == first
    assert anew.json["run"]["images_computed"] == 120 + 160


def test_no_diagnosis_uses_entries_with_records(here: Run, real: Path) -> None:
    """The records are not written to the file, which cannot show duplicates."""
    time.sleep(0.08)  # younger files are not cached
    assert here("stats", real, "-o", "with.npz", "--extractor", TINY).status == 0
    assert (
        here("stats", real, "-o", "without.npz", "--extractor", TINY, "--no-diagnosis").status == 0
    )
    assert [("records" in np.load(name).files) for name in ("with.npz", "without.npz")] == [
        True,
        False,
    ]


def test_a_checkpoint_stores_image_records(here: Run, real: Path, tmp_path: Path) -> None:
    fake = degenerate.same_seed_on_ranks(tmp_path / "fake", 4, 40, in_blocks)
    flags = ("--no-cache", "--checkpoint", tmp_path / "kept")
    first, _, _ = compared(here, real, fake, *flags)
    second, _, again = compared(here, real, fake, *flags)
    assert second == first
    assert again.json["run"]["images_resumed"] == 280
    refused = here("compute", real, fake, "--extractor", TINY, *flags, "--no-diagnosis")
    assert refused.status == 2
    assert "diagnose was True and is now False" in refused.error
