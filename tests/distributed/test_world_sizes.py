"""Mean, covariance and distance are bit-identical at any world size, number of workers and
launcher.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fidtool as package
from fidtool.features.models.inception import converted_path, load_weights, offline_path
from support.bad_sets import BAD, SKIP, make_sets
from support.command_line import Outcome, Run, changed
from support.degenerate import distinct, same_seed_on_ranks
from support.feature_sets import mixture
from support.influences import with_harmful
from support.pictures import make_pictures
from support.places import EXAMPLES, TINY
from support.processes import free_port
from support.ranks import RankServer, outcomes

MIXED = (31, 40, 57)
SLICED = f"{EXAMPLES / 'sliced.py'}:Sliced"


def statistics_bits(path: Path) -> tuple[bytes, bytes, int]:
    """The bytes of a statistics file's mean and covariance."""
    statistics = package.read_statistics(path)
    assert statistics.count is not None
    return statistics.mu.tobytes(), statistics.sigma.tobytes(), statistics.count


def slurm(tasks: int) -> list[dict[str, str]]:
    """The variables that srun sets for each of ``tasks`` processes on one node."""
    job = {
        "SLURM_JOB_ID": str(free_port()),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "node[7-9]",
    }
    counts = {
        "SLURM_NTASKS": str(tasks),
        "SLURM_STEP_NUM_TASKS": str(tasks),
        "SLURM_STEP_TASKS_PER_NODE": str(tasks),
    }
    return [
        {**job, **counts, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}
        for rank in range(tasks)
    ]


