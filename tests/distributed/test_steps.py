"""Features of all sizes, whose step the run chooses: the same bits at any number of ranks, and after
a kill.
"""

from __future__ import annotations

import signal
from pathlib import Path

from support.command_line import Run
from support.pictures import make_pictures
from support.places import SUPPORT
from support.processes import wait_until
from support.ranks import RankServer

SCALED = str(SUPPORT / "scaled_networks.py")
NAMES = ("means", "large", "small")
THREE = ",".join(f"{SCALED}:{name}" for name in NAMES)
SETTINGS = ("--metrics", "fid,kid", "--kid-subset-size", 20, "--batch-size", 2, "--no-cache")


def test_networks_of_any_scale_have_the_same_bits_at_any_number_of_ranks(
    fidtool: Run, here: Run, rank_server: RankServer, tmp_path: Path
) -> None:
    """Also resumed by one process after a kill of two."""
    make_pictures(tmp_path / "real", 60, 0, sides=(32, 40))
    make_pictures(tmp_path / "fake", 63, 1)
    arguments: list[object] = ["compute", "real", "fake", "--extractor", THREE, *SETTINGS, "--json"]
    alone = here(*arguments)
    assert {f"fd_{name}" for name in NAMES} <= alone.metrics.keys()
    first, *others = (alone.json["protocol"], *alone.json["layers"].values())
    assert first["feature_step"] == 18
    assert [each["feature_step"] for each in others] == [6, 36]
    for ranks in (2, 3):
        assert fidtool(*arguments, ranks=ranks).metrics == alone.metrics
    passes = tmp_path / "passes"
    kept = [*arguments, "--checkpoint", "kept"]
    environment = {**rank_server.environment, "FORWARD_LOG": str(passes)}
    ranks = rank_server.ranks("fidtool", [kept] * 2, environment, tmp_path)
    wait_until(lambda: passes.exists() and passes.stat().st_size >= 80, "no rank is working")
    for rank in ranks:
        rank.send(signal.SIGKILL)
    assert {rank.wait() for rank in ranks} == {-signal.SIGKILL}
    resumed = here(*kept)
    assert resumed.json["run"]["images_resumed"] > 0
    assert resumed.metrics == alone.metrics


PLAIN = f"""
import sys

sys.path.insert(0, {str(SUPPORT)!r})
import fidtool
from PIL import Image
from scaled_networks import Means

module = Means(40.0)
module.eval()
module.factor.requires_grad_(False)
module.train()
found = fidtool.compute("real", "fake", extractor=module, batch_size=4, cache=False)
images = (Image.open(file) for file in sorted(__import__("pathlib").Path("real").iterdir()))
stream = fidtool.Images(images, sharded=False)
streamed = fidtool.compute(stream, "fake", extractor=module, batch_size=4, cache=False)
if found.run.world_size == 1 or __import__("os").environ["RANK"] == "0":
    step = found.definitions["features"].feature_step
    assert streamed.definitions["features"].feature_step == step
    print(found.results[0].metrics, step, module.training, module.factor.requires_grad)
"""


def test_a_plain_module_has_the_same_bits_at_any_number_of_ranks(
    program: Run, tmp_path: Path
) -> None:
    """Of images of several sizes, also of a stream whose first image is read early."""
    make_pictures(tmp_path / "real", 30, 0, sides=(32, 40))
    make_pictures(tmp_path / "fake", 33, 1)
    alone = program(PLAIN)
    assert alone.stdout.startswith("{'fd_Means': "), alone.stderr
    assert alone.stdout.endswith("} 6 True False\n")
    for ranks in (2, 3):
        assert program(PLAIN, ranks=ranks).stdout == alone.stdout
