"""Small sets for several metrics and several networks."""

from __future__ import annotations

import time
from pathlib import Path

from support.command_line import Run
from support.pictures import make_pictures
from support.places import COLOURS

COUNT = 40
SMALL = ("--kid-subset-size", 20, "--kid-subsets", 7)
METRICS = ("--metrics", "fid,kid,prdc,cmmd", "--cmmd-extractor", COLOURS, *SMALL, "--nearest-k", 3)


def make_sets(tmp_path: Path) -> tuple[Path, Path]:
    folders = (
        make_pictures(tmp_path / "real", COUNT, 0),
        make_pictures(tmp_path / "fake", COUNT + 3, 1),
    )
    time.sleep(0.08)  # younger files are not cached
    return folders


def make_real(here: Run, tmp_path: Path) -> Path:
    """Write ``real64.npz``, with 64 dims and the protocol ``tensorflow``, and the folders ``real``
    and ``fake``.
    """
    real, _ = (
        make_pictures(tmp_path / name, 4, seed) for seed, name in enumerate(("real", "fake"))
    )
    arguments = ("--dims", 64, "--protocol", "tensorflow", "--quiet")
    assert here("stats", "real", "-o", "real64.npz", *arguments).status == 0
    return real
