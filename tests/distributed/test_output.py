"""JSON and gates on several ranks."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from support.command_line import Run
from support.documents import read_document
from support.pictures import make_pictures
from support.places import TINY


@pytest.fixture
def sets(tmp_path: Path) -> tuple[Path, Path, Path]:
    """REAL and two FAKEs."""
    return tuple(make_pictures(tmp_path / name, 40, seed) for seed, name in enumerate(("real", "fake", "other")))  # type: ignore[return-value]


def test_gate(fidtool: Run, sets: tuple[Path, Path, Path]) -> None:
    real, fake, _ = sets
    common = ("compute", real, fake, "--extractor", TINY, "--json")
    value = fidtool(*common).fid
    passed = fidtool(*common, "--fail-above", value, ranks=2)
    missed = fidtool(*common, "--fail-above", math.nextafter(value, 0), ranks=2)
    assert (passed.status, passed.json["exit"]["code"]) == (0, 0), "a value equal to the limit is not above it"
    assert missed.json["exit"]["code"] == 3
    assert missed.status == 1, "torchrun replaces the ranks' status"
    assert missed.fid == value
    assert missed.stderr.count("gate missed") == 1


def test_only_rank_zero_prints_the_table(fidtool: Run, sets: tuple[Path, Path, Path]) -> None:
    """torchrun rejects ``--num`` as ambiguous, except after ``--``."""
    arguments = ("--", "compute", *sets, "--extractor", TINY, "--num", 30, "--format", "table", "-o", "out.json")
    run = fidtool(*arguments, ranks=2, fresh=True)
    assert [line.split()[0] for line in run.stdout.splitlines()] == ["FAKE", "fake", "other", "*"], run.stderr
    command = read_document(sets[0].parent / "out.json")["run"]["command"]
    assert command == ["fidtool", *map(str, arguments[1:])]
