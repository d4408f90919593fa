"""Many images on several ranks: each name counts."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from support.command_line import Run
from support.places import TINY


def test_every_name_counts_on_every_rank(fidtool: Run, tmp_path: Path) -> None:
    """Some thousand files on three ranks: found, handed over, and used once each."""
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(3001):
        Image.new("RGB", (2, 2), (number % 251, number % 17, number % 7)).save(folder / f"{number}.bmp")
    arguments = ("--extractor", TINY, "--no-cache", "--no-diagnosis", "--json")
    runs = [fidtool("compute", folder, folder, *arguments, ranks=ranks) for ranks in (1, 3)]
    assert [run.json["results"][0]["count"]["fake"] for run in runs] == [3001, 3001]
    assert runs[0].metrics == runs[1].metrics
