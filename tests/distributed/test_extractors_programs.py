"""Exported networks on two ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.command_line import Run
from support.own_networks import SETTINGS, make_place, save_script


@pytest.fixture
def place(environment: dict[str, str], tmp_path: Path) -> Path:
    return make_place(environment, tmp_path)


def test_two_ranks_agree(fidtool: Run, place: Path) -> None:
    save_script(place / "small.pt", json.dumps(SETTINGS))
    arguments = ("compute", "real", "fake", "--extractor", "small.pt", "--quiet", "--json", "--no-cache")
    alone, together = fidtool(*arguments), fidtool(*arguments, ranks=2)
    assert (alone.status, together.status) == (0, 0), together.stderr
    assert together.fid == alone.fid
