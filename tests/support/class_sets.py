"""Folders of classes, with small images."""

from __future__ import annotations

import time
from pathlib import Path

from support.pictures import make_pictures

CLASSES = {"ant": (24, 30), "bee": (30, 24), "cat": (27, 33)}
"""Numbers of images of each class in REAL and in FAKE."""


def make_classes(
    tmp_path: Path, classes: dict[str, tuple[int, int]] = CLASSES
) -> tuple[Path, Path]:
    """Write ``real`` and ``fake``, each with a folder for each class, and return them."""
    for seed, (name, counts) in enumerate(classes.items()):
        for role, (side, count) in enumerate(zip(("real", "fake"), counts, strict=True)):
            if count:
                make_pictures(tmp_path / side / name, count, 10 * seed + role)
    time.sleep(0.08)  # younger files are not cached
    return tmp_path / "real", tmp_path / "fake"
