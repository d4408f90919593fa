"""Mean, covariance and distance are bit-identical at any world size, number of workers and launcher."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fidtool as package
from fidtool.features.models.inception_weights import converted_path, digest, load_weights, offline_path
from support.command_line import Outcome, Run
from support.pictures import make_pictures
from support.places import TINY
from support.processes import PATIENCE, free_port
from support.ranks import RankServer, exported, finish, own_interpreters

MIXED = (31, 40, 57)


def statistics_bits(path: Path) -> tuple[bytes, bytes, int]:
    """The bytes of a statistics file's mean and covariance."""
    statistics = package.read_statistics(path)
    assert statistics.count is not None
    return statistics.mu.tobytes(), statistics.sigma.tobytes(), statistics.count


def by_srun(environment: dict[str, str], arguments: list[str], folder: Path, tasks: int) -> Outcome:
    """Runs these processes in separate interpreters. All must succeed; returns rank zero's output."""
    environments = [{**environment, **own} for own in slurm(tasks)]
    started = own_interpreters(["-m", "fidtool", *arguments], environments, folder)
    try:
        printed = [process.communicate(timeout=PATIENCE) for process in started]
    finally:
        for process in started:
            process.kill()  # no effect if it has exited
    assert [process.returncode for process in started] == [0] * tasks, printed
    assert all(stdout == "" for stdout, _ in printed[1:]), "only rank zero prints"
    return Outcome(0, *printed[0])


def slurm(tasks: int) -> list[dict[str, str]]:
    """The variables that srun sets for each of ``tasks`` processes on one node."""
    job = {"SLURM_JOB_ID": str(free_port()), "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "node[7-9]"}
    counts = {"SLURM_NTASKS": str(tasks), "SLURM_STEP_NUM_TASKS": str(tasks), "SLURM_STEP_TASKS_PER_NODE": str(tasks)}
    return [{**job, **counts, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)} for rank in range(tasks)]


def forked(server: RankServer, tmp_path: Path, arguments: list[str], ranks: int | list[dict[str, str]]) -> Outcome:
    """Starts one process per rank with these variables, or torchrun. All must succeed; returns rank zero's output."""
    places = ranks if isinstance(ranks, list) else exported(ranks) if ranks > 1 else [{}]
    started = [server.launch("fidtool", arguments, {**server.environment, **own}, tmp_path) for own in places]
    assert server.wait(started, PATIENCE) == [0] * len(places), [rank.stderr for rank in started]
    assert all(rank.stdout == "" for rank in started[1:]), "only rank zero prints"
    return Outcome(0, started[0].stdout, started[0].stderr)


