"""A killed run resumes where it was, with any number of ranks, with bit-identical results."""

from __future__ import annotations

import json
import re
import signal
from functools import partial
from pathlib import Path

from support.command_line import Run
from support.exact_sets import beside_network
from support.goldens import Golden
from support.old_files import BATCH, FAKE, REAL, make_sets
from support.pictures import make_pictures
from support.places import FAULTY
from support.printed import CPU
from support.processes import wait_until
from support.ranks import Rank, RankServer, outcomes

BATCHES = 128
PARTS = 64
PACE = 0.01


def most_lost(ranks: int) -> int:
    """Maximum number of forward passes that a kill can lose: of each rank, those in the part that
    it works on.

    On two cores there are two forward threads on a single rank, or one per rank. They have begun
    and queued batches beyond the part.
    """
    return ranks * (2 * (BATCHES // PARTS) + 2 * max(1, 2 // ranks) + 1)


def test_a_kill_costs_at_most_a_part(rank_server: RankServer, tmp_path: Path) -> None:
    """The network counts its passes in a file. All ranks are killed, then one; a single process
    finishes the work.
    """
    make_pictures(tmp_path / "real", BATCHES, 1)
    make_pictures(tmp_path / "fake", BATCHES, 2)
    # Skipped files are saved as well.
    (tmp_path / "real" / f"{BATCHES // 2:05}.png").write_bytes(b"no image")
    arguments: list[object] = [
        "compute",
        "real",
        "fake",
        "--extractor",
        FAULTY,
        "--no-cache",
        "--batch-size",
        "1",
    ]
    arguments += [
        "--on-error",
        "skip",
        "--max-skip",
        "0.02",
        "--metrics",
        "fid,kid,prdc",
        "--kid-subset-size",
        40,
    ]
    keeping = [*arguments, "--checkpoint", "kept", "--json"]
    passes = tmp_path / "passes"

    def have_worked(batches: int) -> bool:
        return passes.exists() and passes.stat().st_size >= batches

    def start(command: list[object], ranks: int, **variables: str) -> list[Rank]:
        environment = {**rank_server.environment, "FAULT_PACE": str(PACE), **variables}
        return rank_server.ranks("fidtool", [command] * ranks, environment, tmp_path)

    (whole,) = outcomes(start([*arguments, "--json"], 1, FAULT_PACE="0"))
    for size, killed, wanted in ((3, slice(None), 30), (2, slice(1), 80)):
        ranks = start(keeping, size, FORWARD_LOG=str(passes))
        wait_until(partial(have_worked, wanted), "no rank is working")
        for rank in ranks[killed]:
            rank.send(signal.SIGKILL)
        assert {rank.wait() for rank in ranks} <= {-signal.SIGKILL, 1}
    (resumed,) = outcomes(start(keeping, 1, FORWARD_LOG=str(passes)))
    assert resumed.json["results"] == whole.json["results"]
    assert resumed.json["run"]["images_resumed"] > 0
    plan = 2 * BATCHES - 1
    assert plan <= passes.stat().st_size <= plan + most_lost(3) + most_lost(2)


def test_a_run_resumes_after_a_restart_by_torchrun(
    rank_server: RankServer, environment: dict[str, str], tmp_path: Path
) -> None:
    """The last rank is killed in the first attempt only; stdout is one JSON document."""
    make_pictures(tmp_path / "real", 40, 1)
    make_pictures(tmp_path / "fake", 40, 2)
    settings = [
        "--extractor",
        FAULTY,
        "--no-cache",
        "--batch-size",
        "1",
        "--json",
        "--checkpoint",
        "kept",
    ]
    arguments = ["compute", "real", "fake", *settings]
    variables = {"FAULT": "kill", "FAULT_RANK": "1", "FAULT_ATTEMPT": "0", "FAULT_PACE": "0.01"}
    own = {**environment, **variables}
    done = rank_server.torchrun(
        2, "fidtool", arguments, own, tmp_path, "--max-restarts=2"
    ).outcome()
    assert done.status == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["run"]["images_resumed"] > 0
    assert result["results"][0]["count"] == {"real": 40, "fake": 40}
    assert len(re.findall("^error: ", done.stderr, re.MULTILINE)) == 1


def test_two_ranks_write_what_one_process_resumes(
    golden: Golden, fidtool: Run, tmp_path: Path
) -> None:
    """The parts are those of one process."""
    make_sets(beside_network(tmp_path))
    command = (
        "compute",
        "real",
        "fake",
        *CPU,
        "--batch-size",
        BATCH,
        "--no-cache",
        "--json",
        "--checkpoint",
        "kept",
    )
    command += ("--metrics", "fid,kid", "--kid-subset-size", 9)
    both = fidtool(*command, ranks=2)
    names = [re.sub(r"^\w+-", "RUN-", file.name) for file in (tmp_path / "kept").iterdir()]
    kept = (
        "world_size",
        "backend",
        "batch_size",
        "images_computed",
        "images_resumed",
        "cached",
        "config",
    )
    golden(
        "resume/two_ranks",
        {"files": sorted(names), "run": {name: both.json["run"][name] for name in kept}},
    )
    resumed = fidtool(*command)
    assert (resumed.json["run"]["images_resumed"], resumed.json["run"]["images_computed"]) == (
        REAL + FAKE,
        0,
    )
    assert resumed.json["results"] == both.json["results"]
