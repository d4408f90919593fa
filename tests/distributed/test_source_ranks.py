"""Ranks that see different contents, on machines without a shared file system: always an error, never a wrong value."""

from __future__ import annotations

import re
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from support.places import TINY
from support.processes import PATIENCE
from support.ranks import Rank, RankServer, exported
from support.source_forms import make_squares, names_in, pixels_in, write_list, write_tar, write_zip

COUNT = 24
RANKS = 2


def make_bitmaps(folder: Path, seed: int) -> None:
    """Write bitmaps, which all have the same size in bytes."""
    pictures = make_squares(folder / "png", COUNT, seed)
    (folder / "images").mkdir()
    for number, name in enumerate(names_in(pictures)):
        Image.open(pictures / name).save(folder / "images" / f"{number:03}.bmp")
    shutil.rmtree(pictures)


def make_folder(folder: Path, seed: int) -> None:
    make_squares(folder / "images", COUNT, seed)


def make_folder_with_missing_files(folder: Path, seed: int) -> None:
    """Write images, and for rank 1 delete every third file."""
    make_squares(folder / "images", COUNT, 0)
    if seed:
        for name in names_in(folder / "images")[2::3]:
            (folder / "images" / name).unlink()


def make_list(folder: Path, seed: int) -> None:
    make_squares(folder / "pictures", COUNT, seed)
    write_list(folder / "images.txt", folder / "pictures", names_in(folder / "pictures"))


def make_array(folder: Path, seed: int) -> None:
    pictures = make_squares(folder / "pictures", COUNT, seed)
    np.save(folder / "images.npy", pixels_in(pictures))


def make_packed_array(folder: Path, seed: int) -> None:
    """Write noise, whose compressed size does not depend on its content."""
    values = np.random.RandomState(seed).randint(0, 256, (COUNT, 24, 24, 3)).astype(np.uint8)
    np.savez_compressed(folder / "images.npz", values)


def make_zip(folder: Path, seed: int) -> None:
    pictures = make_squares(folder / "pictures", COUNT, seed)
    write_zip(folder / "images.zip", pictures, names_in(pictures))


def make_tar(folder: Path, seed: int) -> None:
    make_bitmaps(folder / "bitmaps", seed)
    with tarfile.open(folder / "images.tar", "w") as archive:
        archive.add(folder / "bitmaps/images", "images")


def make_tar_gz(folder: Path, seed: int) -> None:
    pictures = make_squares(folder / "pictures", COUNT, seed)
    write_tar(folder / "images.tar.gz", pictures, names_in(pictures), "w:gz")


CASES: dict[str, tuple[str, Callable[[Path, int], None]]] = {
    "a folder": ("images", make_folder),
    "a folder of bitmaps": ("images", make_bitmaps),
    "a folder with files missing": ("images", make_folder_with_missing_files),
    "a list": ("images.txt", make_list),
    "an array": ("images.npy", make_array),
    "a packed array": ("images.npz", make_packed_array),
    "a zip": ("images.zip", make_zip),
    "a tar": ("images.tar", make_tar),
    "a tar.gz": ("images.tar.gz", make_tar_gz),
}


def start(server: RankServer, environment: dict[str, str], places: list[Path], *arguments: object) -> list[Rank]:
    """Runs the same command on two ranks, each in its own folder."""
    own = zip(places, exported(RANKS), strict=True)
    return [server.launch("fidtool", arguments, {**environment, **rank}, place) for place, rank in own]


def run_apart(server: RankServer, environment: dict[str, str], places: list[Path], *arguments: object) -> list[str]:
    """Runs the command, which must fail on both ranks. Returns their stderr."""
    ranks = start(server, environment, places, *arguments)
    assert server.wait(ranks, PATIENCE) == [2] * RANKS, [(rank.stdout, rank.stderr) for rank in ranks]
    assert all(rank.stdout == "" for rank in ranks)
    return [rank.stderr for rank in ranks]


@pytest.fixture
def places(tmp_path: Path) -> list[Path]:
    """The folders of the ranks."""
    found = [tmp_path / f"machine{rank}" for rank in range(RANKS)]
    for place in found:
        place.mkdir()
        make_squares(place / "real", COUNT, 9)
    return found


@pytest.mark.parametrize(("case", "command"), [*((case, "compute") for case in CASES), ("a folder", "check")])
def test_ranks_with_different_contents_are_refused(
    rank_server: RankServer, environment: dict[str, str], places: list[Path], case: str, command: str
) -> None:
    name, make = CASES[case]
    for seed, place in enumerate(places):
        make(place, seed)
    arguments = {"compute": ["real", name, "--extractor", TINY, "--no-cache"], "check": [name]}[command]
    first, second = run_apart(rank_server, environment, places, command, *arguments)
    assert second == ""
    (line,) = [line for line in first.splitlines() if line.startswith("error: ")]
    assert (name if case != "a list" else "pictures/") in line
    assert re.search(r"on rank 1|rank 1 on", line), line
    assert "all ranks must see the same files" in line


def test_skipping_does_not_hide_that_files_are_missing_on_a_rank(
    rank_server: RankServer, environment: dict[str, str], places: list[Path]
) -> None:
    for seed, place in enumerate(places):
        make_folder_with_missing_files(place, seed)
    arguments = ("compute", "real", "images", "--extractor", TINY, "--on-error", "skip", "--max-skip", "1")
    first, _ = run_apart(rank_server, environment, places, *arguments)
    assert "exists on rank 0 but not on this rank" in first


def test_local_copies_on_every_machine_are_accepted(
    rank_server: RankServer, environment: dict[str, str], places: list[Path]
) -> None:
    """Copied to local disks: equal contents, different time stamps."""
    for place in places:
        make_zip(place, 3)
    arguments = ("compute", "real", "images.zip", "--extractor", TINY, "--no-cache")
    ranks = start(rank_server, environment, places, *arguments)
    assert rank_server.wait(ranks, PATIENCE) == [0, 0], ranks[0].stderr
    assert ranks[0].stdout.startswith("FD (")
