"""The scripts: the CI gate's verdicts and exit status, and the benchmarks' smallest runs (never a time)."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from fidtool.features.models.inception_weights import offline_path
from support.command_line import frechet
from support.pictures import make_pictures
from support.places import FD, SCRIPTS, TINY
from support.processes import PATIENCE

Gate = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def gate(environment: dict[str, str], tmp_path: Path) -> Gate:
    """Runs ci_gate.sh with the small network, in ``tmp_path``."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"

    def run(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", str(SCRIPTS / "ci_gate.sh"), *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            env={**environment, "PATH": path, **variables},
            cwd=tmp_path,
        )

    return run


@pytest.fixture
def sets(tmp_path: Path) -> tuple[Path, Path]:
    """Two sets that differ, in folders whose names need quoting."""
    return make_pictures(tmp_path / "real ones", 20, seed=1), make_pictures(tmp_path / "$fake*", 20, seed=2)


OPTIONS = ("--extractor", TINY, "--no-cache", "--quiet")


def test_gate_passes(gate: Gate, sets: tuple[Path, Path], tmp_path: Path) -> None:
    done = gate(*sets, 1000, *OPTIONS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{FD}: ")
    assert "gate PASSED: at most 1000 (details in fid.json)" in done.stderr
    report = json.loads((tmp_path / "fid.json").read_text())
    assert report["exit"]["code"] == 0
    assert 0 < frechet(report["results"][0]) < 1000


def test_missed_gate_is_status_3(gate: Gate, sets: tuple[Path, Path], tmp_path: Path) -> None:
    done = gate(*sets, 0, *OPTIONS, "--json", FID_JSON="reports.json")
    assert done.returncode == 3, done.stderr
    assert "gate MISSED: above 0 (details in reports.json)" in done.stderr
    report = json.loads((tmp_path / "reports.json").read_text())
    assert report["exit"]["code"] == 3
    assert json.loads(done.stdout) == report, "the verdict must not mix with the JSON on stdout"


def test_bad_input_is_status_2_and_no_verdict(gate: Gate, sets: tuple[Path, Path], tmp_path: Path) -> None:
    stale = tmp_path / "fid.json"
    stale.write_text('{"exit": {"code": 0}}')
    (sets[1] / "00003.png").write_bytes(b"no picture")
    done = gate(*sets, 1000, *OPTIONS)
    assert done.returncode == 2, done.stderr
    assert "00003.png" in done.stderr
    assert "gate NOT EVALUATED: bad usage or bad input" in done.stderr
    assert json.loads(stale.read_text())["exit"]["code"] == 2


@pytest.mark.parametrize("limit", ["ten", "nan"])
def test_bad_limit_leaves_no_earlier_result(gate: Gate, sets: tuple[Path, Path], tmp_path: Path, limit: str) -> None:
    stale = tmp_path / "fid.json"
    stale.write_text('{"exit": {"code": 0}}')
    done = gate(*sets, limit, *OPTIONS)
    assert done.returncode == 2, done.stderr
    assert "NOT EVALUATED" in done.stderr
    assert not stale.exists() or json.loads(stale.read_text())["exit"]["code"] == 2


def test_usage_of_the_gate(gate: Gate) -> None:
    done = gate("real", "fake")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: ")


def test_a_run_that_fails_otherwise_keeps_its_status(gate: Gate, sets: tuple[Path, Path], tmp_path: Path) -> None:
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    stand_in = bin_folder / "fidtool"
    stand_in.write_text("#!/bin/sh\nexit 1\n")
    stand_in.chmod(0o755)
    done = gate(*sets, 1000, PATH=f"{bin_folder}{os.pathsep}{os.environ['PATH']}")
    assert done.returncode == 1
    assert "gate NOT EVALUATED: fidtool failed (status 1)" in done.stderr


def bench(environment: dict[str, str], folder: Path, *arguments: str) -> tuple[int, str, dict[str, Any]]:
    """Runs bench.py; its status, stdout and JSON."""
    file = folder / "bench.json"
    command = [sys.executable, str(SCRIPTS / "bench.py"), *arguments, "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment, cwd=folder)
    assert file.is_file(), done.stderr
    document: dict[str, Any] = json.loads(file.read_text())
    machine = document["machine"]
    assert machine["cores"] >= 1
    assert {"python", "torch", "fidtool"} <= set(machine["versions"])
    assert machine["cpu"] in done.stdout
    assert document["schema"] == 1
    return done.returncode, done.stdout, document


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="what a process's peak memory means is the kernel's matter")
def test_memory_benchmark(environment: dict[str, str], tmp_path: Path) -> None:
    status, stdout, document = bench(environment, tmp_path, "memory", "--small", "20", "--large", "40")
    assert document["benchmark"] == "memory"
    results = document["results"]
    assert [run["images"] for run in results["runs"]] == [20, 40]
    for run in results["runs"]:
        # More than an interpreter, so that it is fidtool's memory and not the benchmark's own.
        assert 100 * 2**20 < run["peak_bytes"] < 8 * 2**30
        assert run["fid"] > 0
    assert results["ratio"] == pytest.approx(1.0, abs=0.5)
    assert results["pass"] is (results["ratio"] <= results["allowed_ratio"])
    assert status == (0 if results["pass"] else 1)
    assert ("PASS: " if results["pass"] else "FAIL: ") in stdout


@pytest.mark.slow
def test_end_to_end_benchmark(environment: dict[str, str], tmp_path: Path) -> None:
    """A peer of another make, mixed sizes, two ranks: one run each, the limits beside them, a picture."""
    if offline_path() is None:
        pytest.skip("needs fidtool[offline]")
    arguments = ["end-to-end", "--count", "8", "--side", "0", "--tool", "torchmetrics", "--num-workers", "0"]
    arguments += ["--ranks", "2", "--limit-seconds", "0.1", "--plot", "speed.png", "--device", "cpu"]
    status, stdout, document = bench(environment, tmp_path, *arguments)
    assert status == 0
    results = document["results"]
    ours, ranks, peer = results["tools"]
    assert [ours["tool"], ranks["tool"], peer["tool"]] == [
        *("fidtool", "fidtool, torchrun, 2 ranks", "torchmetrics, 0 workers")
    ]
    assert ours["fid"] == ranks["fid"], "the same bits at any world size"
    assert ours["fid"] != peer["fid"], "of another protocol"
    assert peer["fidtool_relative_difference"] < 0.2
    assert results["speed_ratio"] == peer["median_seconds"] / ours["median_seconds"]
    assert [limit["network"]["fp32"] > 0 for limit in results["limits"]] == [True, True]
    share = results["share_of_limits"]["fidtool"]
    assert 0 < share["of_network"] <= share["of_slower"], "decoding may be what is slower"
    assert {"decode", "network", "moments"} <= set(results["fidtool_runs"]["fidtool"]["extraction"])
    assert "of the network's limit and" in stdout
    with Image.open(tmp_path / "speed.png") as picture:
        assert min(picture.size) > 100


@pytest.mark.slow
def test_profile_benchmark(environment: dict[str, str], tmp_path: Path) -> None:
    if offline_path() is None:
        pytest.skip("needs fidtool[offline]")
    status, stdout, document = bench(environment, tmp_path, "profile", "--device", "cpu", "--passes", "1")
    assert status == 0
    results = document["results"]
    longest = results["operations"][0]
    assert "conv" in longest["operation"], "Inception is convolutions"
    assert longest["calls"] >= 94
    assert longest["milliseconds"] == max(each["milliseconds"] for each in results["operations"]) > 0
    assert "images/s" in stdout


@pytest.mark.parametrize(
    "mistake",
    [
        ["--json", "missing/bench.json"],
        ["--plot", "missing/bench.png"],
        ["--limit-seconds", "0"],
        ["--precision", "nonsense"],
        ["--device", "nonsense"],
        ["--sets", ".", ".", "--folder", "other"],
    ],
)
def test_a_benchmark_refuses_mistakes_before_it_measures(
    environment: dict[str, str], tmp_path: Path, mistake: list[str]
) -> None:
    command = [sys.executable, str(SCRIPTS / "bench.py"), "end-to-end", "--count", "8", *mistake]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment, cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert mistake[1] in done.stderr or mistake[0] in done.stderr
    assert not list(tmp_path.glob("*/real"))


@pytest.mark.slow
def test_decoders_benchmark(environment: dict[str, str], tmp_path: Path) -> None:
    arguments = ["decoders", "--count", "4", "--side", "40", "--seconds", "0.05"]
    status, stdout, document = bench(environment, tmp_path, *arguments)
    assert status == 0
    found = {entry["decoder"]: entry for entry in document["results"]}
    assert found["Pillow"]["equal"] == 1
    assert found["Pillow"]["milliseconds"] > 0
    assert "Pillow's pixels" in stdout


@pytest.mark.slow
def test_scale_benchmark(environment: dict[str, str], tmp_path: Path) -> None:
    arguments = ["scale", "--count", "8", "--count", "200", "--check", "100", "--merge-ranks", "2", "--ranks", "1"]
    status, stdout, document = bench(environment, tmp_path, *arguments, "--ranks", "64", "--images", "1000000")
    assert status == 0
    results = document["results"]
    assert [run["images"] for run in results["runs"]] == [8, 200, 100]
    lines = [results["model"][part] for part in ("alone", "pipeline")]
    assert results["predicted_seconds"] == pytest.approx(sum(line["fixed"] + 100 * line["each"] for line in lines))
    one, many = results["far"]
    assert (one["pipeline_seconds"], many["pipeline_seconds"]) == (500.0, 500.0 / 64)
    assert one["alone_seconds"] == many["alone_seconds"], "what rank zero does alone is not shared"
    assert results["merges"][0]["bytes"] == 8 * 2048**2
    assert "each of 64 ranks sends 63 MiB" in stdout


@pytest.mark.slow
def test_metrics_benchmark(environment: dict[str, str], tmp_path: Path) -> None:
    status, stdout, document = bench(environment, tmp_path, "metrics", "--count", "24", "--small-network")
    assert status == 0, "no image is extracted twice"
    runs = document["results"]["runs"]
    assert {name: run["images_computed"] for name, run in runs.items()} == {"fid": 24, "fid,kid,prdc": 24}
    assert frechet(runs["fid"]) == frechet(runs["fid,kid,prdc"])
    assert "beside FID alone they take" in stdout


@pytest.mark.slow
def test_diagnosis_benchmark(environment: dict[str, str], tmp_path: Path) -> None:
    arguments = ("diagnosis", "--count", "8", "--side", "32", "--repeats", "1", "--small-network")
    status, stdout, document = bench(environment, tmp_path, *arguments)
    results = document["results"]
    assert status == (0 if results["own_share"] <= 0.05 else 1)
    assert results["runs"]["without"]["diagnosis"] == 0 < results["runs"]["with the diagnosis"]["diagnosis"]
    assert 0 < results["seconds_a_record"] < results["own_share"] * results["runs"]["with the diagnosis"]["seconds"]
    assert "of the run" in stdout


@pytest.mark.slow
def test_features_benchmark(environment: dict[str, str], tmp_path: Path) -> None:
    status, stdout, document = bench(environment, tmp_path, "features", "--count", "30", "--dims", "6")
    assert status == 0
    results = document["results"]
    assert (document["benchmark"], results["images_computed"]) == ("features", 0)
    assert {"kid", "prdc", "distance"} <= set(results["phases"])
    assert {"fd_6", "kid_6", "precision_6", "coverage_6"} <= set(results["metrics"])
    assert 0 < results["metrics"]["precision_6"] <= 1, "two draws of one distribution"
    assert "fid,kid,prdc" in stdout


@pytest.mark.slow
@pytest.mark.skipif(find_spec("pytorch_fid") is None, reason="needs pytorch-fid, of the extra 'test'")
def test_distance_benchmark(environment: dict[str, str], tmp_path: Path) -> None:
    status, stdout, document = bench(environment, tmp_path, "distance", "--dims", "64", "--repeats", "2")
    assert status == 0
    assert document["settings"] == {"dims": 64, "samples": 6000, "repeats": 2}
    results = document["results"]
    assert [tool["tool"] for tool in results["tools"]] == ["fidtool", "pytorch-fid"]
    for tool in results["tools"]:
        assert len(tool["seconds"]) == 2
        assert all(seconds > 0 for seconds in tool["seconds"])
        assert 0 < tool["distance"] < 100
    assert results["relative_difference"] < 1e-9
    assert results["fidtool_threads"] >= 1
    assert math.isfinite(results["speed_ratio"])
    assert "times as fast as pytorch-fid" in stdout


def test_distance_benchmark_refuses_singular_covariances(environment: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPTS / "bench.py"), "distance", "--dims", "64", "--samples", "64"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment, cwd=tmp_path)
    assert done.returncode == 2
    assert "--samples must be more than --dims" in done.stderr


