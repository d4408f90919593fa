"""Ranks started with different arguments, programs that continue after a run, exits right after a collective."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.command_line import Outcome
from support.pictures import make_pictures
from support.places import TINY
from support.processes import PATIENCE, free_port
from support.ranks import RankServer, finish


def run_ranks(
    server: RankServer, program: str, environment: dict[str, str], folder: Path, arguments: Sequence[Sequence[object]]
) -> list[Outcome]:
    """One process per rank, each with its own arguments."""
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(len(arguments))}
    started = [
        server.launch(program, own, {**environment, **meeting, "RANK": str(rank)}, folder)
        for rank, own in enumerate(arguments)
    ]
    return [finish(server, rank) for rank in started]


@pytest.mark.parametrize(
    ("own", "name"),
    [(["--batch-size", "4"], "batch_size"), (["--protocol", "tensorflow"], "protocol"), (["third"], "paths")],
)
def test_ranks_with_different_arguments_are_refused(
    rank_server: RankServer, environment: dict[str, str], tmp_path: Path, own: list[str], name: str
) -> None:
    """With two plans, some images would count twice and others not at all."""
    for seed, folder in enumerate(("real", "fake", "third")):
        make_pictures(tmp_path / folder, 8, seed)
    common = ["compute", "real", "fake", "--extractor", TINY, "--no-cache"]
    ends = run_ranks(rank_server, "fidtool", environment, tmp_path, [common, [*common, *own]])
    assert [end.status for end in ends] == [2, 2], ends
    assert [end.stdout for end in ends] == ["", ""]
    first, second = (end.stderr for end in ends)
    assert first.startswith("error: ")
    assert name in first
    assert first.count("\n") == 1
    assert second == ""


def test_the_api_works_again_after_a_run_and_after_an_error(
    rank_server: RankServer, environment: dict[str, str], tmp_path: Path
) -> None:
    """In one script, on two ranks, without a process group of the script."""
    make_pictures(tmp_path / "real", 9, 1)
    (make_pictures(tmp_path / "bad", 9, 2) / "00004.png").write_bytes(b"no image")
    (tmp_path / "script.py").write_text(
        "import sys, fidtool\n"
        "settings = dict(extractor=sys.argv[1], batch_size=2, cache=False)\n"
        "for _ in range(2):\n"
        "    assert fidtool.compute('real', 'real', **settings).frechet_distance < 1e-9\n"
        "    try:\n"
        "        fidtool.compute('real', 'bad', **settings)\n"
        "    except fidtool.InputError as error:\n"
        "        assert '00004.png' in str(error)\n"
        "    else:\n"
        "        raise AssertionError\n"
    )
    ends = run_ranks(rank_server, "script", environment, tmp_path, [[tmp_path / "script.py", TINY]] * 2)
    assert [end.status for end in ends] == [0, 0], ends


@pytest.mark.slow  # six separate interpreters, whose exit is tested; forks skip it
def test_a_rank_that_exits_right_after_a_collective_exits_cleanly(environment: dict[str, str], tmp_path: Path) -> None:
    """A gloo thread that still holds a Python tensor aborts the process at exit (in every second run of these)."""
    (tmp_path / "script.py").write_text(
        "import torch.distributed as dist\n"
        "from fidtool.distributed.launch import discover\n"
        "from fidtool.distributed.world import World\n"
        "dist.init_process_group('gloo')\n"
        "world = World(discover())\n"
        "for _ in range(3):\n"
        "    assert world.gather(world.rank) == list(range(6))\n"
    )
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=6", f"--master-port={free_port()}"]
    done = subprocess.run(
        [*launcher, "script.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
