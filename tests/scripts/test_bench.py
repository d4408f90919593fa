"""The smallest runs of the benchmarks and of the soak test. No test depends on measured times."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from fidtool.features.models.inception import offline_path
from support.places import ROOT, SCRIPTS
from support.processes import PATIENCE


def bench(
    environment: dict[str, str], folder: Path, *arguments: str
) -> tuple[int, str, dict[str, Any]]:
    """Run a benchmark and return its exit status, stdout and JSON."""
    file = folder / "bench.json"
    command = [sys.executable, str(SCRIPTS / "bench"), *arguments, "--json", str(file)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE, env=environment, cwd=folder
    )
    assert file.is_file(), done.stderr
    document: dict[str, Any] = json.loads(file.read_text())
    machine = document["machine"]
    assert machine["cores"] >= 1
    assert {"python", "torch", "fidtool"} <= set(machine["versions"])
    assert machine["cpu"] in done.stdout
    assert document["schema"] == 1
    return done.returncode, done.stdout, document


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux", reason="peak memory is defined differently by other kernels"
)
def test_growth_benchmark(environment: dict[str, str], tmp_path: Path) -> None:
    status, stdout, document = bench(
        environment, tmp_path, "growth", "--count", "20", "--count", "40"
    )
    assert document["benchmark"] == "growth"
    results = document["results"]
    assert [run["images"] for run in results["runs"]] == [20, 40]
    for run in results["runs"]:
        # More than an interpreter needs: it is the memory of fidtool and not that of the benchmark.
        assert 100 * 2**20 < run["peak_bytes"] < 8 * 2**30
        assert run["fid"] > 0
        assert 0 < run["extract"] < run["seconds"]
    assert results["ratio"] == pytest.approx(1.0, abs=0.5)
    assert results["pass"] is (results["ratio"] <= results["allowed_ratio"])
    assert status == (0 if results["pass"] else 1)
    assert ("PASS: " if results["pass"] else "FAIL: ") in stdout


def zipped_package(folder: Path) -> Path:
    """Return a file with the package, like a wheel."""
    shutil.copytree(
        ROOT / "fidtool", folder / "copy" / "fidtool", ignore=shutil.ignore_patterns("__pycache__")
    )
    return Path(shutil.make_archive(str(folder / "wheel"), "zip", folder / "copy"))


@pytest.mark.slow
def test_end_to_end_benchmark(environment: dict[str, str], tmp_path: Path) -> None:
    """Another tool, a wheel, mixed sizes, two ranks: one run each, with the limits and a chart."""
    if offline_path() is None:
        pytest.skip("needs fidtool[offline]")
    arguments = [
        "end-to-end",
        "--count",
        "8",
        "--side",
        "0",
        "--tool",
        "torchmetrics",
        "--num-workers",
        "0",
    ]
    arguments += [
        "--against",
        str(zipped_package(tmp_path)),
        "--ranks",
        "2",
        "--limit-seconds",
        "0.1",
        "--plot",
        "speed.png",
        "--device",
        "cpu",
    ]
    status, stdout, document = bench(environment, tmp_path, *arguments)
    assert status == 0
    results = document["results"]
    ours, other, ranks, peer = results["tools"]
    assert [each["tool"] for each in results["tools"]] == [
        *(
            "fidtool",
            "fidtool, other version",
            "fidtool, torchrun, 2 ranks",
            "torchmetrics, 0 workers",
        )
    ]
    assert ours["fid"] == other["fid"] == ranks["fid"], "bitwise equal at any world size"
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
def test_gpu_benchmark(environment: dict[str, str], tmp_path: Path) -> None:
    """On the CPU."""
    if offline_path() is None:
        pytest.skip("needs fidtool[offline]")
    arguments = [
        "gpu",
        "--device",
        "cpu",
        "--precision",
        "fp32",
        "--batch-size",
        "1",
        "--batch-size",
        "2",
    ]
    status, stdout, document = bench(environment, tmp_path, *arguments, "--seconds", "0.1")
    assert status == 0
    assert [(each["precision"], each["batch_size"]) for each in document["results"]] == [
        ("fp32", 1),
        ("fp32", 2),
    ]
    assert all(each["images_per_second"] > 0 for each in document["results"])
    assert "MiB on the GPU" in stdout


def test_a_benchmark_rejects_mistakes_before_it_starts(
    environment: dict[str, str], tmp_path: Path
) -> None:
    command = [
        sys.executable,
        str(SCRIPTS / "bench"),
        "end-to-end",
        "--count",
        "8",
        "--json",
        "missing/bench.json",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE, env=environment, cwd=tmp_path
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "--json" in done.stderr
    assert not list(tmp_path.glob("*/real"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
def test_pipeline_benchmark(environment: dict[str, str], tmp_path: Path) -> None:
    """Against a copy of the package: each quantity is measured with both versions."""
    zipped_package(tmp_path)
    arguments = [
        "pipeline",
        "--small",
        "4",
        "--medium",
        "4",
        "--photos",
        "4",
        "--features",
        "20",
        "--repeats",
        "1",
    ]
    arguments += [each for part in ("decode", "memory", "metrics") for each in ("--part", part)]
    status, stdout, document = bench(
        environment, tmp_path, *arguments, "--workers", "1", "--against", "copy"
    )
    assert status == 0
    rows = {row["name"]: row for row in document["results"]["rows"]}
    for row in rows.values():
        assert row["gain"] is None if row["name"].startswith("Pillow") else row["gain"] > 0
        assert all(value > 0 for values in row["values"].values() for value in values)
    memory = rows["memory, 4 photos of 12 megapixels"]["medians"]
    # More than an interpreter with torch, and at least the photos of one batch, which holds all of
    # a set.
    assert all(100 < peak < 4096 for peak in memory.values())
    own, other = document["results"]["places"].values()
    assert (Path(own), Path(other)) == (ROOT / "fidtool", tmp_path / "copy" / "fidtool")
    assert "gain" in stdout


@pytest.mark.slow
def test_soak_to_the_end(tmp_path: Path) -> None:
    """Without kills: a run with a checkpoint and one without give the same statistics. Other tests
    cover kills.
    """
    command = [
        sys.executable,
        str(SCRIPTS / "soak.py"),
        "--images",
        "300",
        "--kills",
        "0",
        "--folder",
        "soak",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "300 images, each counted once; bitwise equal statistics"


@pytest.mark.slow
def test_joint_benchmark(environment: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("timm", reason="needs timm, from the extra 'test'")
    if offline_path() is None:
        pytest.skip("needs fidtool[offline]")
    status, stdout, document = bench(
        environment, tmp_path, "joint", "--count", "8", "--side", "32", "--repeats", "1"
    )
    results = document["results"]
    runs = results["runs"]
    assert [*runs] == ["Inception", "ViT", "both"]
    assert runs["both"]["fid"] == runs["Inception"]["fid"]
    assert all(
        0 < run["network"] <= run["seconds"] and run["peak_bytes"] > 100 * 2**20
        for run in runs.values()
    )
    assert status == (0 if results["ratio"] <= results["allowed_ratio"] else 1)
    assert ("PASS: " if status == 0 else "FAIL: ") in stdout


@pytest.mark.slow
def test_pairs_benchmark(environment: dict[str, str], tmp_path: Path) -> None:
    if offline_path() is None:
        pytest.skip("needs fidtool[offline]")
    status, stdout, document = bench(
        environment, tmp_path, "pairs", "--count", "8", "--side", "32", "--repeats", "1"
    )
    results = document["results"]
    runs = results["runs"]
    assert [*runs] == ["fid", "pairs", "both"]
    assert runs["both"]["fid"] == runs["fid"]["fid"]
    assert runs["fid"]["pairs"] == 0 < runs["both"]["pairs"]
    assert results["ratio"] == runs["both"]["seconds"] / runs["fid"]["seconds"]
    assert (status, f"fid,psnr,ssim / fid = {results['ratio']:.3f}" in stdout) == (0, True)
