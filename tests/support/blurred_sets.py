"""Two sets of which one is blurred."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from support import degenerate
from support.places import TINY

COUNT = 200
FLAGS = ("--extractor", TINY, "--uncertainty")


def blurred(amount: float, first: int, count: int = COUNT) -> Iterator[tuple[str, degenerate.Pixels]]:
    """The toy generator with its contrast taken down: the more, the worse."""
    for i in range(count):
        pixels = degenerate.sample(first + i).astype(float)
        yield f"{i:04}.png", (128 + (pixels - 128) * (1 - amount)).astype(np.uint8)


def make_sets(tmp_path: Path) -> tuple[Path, Path, Path, Path]:
    """REAL, a bad FAKE, and two of one good generator with seeds of their own."""
    real = degenerate.distinct(tmp_path / "real", 300, first=50_000)
    bad = degenerate.write(tmp_path / "bad", blurred(0.3, 1000))
    good = degenerate.write(tmp_path / "good", blurred(0.1, 2000))
    again = degenerate.write(tmp_path / "again", blurred(0.1, 3000))
    return real, bad, good, again
