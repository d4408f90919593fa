"""Sets of pictures beside files that cannot be evaluated."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from support.pictures import make_pictures
from support.places import TINY

COUNT = 20
SMALL = ("--extractor", TINY)


def make_place(environment: dict[str, str], tmp_path: Path) -> Path:
    """The folder in which the commands run, with two good sets and some things that are none."""
    make_pictures(tmp_path / "real", COUNT, 0)
    make_pictures(tmp_path / "fake", COUNT, 1)
    for name in ("empty", "texts/sub"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "texts" / "a.txt").write_text("no image")
    for name in ("notes.txt", "archive.zip", "wrong.pth"):
        (tmp_path / name).write_bytes(b"something else")
    for name in ("a.npz", "b.npz"):
        np.savez(tmp_path / name, mu=np.zeros(16), sigma=np.eye(16))
    return tmp_path


def half(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
