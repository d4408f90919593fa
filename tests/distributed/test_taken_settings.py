"""What statistics files say about their network reaches every rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command_line import Run
from support.small_sets import make_real


@pytest.fixture
def real(here: Run, tmp_path: Path) -> Path:
    return make_real(here, tmp_path)


def test_every_rank_takes_them(here: Run, fidtool: Run, real: Path) -> None:
    alone = here("compute", "real64.npz", "fake", "--json")
    together = fidtool("compute", "real64.npz", "fake", "--json", ranks=2)
    assert together.metrics == alone.metrics
    assert together.stderr.count("taken from real64.npz: dims 64 and protocol tensorflow") == 1
