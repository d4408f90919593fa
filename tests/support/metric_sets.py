"""Two small sets, and the metrics beside FID."""

from __future__ import annotations

import time
from pathlib import Path

from support.pictures import make_pictures
from support.places import COLOURS

COUNT = 40
SMALL = ("--kid-subset-size", 20, "--kid-subsets", 7)
METRICS = ("--metrics", "fid,kid,prdc,cmmd", "--cmmd-extractor", COLOURS, *SMALL, "--nearest-k", 3)


def make_sets(tmp_path: Path) -> tuple[Path, Path]:
    folders = make_pictures(tmp_path / "real", COUNT, 0), make_pictures(tmp_path / "fake", COUNT + 3, 1)
    time.sleep(0.08)  # younger files are not cached
    return folders
