"""Statistics files of several networks."""

from __future__ import annotations

from pathlib import Path

from support.command_line import Run
from support.pictures import make_pictures


def make_real(here: Run, tmp_path: Path) -> Path:
    """``real64.npz``, of 64 dims and ``tensorflow``, and the folders ``real`` and ``fake``."""
    real, _ = (make_pictures(tmp_path / name, 4, seed) for seed, name in enumerate(("real", "fake")))
    arguments = ("--dims", 64, "--protocol", "tensorflow", "--quiet")
    assert here("stats", "real", "-o", "real64.npz", *arguments).status == 0
    return real
