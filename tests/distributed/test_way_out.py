"""Advice at the end of an error message: what was saved, how to resume, or how to save work next time."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray

import fidtool
from fidtool.cli.options import as_flag
from fidtool.errors import spelled_by
from fidtool.pipeline import run as module
from fidtool.pipeline.run import FinishedWork
from support.arena import FAULTY
from support.command_line import Run
from support.goldens import Golden
from support.pictures import make_pictures
from support.places import TINY
from support.processes import PATIENCE
from support.rank_lines import compare
from support.ranks import RankServer

COUNT = 10
NEVER = "1e9"
NOTHING = "no work was saved: pass --checkpoint DIR to save finished work"
REST = "no other work was saved: pass --checkpoint DIR to save finished work"
ENDS = {"interrupt": (130, "stopped by SIGINT"), "terminate": (143, "stopped by SIGTERM"), "network": (1, "on purpose")}


@pytest.fixture
def sets(environment: dict[str, str], tmp_path: Path) -> list[Path]:
    """REAL and FAKE, old enough for the cache."""
    found = [make_pictures(tmp_path / name, COUNT, seed) for seed, name in enumerate(("real", "fake"))]
    time.sleep(0.08)
    return found


@pytest.fixture
def last_words(rank_server: RankServer, environment: dict[str, str], sets: list[Path], tmp_path: Path) -> Run:
    """Status and error line of a run that ends during a forward pass; the line must match its JSON."""

    def run(fault: str, *more: object, passes: int, ranks: int = 1, worth_telling: str = "0") -> tuple[int, str]:
        arguments = ["compute", *sets, "--extractor", FAULTY, "--batch-size", 1, "--quiet", "--json", *more]
        variables = {**environment, "FAULT": fault, "FAULT_AFTER": str(passes), "WORTH_TELLING": worth_telling}
        started = rank_server.start(arguments, ranks, tmp_path, FAULT_PACE="0.01", **variables)
        (status,) = set(rank_server.wait(started, PATIENCE))
        (line,) = [line for rank in started for line in rank.stderr.splitlines() if line.startswith("error: ")]
        assert line == f"error: {json.loads(started[0].stdout)['exit']['reason']}"
        assert line in started[0].stderr, "rank zero prints it"
        assert isinstance(status, int)
        return status, line

    return run


@pytest.mark.parametrize(("fault", "ranks"), [("interrupt", 1), ("terminate", 2), ("network", 2)])
def test_without_a_checkpoint_nothing_is_saved(
    last_words: Run, golden: Golden, tmp_path: Path, fault: str, ranks: int
) -> None:
    status, line = last_words(fault, "--no-cache", passes=2, ranks=ranks)
    assert (status, ENDS[fault][1] in line) == (ENDS[fault][0], True)
    assert line.endswith(f"; {NOTHING}")
    assert line.count("save") == 2
    compare(golden, f"{fault}, {ranks}, nothing kept", line, tmp_path)


def test_the_loss_of_short_work_is_not_mentioned(last_words: Run) -> None:
    assert "save" not in last_words("network", "--no-cache", passes=2, worth_telling=NEVER)[1]


@pytest.mark.parametrize(("fault", "ranks"), [("network", 1), ("interrupt", 2)])
def test_a_finished_set_is_in_the_cache(
    last_words: Run, golden: Golden, sets: list[Path], tmp_path: Path, here: Run, fault: str, ranks: int
) -> None:
    """The same command then uses the cache."""
    passes = COUNT // ranks + 1
    status, line = last_words(fault, passes=passes, ranks=ranks)
    assert status == ENDS[fault][0]
    cached = f"the statistics of {sets[0]} are cached: run the same command again to reuse them"
    assert line.endswith(f"; {cached}; {REST}")
    compare(golden, f"{fault}, {ranks}, a set in the cache", line, tmp_path)
    again = here("compute", *sets, "--extractor", FAULTY, "--batch-size", 1, "--json")
    assert again.json["run"]["cached"] == [str(sets[0])]


def test_only_the_checkpoint_is_mentioned_if_there_is_one(last_words: Run) -> None:
    _, line = last_words("terminate", "--checkpoint", "kept", "--checkpoint-every", 0, passes=COUNT + 2)
    assert line == "error: stopped by SIGTERM; finished work is saved in kept: run the same command again to resume"


def test_work_is_mentioned_from_half_a_minute_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time counts since the first set whose statistics are not in the cache."""
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    kept = FinishedWork()
    assert kept.advice() == ""
    kept.begin()
    now[0] += 29.0
    assert kept.advice() == ""
    kept.begin()
    now[0] += 1.0
    with spelled_by(as_flag):
        assert kept.advice() == f"; {NOTHING}"
    kept.cached("a")
    cached = "are cached: run the same command again to reuse them"
    assert kept.advice() == f"; the statistics of a {cached}"
    kept.cached("b")
    now[0] += 1000.0
    kept.begin()
    now[0] += 30.0
    in_python = REST.replace("--checkpoint DIR", "checkpoint=...")
    assert kept.advice() == f"; the statistics of a and 1 more {cached}; {in_python}"


def test_an_empty_checkpoint_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "WORTH_TELLING_SECONDS", 0.0)
    kept = FinishedWork()
    kept.folder, kept.checkpoint = "ck", SimpleNamespace(has_work=False)  # type: ignore[assignment]
    kept.begin()
    assert kept.advice() == "; no work was saved: ck could not be written, or nothing was finished"


def test_an_exception_of_the_program_gets_the_advice_too(sets: list[Path]) -> None:
    def broken() -> Iterator[NDArray[np.uint8]]:
        yield np.zeros((8, 8, 3), np.uint8)
        raise ValueError("my own bug")

    with pytest.raises(fidtool.RunError) as caught:
        fidtool.compute(sets[0], broken(), extractor=TINY)
    cached = f"the statistics of {sets[0]} are cached: run the same command again to reuse them"
    assert str(caught.value).endswith(f"ValueError: my own bug; {cached}")
    assert isinstance(caught.value.__cause__, ValueError)
