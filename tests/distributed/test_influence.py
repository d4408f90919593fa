"""Which images raise an FID: the same bits at any world size."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import degenerate
from support.command_line import Run
from support.influences import with_harmful
from support.places import TINY


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_same_bits_at_any_world_size(fidtool: Run, here: Run, tmp_path: Path, ranks: int) -> None:
    real = degenerate.distinct(tmp_path / "real", 60, first=5000)
    arguments = ["compute", real, with_harmful(tmp_path / "fake", 60, 3), "--extractor", TINY]
    arguments += ["--influence", "--uncertainty", "--batch-size", 4, "--no-cache", "--json"]
    expected = here(*arguments).json["results"]
    assert fidtool(*arguments, ranks=ranks, FIDTOOL_FEATURE_BYTES="0").json["results"] == expected
