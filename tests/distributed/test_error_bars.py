"""Error bars have the same bits at any world size; the report of several ranks is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command_line import Run
from support.degenerate import FLAGS, make_sets
from support.places import TINY


@pytest.fixture
def sets(tmp_path: Path) -> tuple[Path, Path, Path, Path]:
    return make_sets(tmp_path)


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_same_bits_at_any_world_size(fidtool: Run, here: Run, sets: tuple[Path, ...], ranks: int) -> None:
    arguments = ["compute", *sets[:3], *FLAGS, "--no-cache", "--json"]
    expected = here(*arguments).json
    found = fidtool(*arguments, ranks=ranks, FIDTOOL_FEATURE_BYTES="0").json
    assert [found[key] for key in ("results", "differences")] == [expected[key] for key in ("results", "differences")]


def test_the_report_of_two_ranks(fidtool: Run, sets: tuple[Path, ...], tmp_path: Path) -> None:
    outcome = fidtool("compute", *sets[:2], "--extractor", TINY, "--report", tmp_path / "r.html", ranks=2)
    assert outcome.status == 0, outcome.stderr
    page = (tmp_path / "r.html").read_text()
    assert "torchrun --nproc-per-node=2 -m fidtool compute" in page
    assert "Nearest real" in page
