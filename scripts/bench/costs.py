"""What further metrics cost beside FID: two whole runs on the same images; many features from files. Imports no torch.

As a program it writes a statistics file of made-up features: bench_metrics.py FILE COUNT DIMS SEED.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from bench_pictures import PictureSets
from bench_process import Measured, measure

METRICS = ("kid", "prdc")
"""The phases of a run's record that FID alone does not have."""
ALL = ",".join(("fid", *METRICS))
COLUMNS = ("metrics", "seconds", "extract", "distance", *METRICS, "MiB process", "images extracted")


def compare_metrics(sets: PictureSets, device: str, options: list[str]) -> dict[str, Any]:
    """Runs ``fidtool compute`` with FID alone, and with KID, precision, recall, density and coverage beside it.

    Args:
        sets: the pictures.
        device: where the network runs.
        options: further arguments of the command line.

    Returns:
        Of both runs the seconds, as a whole and by phase, and the images that went through the network; the seconds
        that the second took more, over the first's.
    """
    runs = {}
    for metrics in ("fid", ALL):
        command = [sys.executable, "-m", "fidtool", "compute", str(sets.real), str(sets.fake), "--metrics", metrics]
        command += ["--no-cache", "--json", "--quiet", "--device", device, *options]
        command += ["--kid-subset-size", str(min(1000, sets.total // 2))] if metrics == ALL else []
        runs[metrics] = _record(measure(command))
    alone, more = runs.values()
    return {
        "runs": runs,
        "extra_seconds": sum(more["phases"][name] for name in METRICS),
        "cost": more["seconds"] / alone["seconds"] - 1.0,
        "extraction_repeated": more["images_computed"] != sets.total,
    }


def from_features(count: int, dims: int) -> dict[str, Any]:
    """Runs ``fidtool compute`` on two statistics files that hold made-up features.

    Args:
        count: vectors in each.
        dims: their length.

    Returns:
        Seconds, as a whole and by phase, peak memory in bytes, and the metrics.
    """
    with tempfile.TemporaryDirectory(prefix="fidtool-bench-") as folder:
        files = [str(Path(folder) / f"{name}.npz") for name in ("real", "fake")]
        for seed, file in enumerate(files):  # in a process of its own: this one's memory must stay small
            subprocess.run([sys.executable, __file__, file, str(count), str(dims), str(seed)], check=True)
        command = [sys.executable, "-m", "fidtool", "compute", *files, "--metrics", ALL, "--json", "--quiet"]
        return _record(measure([*command, "--device", "cpu", "--kid-subset-size", str(min(1000, count))]))


def write_features(file: str, count: int, dims: int, seed: int) -> None:
    """A statistics file of vectors about as large, and as few of them negative, as Inception's: none."""
    features = np.abs(np.random.default_rng(seed).standard_normal((count, dims), dtype=np.float32)) / 2
    arrays = {"mu": features.mean(0, dtype=np.float64), "sigma": np.cov(features, rowvar=False)}
    np.savez(file, features=features, count=np.int64(count), **arrays)


def table_rows(runs: dict[str, dict[str, Any]]) -> list[list[str]]:
    """A row a run under `COLUMNS`."""
    rows = []
    for name, run in runs.items():
        seconds = [run["seconds"], *(run["phases"].get(phase, 0.0) for phase in ("extract", "distance", *METRICS))]
        memory = f"{run['peak_process_bytes'] / 2**20:.0f}"
        rows.append([name, *(f"{each:.1f}" for each in seconds), memory, str(run["images_computed"])])
    return rows


def _record(measured: Measured) -> dict[str, Any]:
    found = json.loads(measured.stdout)
    return {
        "seconds": measured.seconds,
        "phases": found["run"]["seconds"],
        "peak_process_bytes": measured.peak_process_bytes,
        "others_busy_cores": measured.others_busy_cores,
        "images_computed": found["run"]["images_computed"],
        "metrics": found["results"][0]["metrics"],
    }


if __name__ == "__main__":
    write_features(sys.argv[1], *map(int, sys.argv[2:]))
