"""Files on several ranks: each is used once, and unreadable ones are skipped, up to a limit."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from support.bad_sets import BAD, SKIP, make_sets
from support.command_line import Run, changed
from support.places import TINY


@pytest.fixture
def sets(tmp_path: Path) -> tuple[Path, Path]:
    return make_sets(tmp_path)


def test_skipping_has_the_same_bits_at_any_world_size(fidtool: Run, here: Run, sets: tuple[Path, Path]) -> None:
    runs = [
        here("compute", *sets, *SKIP),
        here("compute", *sets, *SKIP, "--num-workers", 2),
        fidtool("compute", *sets, *SKIP, ranks=2),
        fidtool("compute", *sets, *SKIP, ranks=3),
    ]
    first = runs[0].json["results"][0]
    assert [run.json["results"][0] for run in runs] == [first] * 4
    assert first["count"] == {"real": 37, "fake": 37}
    assert [Path(entry["file"]).name for entry in first["skipped"]] == sorted(BAD)
    assert {entry["set"] for entry in first["skipped"]} == {str(sets[1])}
    assert all(entry["reason"] for entry in first["skipped"])
    for run in runs:
        assert run.json["run"]["images_computed"] == 74
        for name in BAD:
            assert run.stderr.count(f"skipped {sets[1] / name}: ") == 1
        assert "6 files could not be read and were skipped" in run.stderr


@pytest.mark.parametrize(("fraction", "status"), [("0.139", 2), ("0.14", 0)])
def test_too_many_unreadable_files_are_refused(
    fidtool: Run, sets: tuple[Path, Path], fraction: str, status: int
) -> None:
    """6 of 43 are 13.95 %."""
    arguments = ["compute", *sets, *changed(SKIP, "--max-skip", fraction)]
    run = fidtool(*arguments, ranks=2)
    assert (run.status == 0) == (status == 0)
    if status:
        errors = [line for line in run.stderr.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1
        assert "of 43 files" in errors[0]
        assert "--max-skip" in errors[0]
        assert sum(name in errors[0] for name in BAD) >= 3, "the names of the files"


def test_each_of_several_thousand_files_is_used_once(fidtool: Run, tmp_path: Path) -> None:
    """The files are distributed over three ranks."""
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(3001):
        Image.new("RGB", (2, 2), (number % 251, number % 17, number % 7)).save(folder / f"{number}.bmp")
    arguments = ("--extractor", TINY, "--no-cache", "--no-diagnosis", "--json")
    runs = [fidtool("compute", folder, folder, *arguments, ranks=ranks) for ranks in (1, 3)]
    assert [run.json["results"][0]["count"]["fake"] for run in runs] == [3001, 3001]
    assert runs[0].metrics == runs[1].metrics