def test_pictures_are_reused_and_other_files_left_alone(environment: dict[str, str], tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from bench_pictures import Recipe, make_sets\n"
        "sets = make_sets(Path(sys.argv[1]), Recipe(3, 16, sys.argv[2]))\n"
        "print(sets.total, *sorted(file.name for file in sets.fake.iterdir()))"
    )

    def make(suffix: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, str(tmp_path / "pictures"), suffix]
        variables = {**environment, "PYTHONPATH": str(SCRIPTS)}
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=variables)

    def contents() -> dict[str, tuple[bytes, int]]:
        files = [file for file in sorted((tmp_path / "pictures").rglob("*")) if file.is_file()]
        return {str(file): (file.read_bytes(), file.stat().st_mtime_ns) for file in files}

    assert make("jpg").stdout.split() == ["6", "000000.jpg", "000001.jpg", "000002.jpg"]
    before = contents()
    assert make("jpg").returncode == 0
    refused = make("png")
    assert refused.returncode == 1
    assert "name an empty or a new folder" in refused.stderr
    assert contents() == before


@pytest.mark.slow
def test_soak_to_the_end(tmp_path: Path) -> None:
    """Without a kill: two runs, one with a checkpoint, count alike. Kills are tested where runs are resumed."""
    command = [sys.executable, str(SCRIPTS / "soak.py"), "--images", "300", "--kills", "0", "--folder", "soak"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "300 images, each counted once, to the same bits"


def test_the_peers_weights_are_written_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder that an earlier benchmark used is no obstacle, and both names have the new weights."""
    monkeypatch.syspath_prepend(SCRIPTS)
    import bench_weights

    for number in range(2):
        bench_weights.write_weights({"weight": torch.full((2,), float(number))}, tmp_path)
    files = [tmp_path / "hub" / "checkpoints" / name for name in bench_weights.FILE_NAMES]
    assert [torch.load(file, weights_only=True)["weight"].tolist() for file in files] == [[1.0, 1.0]] * 2