def test_any_launcher_gives_the_same_bits(
    fidtool: Run, rank_server: RankServer, environment: dict[str, str], tmp_path: Path
) -> None:
    """37 images are not a multiple of batches of 4. Some of the ranks are separate interpreters."""
    count = 37
    real = make_pictures(tmp_path / "real", count, 1, sides=MIXED)
    fake = make_pictures(tmp_path / "fake", count, 2, ".jpg", sides=MIXED)
    common = [str(real), str(fake), "--extractor", TINY, "--batch-size", "4", "--no-cache", "--json", "--quiet"]
    runs: dict[str, Outcome] = {
        "plain": fidtool("compute", *common),
        "2 workers": fidtool("compute", *common, "--num-workers", 2),
        "torchrun 1": fidtool("compute", *common, ranks=1),
        "torchrun 2, 2 workers": fidtool("compute", *common, "--num-workers", 2, ranks=2, fresh=True),
        "torchrun 3": fidtool("compute", *common, ranks=3),
        "torchrun 4": fidtool("compute", *common, ranks=4),
        "slurm 2": by_srun(environment, ["compute", *common], tmp_path, 2),
        "exported 2": forked(rank_server, tmp_path, ["compute", *common], 2),
    }
    assert {name: run.status for name, run in runs.items()} == dict.fromkeys(runs, 0), runs
    for name, run in runs.items():
        record = run.json["run"]
        size = int(next((word for word in name.split() if word.strip(",").isdigit()), "1").strip(","))
        assert record["world_size"] == (size if name != "2 workers" else 1)
        assert record["images_computed"] == 2 * count, f"{name} used a cache"
        assert record["forward_passes"] == 2 * -(-count // 4)
        assert run.json["results"][0]["count"] == {"real": count, "fake": count}
    assert len({run.fid.hex() for run in runs.values()}) == 1, {name: run.fid for name, run in runs.items()}
    assert len({run.json["run"]["probe"] for run in runs.values()}) == 1


@pytest.mark.parametrize("count", [1, 3, 29])
def test_statistics_have_the_same_bits_at_any_world_size(rank_server: RankServer, tmp_path: Path, count: int) -> None:
    """Batches of one image if there are fewer images than ranks; one image has no covariance."""
    images = make_pictures(tmp_path / "images", count, sides=MIXED)
    settings = ["--extractor", TINY, "--batch-size", "3" if count > 3 else "1", "--no-cache"]
    for ranks in (1, 2, 3, 4):
        forked(rank_server, tmp_path, ["stats", str(images), "-o", f"{ranks}.npz", *settings], ranks)
    forked(rank_server, tmp_path, ["stats", str(images), "-o", "workers.npz", *settings, "--num-workers", "2"], 2)
    forked(rank_server, tmp_path, ["stats", str(images), "-o", "slurm.npz", *settings, "--quiet"], slurm(2))
    written = list(tmp_path.glob("*.npz"))
    assert len(written) == 6
    bits = {statistics_bits(file) for file in written}
    assert len(bits) == 1
    assert next(iter(bits))[2] == count


def test_inception_has_the_same_bits_at_any_world_size(fidtool: Run, tmp_path: Path) -> None:
    """With Inception: the number of forward threads per rank, one or two, does not affect the features."""
    real = make_pictures(tmp_path / "real", 7, 1, sides=MIXED)
    fake = make_pictures(tmp_path / "fake", 5, 2, sides=MIXED)
    common = [str(real), str(fake), "--batch-size", "2", "--no-cache", "--json", "--quiet"]
    sent = {"FIDTOOL_CACHE": str(tmp_path / "empty")}  # the ranks cannot read the weights there
    runs = [
        fidtool("compute", *common),
        fidtool("compute", *common, "--weights", str(offline_path()), "--num-workers", 2, ranks=4, **sent),
        fidtool("compute", *common, ranks=2, **_with_other_weights(tmp_path)),
    ]
    assert [run.stderr for run in runs if run.status] == []
    assert [run.json["run"]["world_size"] for run in runs] == [1, 4, 2]
    assert {run.json["run"]["images_computed"] for run in runs} == {12}
    assert len({run.fid.hex() for run in runs}) == 1, [run.fid for run in runs]


def _with_other_weights(folder: Path) -> dict[str, str]:
    """Return variables and a cache with weights that rank zero does not use. Other ranks then receive rank zero's."""
    cache = folder / "other"
    (cache / "weights").mkdir(parents=True)
    known = load_weights(None, print)
    state = {**known.state, "Conv2d_1a_3x3.conv.weight": known.state["Conv2d_1a_3x3.conv.weight"] + 1e-3}
    torch.save({"state": state, "sha256": digest(state)}, cache / "weights" / converted_path().name)
    return {"FIDTOOL_CACHE": str(cache), "FIDTOOL_WEIGHTS": str(offline_path())}


def test_ranks_that_compute_different_bits_are_reported(fidtool: Run, tmp_path: Path) -> None:
    """A network whose output depends on the rank simulates two kinds of GPU in one run."""
    uneven = tmp_path / "uneven.py"
    uneven.write_text(
        "import os, torch, fidtool\n"
        "class Uneven(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x.mean((2, 3)) * (1 + 1e-3 * int(os.environ.get('RANK', 0)))\n"
        "def network():\n"
        "    return fidtool.Network(Uneven(), input_size=8)\n"
    )
    images = make_pictures(tmp_path / "images", 12)
    run = fidtool("compute", images, images, "--extractor", f"{uneven}:network", "--json", ranks=2)
    assert run.status == 0
    (warning,) = run.json["run"]["warnings"]
    assert "rank 1" in warning
    assert "different bits than rank 0" in warning
    assert run.stderr.count(warning) == 1


def test_the_number_of_images_is_not_padded_to_the_ranks(fidtool: Run, tmp_path: Path) -> None:
    """One image of 7 is white, the rest black: sampler padding would count some twice and move the mean."""
    images = tmp_path / "images"
    make_pictures(images, 7)
    for number, file in enumerate(sorted(images.iterdir())):
        Image.new("RGB", (16, 16), "white" if number == 3 else "black").save(file)
    mean = tmp_path / "mean.py"
    mean.write_text(
        "import torch, fidtool\n"
        "class Mean(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x.mean((2, 3))\n"
        "def network():\n"
        "    return fidtool.Network(Mean(), input_size=8, mean=(0, 0, 0), std=(1, 1, 1))\n"
    )
    written = tmp_path / "stats.npz"
    arguments = ["--extractor", f"{mean}:network", "--batch-size", "2", "--no-cache"]
    assert fidtool("stats", images, "-o", written, *arguments, ranks=3).status == 0
    statistics = package.read_statistics(written)
    np.testing.assert_allclose(statistics.mu, 1 / 7, rtol=1e-15)
    np.testing.assert_allclose(statistics.sigma, 1 / 7, rtol=1e-14)


def test_inside_a_program_with_a_process_group(
    tmp_path: Path, environment: dict[str, str], fidtool: Run, rank_server: RankServer
) -> None:
    """As in a training script, the group is used and left open. Every rank gets the same evaluation."""
    real, fake = make_pictures(tmp_path / "real", 9, 1), make_pictures(tmp_path / "fake", 9, 2)
    script = tmp_path / "training.py"
    script.write_text(
        "import sys, torch, torch.distributed as dist, fidtool\n"
        "dist.init_process_group('gloo')\n"
        "settings = dict(extractor=sys.argv[1], batch_size=2, cache=False)\n"
        "values = [fidtool.compute('real', 'fake', **settings) for _ in range(2)]\n"
        "count = torch.ones(1)\n"
        "dist.all_reduce(count)\n"
        "assert values[0].run.world_size == int(count) == 3\n"
        "line = f'{dist.get_rank()} {values[0].frechet_distance.hex()} {values[1].frechet_distance.hex()}\\n'\n"
        "sys.stdout.write(line)\n"  # in one write: the ranks share the pipe
        "dist.destroy_process_group()\n"
    )
    done = finish(rank_server, rank_server.quick_torchrun(3, "script", [script, TINY], environment, tmp_path))
    assert done.status == 0, done.stderr
    lines = sorted(line.split() for line in done.stdout.splitlines())
    assert [rank for rank, *_ in lines] == ["0", "1", "2"]
    expected = fidtool("compute", real, fake, "--extractor", TINY, "--batch-size", 2, "--json").fid.hex()
    assert {value for _, *values in lines for value in values} == {expected}
