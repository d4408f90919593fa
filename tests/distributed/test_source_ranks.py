"""Ranks that see different contents, on machines without a shared file system: always an error,
never a wrong value.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from support.command_line import Outcome, Run
from support.places import TINY
from support.ranks import RankServer, exported, outcomes
from support.source_forms import make_squares, names_in, write_tar, write_zip
from support.stores import ARGUMENTS, filled

COUNT = 24


def make_folder(folder: Path, seed: int) -> None:
    make_squares(folder / "images", COUNT, seed)


def make_folder_with_missing_files(folder: Path, seed: int) -> None:
    """Write images, and for rank 1 delete every third file."""
    make_squares(folder / "images", COUNT, 0)
    if seed:
        for name in names_in(folder / "images")[2::3]:
            (folder / "images" / name).unlink()


def make_packed_array(folder: Path, seed: int) -> None:
    """Write noise, whose compressed size does not depend on its content."""
    values = np.random.RandomState(seed).randint(0, 256, (COUNT, 24, 24, 3)).astype(np.uint8)
    np.savez_compressed(folder / "images.npz", values)


def make_zip(folder: Path, seed: int) -> None:
    pictures = make_squares(folder / "pictures", COUNT, seed)
    write_zip(folder / "images.zip", pictures, names_in(pictures))


def make_tar(folder: Path, seed: int) -> None:
    pictures = make_squares(folder / "pictures", COUNT, seed)
    write_tar(folder / "images.tar", pictures, names_in(pictures))


CASES: dict[str, Callable[[Path, int], None]] = {
    "images": make_folder,
    "images.npz": make_packed_array,
    "images.zip": make_zip,
    "images.tar": make_tar,
}


def run_apart(
    server: RankServer, environment: dict[str, str], places: list[Path], *arguments: object
) -> list[Outcome]:
    """Run the same command on two ranks, each in its own folder."""
    own = zip(places, exported(len(places)), strict=True)
    return outcomes(
        [server.launch("fidtool", arguments, {**environment, **rank}, place) for place, rank in own]
    )


@pytest.fixture
def places(tmp_path: Path) -> list[Path]:
    """The folders of the ranks."""
    found = [tmp_path / f"machine{rank}" for rank in range(2)]
    for place in found:
        place.mkdir()
        make_squares(place / "real", COUNT, 9)
    return found


@pytest.mark.parametrize(
    ("name", "command"), [*((name, "compute") for name in CASES), ("images", "check")]
)
def test_ranks_with_different_contents_are_refused(
    rank_server: RankServer,
    environment: dict[str, str],
    places: list[Path],
    name: str,
    command: str,
) -> None:
    for seed, place in enumerate(places):
        CASES[name](place, seed)
    arguments = {"compute": ["real", name, "--extractor", TINY, "--no-cache"], "check": [name]}[
        command
    ]
    first, second = run_apart(rank_server, environment, places, command, *arguments)
    assert (first.status, first.stdout) == (second.status, second.stdout) == (2, "")
    assert second.stderr == ""
    (line,) = [line for line in first.stderr.splitlines() if line.startswith("error: ")]
    assert name in line
    assert re.search(r"on rank 1|rank 1 on", line), line
    assert "all ranks must see the same files" in line


def test_skipping_does_not_hide_that_files_are_missing_on_a_rank(
    rank_server: RankServer, environment: dict[str, str], places: list[Path]
) -> None:
    for seed, place in enumerate(places):
        make_folder_with_missing_files(place, seed)
    arguments = (
        "compute",
        "real",
        "images",
        "--extractor",
        TINY,
        "--on-error",
        "skip",
        "--max-skip",
        "1",
    )
    first, _ = run_apart(rank_server, environment, places, *arguments)
    assert (first.status, first.stdout) == (2, "")
    assert "exists on rank 0 but not on this rank" in first.stderr


def test_local_copies_on_every_machine_are_accepted(
    rank_server: RankServer, environment: dict[str, str], places: list[Path]
) -> None:
    """Copied to local disks: equal contents, different time stamps."""
    for place in places:
        make_zip(place, 3)
    arguments = ("compute", "real", "images.zip", "--extractor", TINY, "--no-cache")
    first, second = run_apart(rank_server, environment, places, *arguments)
    assert (first.status, second.status) == (0, 0), first.stderr
    assert first.stdout.startswith("FD (")


IN_OWN_FOLDER = """
import os, sys
from fidtool.cli.main import main
os.chdir(os.environ["RANK"])
sys.argv[0] = "fidtool"
main()
"""


def test_urls_of_different_servers_are_refused(program: Run, tmp_path: Path) -> None:
    """The same URL can refer to a different server on each machine: here each rank has its own
    folder.
    """
    place = filled(tmp_path / "store")
    for rank, other in enumerate(("images", "real")):
        (tmp_path / str(rank)).mkdir()
        (tmp_path / str(rank) / "set").symlink_to(place / other)
    run = program(
        IN_OWN_FOLDER, "compute", place / "real", "file:///proc/self/cwd/set/", *ARGUMENTS, ranks=2
    )
    assert "has different contents on rank 1" in run.stderr, run.stderr
