"""URLs that refer to a different server on each machine."""

from __future__ import annotations

from pathlib import Path

from support.ranks import RankServer, finish
from support.stores import ARGUMENTS, filled


def test_ranks_that_see_different_servers_are_refused(
    rank_server: RankServer, environment: dict[str, str], tmp_path: Path
) -> None:
    """The same URL can refer to a different server on each machine: here each rank has its own folder."""
    place = filled(tmp_path / "store")
    for rank, other in enumerate(("images", "real")):
        (tmp_path / str(rank)).mkdir()
        (tmp_path / str(rank) / "set").symlink_to(place / other)
    program = tmp_path / "each.py"
    program.write_text(
        "import os, sys; os.chdir(os.environ['RANK'])\n"
        "from fidtool.cli.main import main; sys.argv = ['fidtool', *sys.argv[1:]]; main()\n"
    )
    arguments = [program, "compute", place / "real", "file:///proc/self/cwd/set/", *ARGUMENTS]
    run = finish(rank_server, rank_server.quick_torchrun(2, "script", arguments, environment, tmp_path))
    assert "has different contents on rank 1" in run.stderr, run.stderr
