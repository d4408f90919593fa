"""Sets whose copies are to be found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fidtool.labels import Labels
from support import degenerate
from support.places import TINY

WITHOUT_COPIES = Labels(TINY).key("fid_without_copies")


def make_real(tmp_path: Path) -> Path:
    """Real pictures, of the toy generator's kind, with seeds of their own."""
    return degenerate.distinct(tmp_path / "real", 120, first=10_000)


RANKS: dict[str, Callable[[int, int], str]] = {
    "blocks": lambda rank, i: f"{rank * 40 + i:05}.png",
    "in turn": lambda rank, i: f"{i * 4 + rank}.png",
    "rank in the name": lambda rank, i: f"rank{rank}_{i}.png",
    "folders": lambda rank, i: f"{rank}/{i:05}.png",
}