def test_any_launcher_gives_the_same_bits(
    fidtool: Run, rank_server: RankServer, environment: dict[str, str], tmp_path: Path
) -> None:
    """37 images are not a multiple of batches of 4."""
    count = 37
    real = make_pictures(tmp_path / "real", count, 1, sides=MIXED)
    fake = make_pictures(tmp_path / "fake", count, 2, ".jpg", sides=MIXED)
    command = [
        "compute",
        str(real),
        str(fake),
        "--extractor",
        TINY,
        "--batch-size",
        "4",
        "--no-cache",
        "--json",
    ]
    exported = rank_server.ranks("fidtool", [command] * 2, environment, tmp_path)
    srun = [
        rank_server.launch("fidtool", command, {**environment, **own}, tmp_path) for own in slurm(2)
    ]
    runs: list[tuple[int, Outcome]] = [
        (1, fidtool(*command)),
        (1, fidtool(*command, ranks=1)),
        (2, fidtool(*command, "--num-workers", 2, ranks=2)),
        (3, fidtool(*command, ranks=3)),
        (2, outcomes(srun)[0]),
        (2, outcomes(exported)[0]),
    ]
    for size, run in runs:
        assert run.status == 0, run.stderr
        record = run.json["run"]
        assert record["world_size"] == size
        assert record["images_computed"] == 2 * count, "it used a cache"
        assert record["forward_passes"] == 2 * -(-count // 4)
        assert run.json["results"][0]["count"] == {"real": count, "fake": count}
    assert len({run.fid.hex() for _, run in runs}) == 1, [run.fid for _, run in runs]
    assert len({run.json["run"]["probe"] for _, run in runs}) == 1
    assert srun[1].stdout == exported[1].stdout == "", "only rank zero prints"


@pytest.mark.parametrize("count", [1, 29])
def test_statistics_have_the_same_bits_at_any_world_size(
    fidtool: Run, tmp_path: Path, count: int
) -> None:
    """Also with fewer images than ranks; one image has no covariance."""
    images = make_pictures(tmp_path / "images", count, sides=MIXED)
    settings = ["stats", images, "--extractor", TINY, "--batch-size", 3, "--no-cache"]
    assert fidtool(*settings, "-o", "alone.npz").status == 0
    assert fidtool(*settings, "-o", "ranks.npz", ranks=3).status == 0
    alone, ranks = (statistics_bits(tmp_path / name) for name in ("alone.npz", "ranks.npz"))
    assert ranks == alone
    assert alone[2] == count


def test_everything_has_the_same_bits(fidtool: Run, here: Run, tmp_path: Path) -> None:
    """All metrics, error bars, influence, copies, crops and a skipped file; the ranks keep the
    features on disk.
    """
    real = distinct(tmp_path / "real", 60, first=10_000)
    fake = same_seed_on_ranks(tmp_path / "fake", 3, 20, lambda rank, i: f"rank{rank}_{i}.png")
    (fake / "rank2_7.png").write_bytes(b"no image")
    other = with_harmful(tmp_path / "other", 57, 3)
    arguments = [
        "compute",
        real,
        fake,
        other,
        "--extractor",
        TINY,
        "--batch-size",
        4,
        "--no-cache",
        "--json",
    ]
    arguments += [
        "--metrics",
        f"all,{SLICED}",
        "--uncertainty",
        "--influence",
        "--crop-fake",
        "tensor-center:24",
    ]
    arguments += ["--on-error", "skip", "--max-skip", 0.1]
    report = tmp_path / "report.html"
    arguments += ["--report", report]
    one = here(*arguments).json
    report.unlink()
    assert one["results"][0]["diagnosis"]["duplicates"]["fake"]["multiplicities"] == {
        "2": 1,
        "3": 19,
    }
    assert {"kid", "precision", "mind", "mifid", "vendi", "authpct", "sliced"} <= {
        name.partition("_")[0] for name in one["results"][0]["metrics"]
    }
    run = fidtool(*arguments, ranks=3, FIDTOOL_FEATURE_BYTES="0")
    several = run.json
    for key in ("results", "differences", "settings"):
        assert several[key] == one[key], key
    assert several["run"]["notes"] == one["run"]["notes"]
    assert run.stderr.count("omits 'sfid'") == run.stderr.count("rank2_7.png: ") == 1
    assert "<figcaption>distance " in report.read_text()


def test_features_in_files_give_the_same_bits(fidtool: Run, here: Run, tmp_path: Path) -> None:
    """Only rank zero reads the files. There are enough features for several blocks a rank."""
    for name, seed in (("real.npz", 1), ("fake.npz", 2)):
        np.savez(tmp_path / name, feats=mixture(2500, 24, seed))
    arguments = ["compute", "real.npz", "fake.npz", "--kid-subset-size", 150, "--json"]
    arguments += ["--metrics", "fid,kid,prdc,mind,mifid,vendi,authpct", "--kid-kernel", "rbf"]
    alone = here(*arguments).metrics
    assert len(alone) == 13
    for ranks in (2, 3):
        assert fidtool(*arguments, ranks=ranks).metrics == alone


def test_check_has_the_same_findings(fidtool: Run, here: Run, tmp_path: Path) -> None:
    fake = same_seed_on_ranks(tmp_path / "fake", 4, 20, lambda rank, i: f"rank{rank}_{i}.png")
    (fake / "x.png").write_bytes(b"no image")
    arguments = (
        "check",
        fake,
        "--against",
        distinct(tmp_path / "real", 40, 999),
        "--json",
        "--strict",
    )
    expected = here(*arguments)
    findings = expected.json["images"]["findings"] + expected.json["between"]
    assert {each["code"] for each in findings} == {"unreadable", "copies", "not compared"}
    assert fidtool(*arguments, ranks=3).json == expected.json


def test_too_many_unreadable_files_are_refused_once(fidtool: Run, tmp_path: Path) -> None:
    real, fake = make_sets(tmp_path)
    run = fidtool("compute", real, fake, *changed(SKIP, "--max-skip", "0.139"), ranks=2)
    (error,) = [line for line in run.stderr.splitlines() if line.startswith("error: ")]
    assert "of 43 files" in error
    assert "--max-skip" in error
    assert sum(name in error for name in BAD) >= 3, "the names of the files"


def test_inception_has_the_same_bits_at_any_world_size(fidtool: Run, tmp_path: Path) -> None:
    """With one or two forward threads a rank. Rank 1 finds other weights, but receives rank
    zero's.
    """
    real = make_pictures(tmp_path / "real", 4, 1, sides=MIXED)
    fake = make_pictures(tmp_path / "fake", 3, 2, sides=MIXED)
    common = [str(real), str(fake), "--batch-size", "2", "--no-cache", "--json", "--quiet"]
    runs = [
        fidtool("compute", *common),
        fidtool("compute", *common, "--num-workers", 2, ranks=2, **_with_other_weights(tmp_path)),
    ]
    assert [run.stderr for run in runs if run.status] == []
    assert [run.json["run"]["world_size"] for run in runs] == [1, 2]
    assert {run.json["run"]["images_computed"] for run in runs} == {7}
    assert len({run.fid.hex() for run in runs}) == 1, [run.fid for run in runs]


def _with_other_weights(folder: Path) -> dict[str, str]:
    """Return variables and a cache with weights that rank zero does not use. Other ranks then
    receive rank zero's.
    """
    cache = folder / "other"
    (cache / "weights").mkdir(parents=True)
    known = load_weights(None, print)
    state = {
        **known.state,
        "Conv2d_1a_3x3.conv.weight": known.state["Conv2d_1a_3x3.conv.weight"] + 1e-3,
    }
    torch.save({"state": state}, cache / "weights" / converted_path().name)
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
    assert "rank 1" in warning["message"]
    assert "different bits than rank 0" in warning["message"]
    assert run.stderr.count(warning["message"]) == 1


def test_the_number_of_images_is_not_padded_to_the_ranks(fidtool: Run, tmp_path: Path) -> None:
    """One image of 7 is white, the rest black: sampler padding would count some twice and move the
    mean.
    """
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


@pytest.mark.skipif(offline_path() is None, reason="needs fidtool[offline]")
def test_several_ranks_write_a_file_for_another_project(
    fidtool: Run, here: Run, tmp_path: Path
) -> None:
    """The same statistics and the same sample of the images as one process."""
    images = make_pictures(tmp_path / "images", 5, sides=(16,))
    arguments = ("--layout", "adm", "--crop", "adm:16", "--images", 3, "--no-cache")
    done = fidtool("stats", images, "-o", tmp_path / "two.npz", *arguments, ranks=2)
    assert done.stderr.count("3 of them in arr_0") == 1, done.stderr
    assert here("stats", images, "-o", "one.npz", *arguments).status == 0
    with np.load(tmp_path / "one.npz") as one, np.load(tmp_path / "two.npz") as two:
        assert one.files == two.files
        assert all(np.array_equal(one[name], two[name]) for name in one.files)
