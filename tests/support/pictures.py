"""Folders of pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image


def make_pictures(folder: Path, count: int, seed: int = 0, suffix: str = ".png", sides: Sequence[int] = (32,)) -> Path:
    """Writes ``count`` smooth noise pictures, their sides taken from ``sides`` in turn, and returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.RandomState(seed)
    for number in range(count):
        coarse = rng.randint(0, 256, (8, 8, 3)).astype(np.uint8)
        side = sides[number % len(sides)]
        picture = Image.fromarray(coarse).resize((side, side + number % 3), Image.Resampling.BICUBIC)
        picture.save(folder / f"{number:05}{suffix}")
    return folder
