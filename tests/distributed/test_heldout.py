"""A held-out set on several ranks: the same bits, also after a kill."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np

from support.command_line import Run
from support.feature_sets import mixture
from support.pictures import make_pictures
from support.places import FAULTY
from support.processes import wait_until
from support.ranks import RankServer


def test_a_held_out_set_has_the_same_bits_at_any_world_size(
    fidtool: Run, here: Run, tmp_path: Path
) -> None:
    """Features, with copies, in blocks of which each rank has some."""
    train = mixture(1500, 24, 0)
    sets = {
        "real": train,
        "fake": np.concatenate([mixture(1300, 24, 1), train[:40]]),
        "val": mixture(900, 24, 2),
    }
    for name, rows in sets.items():
        np.save(tmp_path / f"{name}.npy", rows)
    arguments = (
        "compute",
        "real.npy",
        "fake.npy",
        "--heldout",
        "val.npy",
        "--features",
        "--metrics",
        "fid,authpct",
    )
    alone, *others = (
        here(*arguments, "--json"),
        *(fidtool(*arguments, "--json", ranks=size) for size in (2, 3)),
    )
    assert alone.json["results"][0]["heldout"]["nearest"]["copies"] == 40
    assert [each.json["results"] for each in others] == [alone.json["results"]] * 2


def test_a_killed_run_resumes_in_the_held_out_set(
    fidtool: Run, here: Run, rank_server: RankServer, tmp_path: Path
) -> None:
    """It is the second set to be measured: FAKE has not begun."""
    for seed, (name, count) in enumerate({"real": 30, "fake": 33, "val": 60}.items()):
        make_pictures(tmp_path / name, count, seed)
    arguments: list[object] = [
        "compute",
        "real",
        "fake",
        "--heldout",
        "val",
        "--extractor",
        FAULTY,
        "--no-cache",
    ]
    arguments += ["--batch-size", 2, "--json"]
    kept, passes = [*arguments, "--checkpoint", "kept"], tmp_path / "passes"
    environment = {**rank_server.environment, "FAULT_PACE": "0.02", "FORWARD_LOG": str(passes)}
    ranks = rank_server.ranks("fidtool", [kept] * 2, environment, tmp_path)
    wait_until(lambda: passes.exists() and passes.stat().st_size >= 30, "no rank is working")
    for rank in ranks:
        rank.send(signal.SIGKILL)
    assert {rank.wait() for rank in ranks} == {-signal.SIGKILL}
    resumed, whole = here(*kept), fidtool(*arguments, ranks=3)
    assert 30 < resumed.json["run"]["images_resumed"] < 90
    assert resumed.json["results"] == whole.json["results"]
    assert resumed.json["results"][0]["heldout"]["count"] == 60


def test_a_refused_held_out_set_ends_all_ranks(fidtool: Run, tmp_path: Path) -> None:
    make_pictures(tmp_path / "real", 4)
    done = fidtool("compute", "real", "real", "--heldout", "./real", "--quiet", "--json", ranks=2)
    assert done.status == 1
    assert done.json["exit"]["code"] == 2
    (error,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert "--heldout real is REAL" in error
