"""Advice at the end of an error message: what was saved, how to resume, or how to save work next
time.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import fidtool
from fidtool.cli.output import format_flag
from fidtool.errors import render
from fidtool.run import context as module
from fidtool.run.context import FinishedWork
from support.command_line import Run
from support.goldens import Golden
from support.pictures import make_pictures
from support.places import FAULTY, TINY
from support.rank_lines import compare
from support.ranks import RankServer, outcomes

COUNT = 10
NOTHING = "no work was saved: pass --checkpoint DIR to save finished work"
REST = "no other work was saved: pass --checkpoint DIR to save finished work"


@pytest.fixture
def sets(environment: dict[str, str], tmp_path: Path) -> list[Path]:
    """REAL and FAKE, old enough for the cache."""
    found = [
        make_pictures(tmp_path / name, COUNT, seed) for seed, name in enumerate(("real", "fake"))
    ]
    time.sleep(0.08)
    return found


def last_words(
    server: RankServer, sets: list[Path], folder: Path, fault: str, passes: int, *more: object
) -> str:
    """Return the error line of a run on two ranks that end during a forward pass; the line must
    match its JSON.
    """
    arguments = [
        "compute",
        *sets,
        "--extractor",
        FAULTY,
        "--batch-size",
        1,
        "--quiet",
        "--json",
        *more,
    ]
    pace = {"FAULT": fault, "FAULT_AFTER": str(passes), "FAULT_PACE": "0.01", "WORTH_TELLING": "0"}
    ends = outcomes(server.ranks("fidtool", [arguments] * 2, {**os.environ, **pace}, folder))
    (line,) = [
        line for end in ends for line in end.stderr.splitlines() if line.startswith("error: ")
    ]
    assert line == f"error: {ends[0].json['exit']['reason']}"
    assert line in ends[0].stderr, "rank zero prints it"
    return line


def test_without_a_checkpoint_nothing_is_saved(
    rank_server: RankServer, sets: list[Path], golden: Golden, tmp_path: Path
) -> None:
    line = last_words(rank_server, sets, tmp_path, "network", 2, "--no-cache")
    assert line.endswith(f"; {NOTHING}")
    compare(golden, "network, 2, nothing kept", line, tmp_path)


def test_a_finished_set_is_in_the_cache(
    rank_server: RankServer, sets: list[Path], golden: Golden, tmp_path: Path, here: Run
) -> None:
    """The same command then uses the cache."""
    line = last_words(rank_server, sets, tmp_path, "interrupt", COUNT // 2 + 1)
    cached = f"the statistics of {sets[0]} are cached: run the same command again to reuse them"
    assert line.endswith(f"; {cached}; {REST}")
    compare(golden, "interrupt, 2, a set in the cache", line, tmp_path)
    again = here("compute", *sets, "--extractor", FAULTY, "--batch-size", 1, "--json")
    assert again.json["run"]["cached"] == [str(sets[0])]


def test_work_is_mentioned_from_half_a_minute_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time counts since the first set whose statistics are not in the cache."""
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    kept = FinishedWork()
    assert kept.advice() == ""
    kept.unsaved_since = now[0]
    now[0] += 29.0
    assert kept.advice() == ""
    now[0] += 1.0
    assert render(kept.advice(), format_flag) == f"; {NOTHING}"
    kept.cached, kept.unsaved_since = ["a"], None
    cached = "are cached: run the same command again to reuse them"
    assert kept.advice() == f"; the statistics of a {cached}"
    kept.cached, kept.unsaved_since = ["a", "b"], now[0]
    now[0] += 30.0
    in_python = REST.replace("--checkpoint DIR", "checkpoint=...")
    assert render(kept.advice()) == f"; the statistics of a and 1 more {cached}; {in_python}"


def test_an_exception_of_the_program_gets_the_advice_too(sets: list[Path]) -> None:
    def broken() -> Iterator[NDArray[np.uint8]]:
        yield np.zeros((8, 8, 3), np.uint8)
        raise ValueError("my own bug")

    with pytest.raises(ValueError, match="my own bug") as caught:
        fidtool.compute(sets[0], broken(), extractor=TINY)
    if sys.version_info >= (3, 11):  # exceptions have notes
        (note,) = caught.value.__notes__
        assert note.endswith(
            f"the statistics of {sets[0]} are cached: run the same command again to reuse them"
        )
