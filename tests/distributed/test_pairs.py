"""Values of pairs have the same bits at any number of ranks, and after a kill."""

from __future__ import annotations

import signal
from pathlib import Path

from support.command_line import Run
from support.places import FAULTY, TINY
from support.processes import wait_until
from support.ranks import RankServer, outcomes
from support.reconstructions import make_reconstructions, write_backbone

SIZES = tuple((40 + number % 7, 36 + number % 5) for number in range(23))


def test_any_number_of_ranks_gives_the_same_bits(fidtool: Run, tmp_path: Path) -> None:
    make_reconstructions(tmp_path, SIZES)
    write_backbone(tmp_path / "backbone.pth")
    arguments = (
        "compute",
        "real",
        "recon",
        "--extractor",
        TINY,
        "--metrics",
        "fid,psnr,ssim,lpips",
        "--json",
    )
    arguments += ("--lpips-weights", "backbone.pth", "--no-cache", "--batch-size", 4)
    arguments += ("--psnr-channel", "y", "--psnr-border", 3, "--ssim-channel", "y")
    found, tables = [], []
    for ranks in (1, 2, 3):
        outcome = fidtool(*arguments, "--pairs-output", f"{ranks}.csv", ranks=ranks)
        assert (outcome.json["run"]["world_size"], outcome.json["run"]["images_computed"]) == (
            ranks,
            46,
        )
        found.append(outcome.json["results"])
        tables.append((tmp_path / f"{ranks}.csv").read_bytes())
    assert found[0] == found[1] == found[2]
    assert tables[0] == tables[1] == tables[2]
    assert {*found[0][0]["metrics"]} >= {"psnr", "ssim", "lpips", "lpips_std"}


def test_any_number_of_ranks_finds_another_order(fidtool: Run, tmp_path: Path) -> None:
    make_reconstructions(tmp_path, ((20, 16),) * 23)
    for number in range(23):
        (tmp_path / "recon" / f"{number:03}.png").rename(
            tmp_path / "recon" / f"{(number + 1) % 23:03}-next.png"
        )
    arguments = (
        "compute",
        "real",
        "recon",
        "--metrics",
        "psnr",
        "--json",
        "--pairs",
        "suffix:-next",
    )
    one, three = (fidtool(*arguments, ranks=ranks).json["results"] for ranks in (1, 3))
    assert one == three
    (found,) = [each for each in one[0]["diagnosis"]["findings"] if each["code"] == "other order"]
    assert found["count"] > 12


def test_two_ranks_are_killed_and_one_finishes(rank_server: RankServer, tmp_path: Path) -> None:
    """Finished pairs, and the features of both of their images, are not computed again."""
    make_reconstructions(tmp_path, ((24, 20),) * 40)
    passes = tmp_path / "passes"
    arguments = [
        "compute",
        "real",
        "recon",
        "--extractor",
        FAULTY,
        "--no-cache",
        "--batch-size",
        "1",
        "--json",
    ]
    arguments += ["--metrics", "fid,kid,psnr", "--kid-subset-size", "20"]
    slow = {**rank_server.environment, "FAULT_PACE": "0.02", "FORWARD_LOG": str(passes)}
    (whole,) = outcomes(
        rank_server.ranks("fidtool", [arguments], rank_server.environment, tmp_path)
    )
    ranks = rank_server.ranks("fidtool", [[*arguments, "--checkpoint", "kept"]] * 2, slow, tmp_path)
    wait_until(lambda: passes.exists() and passes.stat().st_size >= 36, "no rank is working")
    for rank in ranks:
        rank.send(signal.SIGKILL)
    for rank in ranks:
        rank.wait()
    (resumed,) = outcomes(
        rank_server.ranks("fidtool", [[*arguments, "--checkpoint", "kept"]], slow, tmp_path)
    )
    assert resumed.json["results"] == whole.json["results"]
    assert 0 < resumed.json["run"]["images_resumed"] < 80
    assert resumed.json["run"]["images_resumed"] + resumed.json["run"]["images_computed"] == 80
    changed = sorted((tmp_path / "real").iterdir())[7]
    # Of REAL, whose images are in the parts of FAKE.
    changed.write_bytes(changed.read_bytes() + b"\0")
    (again,) = outcomes(
        rank_server.ranks("fidtool", [[*arguments, "--checkpoint", "kept"]], slow, tmp_path)
    )
    assert again.json["run"]["images_computed"] == 2
