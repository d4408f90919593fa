"""Programs that continue after a run, slow exits, and exits right after a collective."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.command_line import Run
from support.pictures import make_pictures
from support.places import TINY
from support.processes import PATIENCE, free_port
from support.ranks import RankServer, exported, finish


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
    ranks = [rank_server.launch("script", ["script.py", TINY], {**environment, **own}, tmp_path) for own in exported(2)]
    ends = [finish(rank_server, rank) for rank in ranks]
    assert [end.status for end in ends] == [0, 0], ends


SLOW_END = f"""
import importlib.util, os, time
import torch.distributed
spec = importlib.util.spec_from_file_location("tiny", {TINY.rpartition(":")[0]!r})
tiny = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tiny)
network, leave = tiny.network, torch.distributed.destroy_process_group
def slowly(*arguments):
    time.sleep(1.5 if os.environ["RANK"] == "0" else 0)
    leave(*arguments)
torch.distributed.destroy_process_group = slowly
"""


def test_the_cause_is_printed_even_if_rank_zero_exits_slowly(fidtool: Run, tmp_path: Path) -> None:
    """torchrun kills the other ranks as soon as one exits with an error: the cause must be printed before that."""
    make_pictures(tmp_path / "real", 20)
    (make_pictures(tmp_path / "fake", 20, 1) / "00011.png").write_bytes(b"no image")
    (tmp_path / "slow.py").write_text(SLOW_END)
    arguments = ("--extractor", "slow.py:network", "--quiet", "--json")
    outcome = fidtool("compute", "real", "fake", *arguments, ranks=2)
    assert outcome.stderr.count("00011.png") == 1
    assert outcome.json["exit"]["code"] == 2


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
