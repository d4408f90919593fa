"""The smallest runs of the benchmarks and of the soak test. No test depends on measured times."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from fidtool.features.models.inception_weights import offline_path
from support.command_line import frechet
from support.places import ROOT, SCRIPTS
from support.processes import PATIENCE


def bench(environment: dict[str, str], folder: Path, *arguments: str) -> tuple[int, str, dict[str, Any]]:
    """Run a benchmark and return its exit status, stdout and JSON."""
    file = folder / "bench.json"
    command = [sys.executable, str(SCRIPTS / "bench"), *arguments, "--json", str(file)]
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
@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is defined differently by other kernels")
def test_memory_benchmark(environment: dict[str, str], tmp_path: Path) -> None:
    status, stdout, document = bench(environment, tmp_path, "memory", "--small", "20", "--large", "40")
    assert document["benchmark"] == "memory"
    results = document["results"]
    assert [run["images"] for run in results["runs"]] == [20, 40]
    for run in results["runs"]:
        # More than an interpreter needs: it is the memory of fidtool and not that of the benchmark.
        assert 100 * 2**20 < run["peak_bytes"] < 8 * 2**30
        assert run["fid"] > 0
    assert results["ratio"] == pytest.approx(1.0, abs=0.5)
    assert results["pass"] is (results["ratio"] <= results["allowed_ratio"])
    assert status == (0 if results["pass"] else 1)
    assert ("PASS: " if results["pass"] else "FAIL: ") in stdout


@pytest.mark.slow
def test_end_to_end_benchmark(environment: dict[str, str], tmp_path: Path) -> None:
    """Another tool, mixed sizes, two ranks: one run each, with the limits and a chart."""
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
    assert ours["fid"] == ranks["fid"], "bitwise equal at any world size"
    assert ours["fid"] != peer["fid"], "it uses a different protocol"
    assert peer["fidtool_relative_difference"] < 0.2
    assert results["speed_ratio"] == peer["median_seconds"] / ours["median_seconds"]
    assert [limit["network"]["fp32"] > 0 for limit in results["limits"]] == [True, True]
    share = results["share_of_limits"]["fidtool"]
    assert 0 < share["of_network"] <= share["of_slower"], "decoding may be slower than the network"
    assert {"decode", "network", "moments"} <= set(results["fidtool_runs"]["fidtool"]["extraction"])
    assert "of the network's limit, " in stdout
    with Image.open(tmp_path / "speed.png") as chart:
        assert min(chart.size) > 100


@pytest.mark.slow
def test_profile_benchmark(environment: dict[str, str], tmp_path: Path) -> None:
    if offline_path() is None:
        pytest.skip("needs fidtool[offline]")
    status, stdout, document = bench(environment, tmp_path, "profile", "--device", "cpu", "--passes", "1")
    assert status == 0
    results = document["results"]
    longest = results["operations"][0]
    assert "conv" in longest["operation"], "most of Inception is convolutions"
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
def test_a_benchmark_rejects_mistakes_before_it_starts(
    environment: dict[str, str], tmp_path: Path, mistake: list[str]
) -> None:
    command = [sys.executable, str(SCRIPTS / "bench"), "end-to-end", "--count", "8", *mistake]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment, cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert mistake[0] in done.stderr
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
    assert one["alone_seconds"] == many["alone_seconds"], "rank zero's own work is not shared"
    assert results["merges"][0]["bytes"] == 8 * 2048**2
    assert "each of 64 ranks sends 63 MiB" in stdout


@pytest.mark.slow
def test_metrics_benchmark(environment: dict[str, str], tmp_path: Path) -> None:
    status, stdout, document = bench(environment, tmp_path, "metrics", "--count", "24", "--small-network")
    assert status == 0, "no image goes through the network twice"
    runs = document["results"]["runs"]
    assert {name: run["images_computed"] for name, run in runs.items()} == {"fid": 24, "fid,kid,prdc": 24}
    assert frechet(runs["fid"]) == frechet(runs["fid,kid,prdc"])
    assert "compared with FID alone: " in stdout


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
    assert 0 < results["metrics"]["precision_6"] <= 1, "two samples of one distribution"
    assert "fid,kid,prdc" in stdout


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
def test_pipeline_benchmark(environment: dict[str, str], tmp_path: Path) -> None:
    """Against a copy of the package: each quantity is measured with both versions."""
    shutil.copytree(ROOT / "fidtool", tmp_path / "copy" / "fidtool", ignore=shutil.ignore_patterns("__pycache__"))
    arguments = ["pipeline", "--small", "4", "--medium", "4", "--photos", "4", "--features", "20", "--repeats", "1"]
    status, stdout, document = bench(environment, tmp_path, *arguments, "--workers", "1", "--against", "copy")
    assert status == 0
    rows = {row["name"]: row for row in document["results"]["rows"]}
    for row in rows.values():
        assert row["gain"] is None if row["name"].startswith("Pillow") else row["gain"] > 0
        assert all(value > 0 for values in row["values"].values() for value in values)
    memory = rows["memory, 4 photos of 12 megapixels"]["medians"]
    # More than an interpreter with torch, and at least the photos of one batch, which holds all of a set.
    assert all(100 < peak < 4096 for peak in memory.values())
    own, other = document["results"]["places"].values()
    assert (Path(own), Path(other)) == (ROOT / "fidtool", tmp_path / "copy" / "fidtool")
    assert "gain" in stdout


def test_pipeline_benchmark_rejects_the_same_version(environment: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPTS / "bench"), "pipeline", "--against", str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment, cwd=tmp_path)
    assert done.returncode == 2
    assert "is the same version" in done.stderr


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


def test_distance_benchmark_rejects_singular_covariances(environment: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPTS / "bench"), "distance", "--dims", "64", "--samples", "64"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment, cwd=tmp_path)
    assert done.returncode == 2
    assert "--samples must be more than --dims" in done.stderr


def test_images_are_reused_and_other_files_are_not_changed(environment: dict[str, str], tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from bench.images import Recipe, make_sets\n"
        "sets = make_sets(Path(sys.argv[1]), Recipe(3, 16, sys.argv[2]))\n"
        "print(sets.total, *sorted(file.name for file in sets.fake.iterdir()))"
    )

    def make(suffix: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, str(tmp_path / "images"), suffix]
        variables = {**environment, "PYTHONPATH": str(SCRIPTS)}
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=variables)

    def contents() -> dict[str, tuple[bytes, int]]:
        files = [file for file in sorted((tmp_path / "images").rglob("*")) if file.is_file()]
        return {str(file): (file.read_bytes(), file.stat().st_mtime_ns) for file in files}

    assert make("jpg").stdout.split() == ["6", "000000.jpg", "000001.jpg", "000002.jpg"]
    before = contents()
    assert make("jpg").returncode == 0
    refused = make("png")
    assert refused.returncode == 1
    assert "use an empty or a new folder" in refused.stderr
    assert contents() == before


@pytest.mark.slow
def test_soak_to_the_end(tmp_path: Path) -> None:
    """Without kills: a run with a checkpoint and one without give the same statistics. Other tests cover kills."""
    command = [sys.executable, str(SCRIPTS / "soak.py"), "--images", "300", "--kills", "0", "--folder", "soak"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "300 images, each counted once; bitwise equal statistics"


def test_weights_of_an_earlier_benchmark_are_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Both file names have the new weights."""
    monkeypatch.syspath_prepend(SCRIPTS)
    from bench import peers

    for number in range(2):
        peers.write_weights({"weight": torch.full((2,), float(number))}, tmp_path)
    files = [tmp_path / "hub" / "checkpoints" / name for name in peers.FILE_NAMES]
    assert [torch.load(file, weights_only=True)["weight"].tolist() for file in files] == [[1.0, 1.0]] * 2
