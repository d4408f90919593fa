"""Copies are found across ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import degenerate
from support.command_line import Run
from support.degenerate import RANKS, WITHOUT_COPIES, make_real
from support.places import TINY


@pytest.fixture
def real(tmp_path: Path) -> Path:
    return make_real(tmp_path)


@pytest.mark.parametrize("ranks", [2, 3])
def test_copies_are_found_across_ranks(fidtool: Run, here: Run, real: Path, tmp_path: Path, ranks: int) -> None:
    """And all numbers have the same bits, that of the different pictures among them."""
    fake = degenerate.same_seed_on_ranks(tmp_path / "fake", 4, 40, RANKS["rank in the name"])
    (fake / "rank2_7.png").write_bytes(b"no image")
    arguments = ["compute", real, fake, "--extractor", TINY, "--json", "--no-cache", "--batch-size", 4]
    arguments += ["--on-error", "skip", "--max-skip", 0.1]
    expected = here(*arguments).json["results"]
    assert expected[0]["diagnosis"]["duplicates"]["fake"]["multiplicities"] == {"3": 1, "4": 39}
    assert expected[0]["diagnosis"][WITHOUT_COPIES] is not None
    assert fidtool(*arguments, ranks=ranks).json["results"] == expected
