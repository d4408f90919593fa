"""FIDCallback in Lightning's own Trainer, under torchrun and in this process."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.command_line import Run
from support.pictures import make_pictures
from support.places import PROGRAMS, TINY
from support.processes import wait_until
from support.ranks import RankServer, left_of


def runs_of(programs: Run, ranks: int, case: str, folder: Path) -> list[str]:
    """The results of the program's trainings, which must be the same on every rank."""
    run = programs(ranks, "lightning_training.py", case, folder)
    assert run.status == 0, run.stderr
    found: dict[str, list[str]] = {}
    for rank, text in re.findall(r"^(\d) run: (.*)$", run.stdout, re.MULTILINE):
        found.setdefault(rank, []).append(text)
    assert len(found) == ranks
    assert len(set(map(tuple, found.values()))) == 1, found
    return next(iter(found.values()))


@pytest.mark.slow
def test_one_value_at_any_number_of_ranks(programs: Run, tmp_path: Path) -> None:
    """With and without validation; ModelCheckpoint saves the epoch with the best FID."""
    values = set()
    for ranks in (1, 2):
        for line in runs_of(programs, ranks, "values", tmp_path / str(ranks)):
            value, kept, epochs, _ = line.split()
            values.add(value)
            assert re.fullmatch(r"epoch=2-fid=0\.00\d+\.ckpt", kept)
            assert epochs == "4"
    assert len(values) == 1


def test_resuming(programs: Run, tmp_path: Path) -> None:
    """A resumed training has the results of an uninterrupted one."""
    first, resumed, whole = runs_of(programs, 2, "resume", tmp_path)
    assert resumed.split()[0] == whole.split()[0] != first.split()[0]
    assert "epoch=2-fid=0.00" in resumed


def test_the_callback_does_not_affect_training(programs: Run, tmp_path: Path) -> None:
    """The training's random numbers equal those of a training that generates no samples."""
    with_fid, without = runs_of(programs, 1, "without", tmp_path)
    assert with_fid.split()[3] == without.split()[3]


@pytest.mark.parametrize("ranks", [1, 2])
def test_averaged_weights(programs: Run, tmp_path: Path, ranks: int) -> None:
    """The order of the callbacks has no effect; the weights are those that ModelCheckpoint
    saves.
    """
    run = programs(ranks, "lightning_averaging.py", tmp_path)
    assert run.status == 0, run.stderr
    found: dict[str, list[str]] = {}
    for what, values in re.findall(r"^\d (.*): (.*)$", run.stdout, re.MULTILINE):
        found.setdefault(what, []).append(values)
    assert {what: len(values) for what, values in found.items()} == dict.fromkeys(found, 2 * ranks)
    assert all(len({*values}) == 1 for values in found.values()), found
    measured = {what: values[0].split() for what, values in found.items()}
    assert {what: float(weight) for what, (weight, *_) in measured.items()} == {
        "EMAWeightAveraging validation averaged": 2.248046875,
        "EMAWeightAveraging validation raw": 2.0,
        "EMAWeightAveraging training averaged": 2.5,
        "EMAWeightAveraging training raw": 2.0,
        "OwnAveraging validation averaged": 5.0,
    }
    assert [is_saved for what, (_, is_saved, _) in measured.items() if what.startswith("EMA")] == [
        "True"
    ] * 4
    measures = re.findall(
        r"^FIDCallback\[fid\] measures the (\w+) weights", run.stderr, re.MULTILINE
    )
    assert measures == ["averaged", "averaged", "trained", "trained"] * 2


def test_a_rank_that_cannot_generate(programs: Run, tmp_path: Path) -> None:
    """That rank raises its own error, and the others immediately raise one that names it and the
    cause.
    """
    run = programs(2, "lightning_training.py", "fail", tmp_path)
    assert run.status == 1
    assert "ValueError: no memory left for samples" in run.stderr
    assert "rank 1 failed: ValueError: no memory left for samples" in run.stderr


@pytest.mark.slow
def test_lightning_starts_the_ranks_itself(
    training_server: RankServer, environment: dict[str, str], tmp_path: Path
) -> None:
    """Without torchrun, from a folder; two callbacks, each used in two trainings.

    Rank 0 is a fork; it starts rank 1 as a separate interpreter.
    """
    make_pictures(tmp_path / "real", 30, 1)
    script = [PROGRAMS / "lightning_launcher.py", "real", TINY]
    started = training_server.launch("script", script, environment, tmp_path)
    wait_until(lambda: not left_of({started.pid}), "a rank does not end")
    done = started.outcome()
    assert done.status == 0, done.stderr
    found = re.findall(r"^(\d) of 2: (\S+)$", done.stdout, re.MULTILINE)
    assert sorted(rank for rank, _ in found) == ["0", "0", "1", "1"]
    assert len({value for _, value in found}) == 1
