"""A killed run resumes where it was, with any number of ranks, with bit-identical results."""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
import time
from pathlib import Path

import pytest

import fidtool as package
from support.command_line import Run
from support.pictures import make_pictures
from support.places import FAULTY, TINY
from support.processes import PATIENCE
from support.ranks import Rank, RankServer, finish

PACE = 0.02
EVERY = 0.1


def most_lost(ranks: int) -> int:
    """Maximum number of forward passes that a kill can lose: those since the last save, in an interval and two saves.

    On two cores there are two forward threads on a single rank, or one per rank. While a rank saves, they finish
    their current and their queued batches. Between saves, each thread takes at least PACE seconds per pass.
    """
    threads = max(1, 2 // ranks)
    return ranks * (threads * (int(EVERY / PACE) + 2) + 2 * (2 * threads + 1))


def await_passes(server: RankServer, ranks: list[Rank], passes: Path, more: int) -> None:
    """Wait until the network has done this many more passes, or the run has ended."""

    def done() -> int:
        return passes.stat().st_size if passes.exists() else 0

    wanted = done() + more
    while None in server.wait(ranks, 0.0) and done() < wanted:
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("wanted", "batches", "ends", "worked"), [(3, 60, 1, 1), pytest.param(20, 150, 2, 15, marks=pytest.mark.slow)]
)
def test_kills_at_random_times_cost_at_most_an_interval_each(
    rank_server: RankServer, tmp_path: Path, wanted: int, batches: int, ends: int, worked: int
) -> None:
    """The network counts its passes in a file, including those of killed runs.

    Parameters: number of kills, batches per set, minimum number of runs that finish or find finished work.
    """
    server = rank_server
    make_pictures(tmp_path / "real", batches, 1)
    make_pictures(tmp_path / "fake", batches, 2)
    (tmp_path / "real" / f"{batches // 2:05}.png").write_bytes(b"no image")  # skipped files are saved as well
    arguments = ["compute", "real", "fake", "--extractor", FAULTY, "--no-cache", "--batch-size", "1", "--json"]
    arguments += ["--on-error", "skip", "--max-skip", "0.02", "--metrics", "fid,kid,prdc", "--kid-subsets", "3"]
    arguments += ["--kid-subset-size", str(batches * 2 // 3)]
    keeping = [*arguments, "--checkpoint", "kept", "--checkpoint-every", str(EVERY)]
    (alone,) = server.start(arguments, 1, tmp_path, FAULT_PACE="0")
    assert server.wait([alone], PATIENCE) == [0], alone.stderr
    reference = json.loads(alone.stdout)["results"]

    chance = random.Random(20)
    kills = resumes = finished = 0
    passes = tmp_path / "passes"
    plan = allowed = 2 * batches - 1
    while kills < wanted or finished < ends or (tmp_path / "kept").exists():
        size = chance.choice([1, 2, 3, 4])
        ranks = server.start(keeping, size, tmp_path, FAULT_PACE=str(PACE), FORWARD_LOG=str(passes))
        if kills < wanted:
            await_passes(server, ranks, passes, chance.randrange(batches))
            time.sleep(chance.uniform(0.0, EVERY))
        if None in server.wait(ranks, 0.0 if kills < wanted else PATIENCE):
            kill(ranks, chance)
            assert None not in server.wait(ranks, PATIENCE), "a rank hangs"
            kills += 1
            allowed += most_lost(size)
        else:
            assert [rank.status for rank in ranks] == [0] * size, ranks[0].stderr
        resumes += len(re.findall(rf"kept already has [1-9]\d* of {batches} batches of ", ranks[0].stderr)) > 0
        if [rank.status for rank in ranks] == [0] * size:
            assert json.loads(ranks[0].stdout)["results"] == reference
            assert plan <= passes.stat().st_size <= allowed, (passes.stat().st_size, allowed)
            shutil.rmtree(tmp_path / "kept")
            passes.unlink()
            finished, allowed = finished + 1, plan
    assert finished >= ends
    assert resumes >= worked, f"only {resumes} of {kills} kills left finished work"


def kill(ranks: list[Rank], chance: random.Random) -> None:
    """Kill all ranks at once, or one whose loss the others must detect; mostly with SIGKILL."""
    number = chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
    for rank in ranks if chance.random() < 0.7 else [chance.choice(ranks)]:
        if rank.status is None:
            rank.send(number)


@pytest.mark.parametrize("ranks", [None, 3])
def test_a_finished_run_is_found_again(fidtool: Run, tmp_path: Path, ranks: int | None) -> None:
    images = make_pictures(tmp_path / "images", 30, sides=(31, 40))
    settings = [images, "--extractor", TINY, "--no-cache", "--batch-size", 4]
    assert fidtool("stats", *settings, "-o", "plain.npz").status == 0
    assert fidtool("stats", *settings, "-o", "kept.npz", "--checkpoint", "kept", ranks=ranks).status == 0
    again = fidtool("stats", *settings, "-o", "again.npz", "--checkpoint", "kept")
    assert f"kept already has 8 of 8 batches of {images}" in again.stderr
    bits = {
        (found.mu.tobytes(), found.sigma.tobytes(), found.count, found.traits)
        for found in (package.read_statistics(tmp_path / f"{name}.npz") for name in ("plain", "kept", "again"))
    }
    assert len(bits) == 1


@pytest.mark.parametrize("fault", ["kill", "terminate"])
def test_a_run_resumes_after_a_restart_by_torchrun(
    rank_server: RankServer, environment: dict[str, str], tmp_path: Path, fault: str
) -> None:
    """The last rank is killed in the first attempt only; stdout is one JSON document."""
    make_pictures(tmp_path / "real", 40, 1)
    make_pictures(tmp_path / "fake", 40, 2)
    settings = ["--extractor", FAULTY, "--no-cache", "--batch-size", "1", "--json", "--checkpoint", "kept"]
    arguments = ["compute", "real", "fake", *settings, "--checkpoint-every", "0"]
    variables = {"FAULT": fault, "FAULT_RANK": "1", "FAULT_ATTEMPT": "0", "FAULT_PACE": "0.01"}
    started = rank_server.quick_torchrun(
        2, "fidtool", arguments, {**environment, **variables}, tmp_path, "--max-restarts=2"
    )
    done = finish(rank_server, started)
    assert done.status == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["run"]["images_resumed"] > 0
    assert result["results"][0]["count"] == {"real": 40, "fake": 40}
    assert len(re.findall("^error: ", done.stderr, re.MULTILINE)) == 1
