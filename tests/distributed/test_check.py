"""``fidtool check`` on several ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import degenerate
from support.command_line import Outcome, Run


def codes(outcome: Outcome) -> dict[str, str]:
    """The findings' severities by code, of the set and of what tells it from the other."""
    found = outcome.json["images"]["findings"] + outcome.json["between"]
    return {each["code"]: each["severity"] for each in found}


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_share_the_work(fidtool: Run, here: Run, tmp_path: Path, ranks: int) -> None:
    fake = degenerate.same_seed_on_ranks(tmp_path / "fake", 4, 40, lambda rank, i: f"rank{rank}_{i}.png")
    (fake / "x.png").write_bytes(b"no image")
    arguments = ("check", fake, "--against", degenerate.distinct(tmp_path / "real", 70, 999), "--json", "--strict")
    expected = here(*arguments)
    assert set(codes(expected)) == {"unreadable", "copies"}
    outcome = fidtool(*arguments, ranks=ranks)
    assert outcome.json == expected.json
