"""Parts of a set, and its new images, on several ranks: the same bits, also of a part that was
killed.
"""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import numpy as np

from support.command_line import Run
from support.pictures import make_pictures
from support.places import FAULTY, TINY
from support.processes import wait_until
from support.ranks import RankServer

OF_EACH = ("--metrics", "fid,kid", "--batch-size", 2, "--no-cache")


def arrays(file: Path) -> dict[str, bytes]:
    with np.load(file) as archive:
        return {name: array.tobytes() for name, array in archive.items()}


def test_parts_of_any_world_size_merge(fidtool: Run, here: Run, tmp_path: Path) -> None:
    fake = make_pictures(tmp_path / "fake", 41, 1)
    settings = (*OF_EACH, "--extractor", TINY)
    assert here("stats", fake, "-o", "whole.npz", *settings).status == 0
    for number, ranks in enumerate((3, 1, 2), 1):
        done = fidtool(
            "stats", fake, "-o", f"{number}.npz", "--part", f"{number}/3", *settings, ranks=ranks
        )
        assert done.status == 0, done.stderr
    done = fidtool("merge", "2.npz", "3.npz", "1.npz", "-o", "merged.npz", ranks=2)
    assert done.status == 0, done.stderr
    assert arrays(tmp_path / "merged.npz") == arrays(tmp_path / "whole.npz")


def test_new_images_on_two_ranks(fidtool: Run, here: Run, tmp_path: Path) -> None:
    """Some of the others have another mtime, and one is damaged in the end: all ranks end."""
    fake = make_pictures(tmp_path / "fake", 30, 1)
    settings = ("stats", fake, *OF_EACH, "--extractor", TINY)
    assert here(*settings, "-o", "old.npz").status == 0
    make_pictures(tmp_path / "more", 45, 1)
    for file in (tmp_path / "more").iterdir():
        if file.name > "00024":
            shutil.copy(file, fake)
    done = fidtool(*settings, "-o", "new.npz", "--since", "old.npz", ranks=2)
    assert done.status == 0, done.stderr
    assert "30 images are already in old.npz, 15 are new" in done.stderr
    assert here(*settings, "-o", "fresh.npz").status == 0
    assert arrays(tmp_path / "new.npz") == arrays(tmp_path / "fresh.npz")
    (fake / "00002.png").write_bytes((fake / "00003.png").read_bytes())
    done = fidtool(*settings, "-o", "x.npz", "--since", "new.npz", ranks=2)
    assert done.status == 1
    assert "1 image of " in done.stderr
    assert "changed after new.npz was computed (00002.png)" in done.stderr


def test_a_killed_part_is_done_again(
    fidtool: Run, here: Run, rank_server: RankServer, tmp_path: Path
) -> None:
    """From its checkpoint, with another number of ranks, and alone: the other part is as it was."""
    fake, passes = make_pictures(tmp_path / "fake", 120, 1), tmp_path / "passes"
    settings: list[object] = ["stats", fake, *OF_EACH, "--extractor", FAULTY]
    assert here(*settings, "--part", "2/2", "-o", "2.npz").status == 0
    first: list[object] = [*settings, "--part", "1/2", "-o", "1.npz", "--checkpoint", "kept"]
    environment = {**rank_server.environment, "FAULT_PACE": "0.02", "FORWARD_LOG": str(passes)}
    ranks = rank_server.ranks("fidtool", [first] * 2, environment, tmp_path)
    wait_until(lambda: passes.exists() and passes.stat().st_size >= 20, "no rank is working")
    for rank in ranks:
        rank.send(signal.SIGKILL)
    assert {rank.wait() for rank in ranks} == {-signal.SIGKILL}
    assert not (tmp_path / "1.npz").exists()
    again = here(*first)
    assert again.status == 0, again.stderr
    assert "kept already has " in again.stderr
    assert here("merge", "2.npz", "1.npz", "-o", "merged.npz").status == 0
    assert fidtool(*settings, "-o", "whole.npz", ranks=3).status == 0
    assert arrays(tmp_path / "merged.npz") == arrays(tmp_path / "whole.npz")
