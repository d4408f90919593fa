"""Networks of people's own on several ranks: a mistake is said once, and one rank's is the cause that all give."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from support.command_line import Run
from support.own_networks import GOOD_FACTORY, MODULE, TINY_FILE, make_modules


@pytest.fixture
def place(environment: dict[str, str], tmp_path: Path) -> Path:
    return make_modules(environment, tmp_path)


@pytest.mark.parametrize(("factory", "text"), [("broken", "NaN"), ("large", "outside the range")])
def test_the_same_mistakes_under_torchrun_are_said_once(fidtool: Run, place: Path, factory: str, text: str) -> None:
    arguments = ("--extractor", f"{TINY_FILE}:{factory}", "--quiet", "--json")
    outcome = fidtool("compute", "real", "fake", *arguments, ranks=2)
    assert outcome.status == 1
    assert [text in line for line in outcome.stderr.splitlines() if line.startswith("error: ")] == [True]
    assert outcome.json["exit"]["code"] == 1
    assert text in outcome.json["exit"]["reason"]


def test_a_mistake_that_one_rank_meets_is_the_cause_that_all_give(fidtool: Run, place: Path) -> None:
    """The others must neither wait for it nor drown its message in theirs."""
    Image.new("RGB", (32, 32), "white").save(place / "fake" / "00007.png")
    forward = "return torch.where(x.mean((2, 3)) > 0.99, float('nan'), x.mean((2, 3)))"
    (place / "own.py").write_text(MODULE.format(forward=forward, factory=GOOD_FACTORY))
    arguments = ("--extractor", "own.py:network", "--batch-size", 4, "--quiet", "--json")
    outcome = fidtool("compute", "real", "fake", *arguments, ranks=2)
    assert outcome.status == 1
    assert ["NaN" in line for line in outcome.stderr.splitlines() if line.startswith("error: ")] == [True]
    assert "NaN" in outcome.json["exit"]["reason"]


def test_another_network_on_each_rank_is_refused(fidtool: Run, place: Path) -> None:
    arguments = ("--extractor", f"{TINY_FILE}:different_each_time", "--quiet", "--json")
    outcome = fidtool("compute", "real", "fake", *arguments, ranks=2)
    assert outcome.status == 1
    (error,) = (line for line in outcome.stderr.splitlines() if line.startswith("error: "))
    assert [
        text
        for text in ("different_each_time", "different networks", "0.weight differs from rank 0's by", "seed it")
        if text not in error
    ] == []
    assert outcome.json["exit"]["code"] == 2
    # On one rank it is a network like any other.
    assert fidtool("compute", "real", "fake", *arguments).status == 0
