"""What further metrics cost beside FID: two whole runs on the same images. Imports no torch."""

from __future__ import annotations

import json
import sys
from typing import Any

from bench_pictures import PictureSets
from bench_process import Measured, measure

METRICS = ("kid", "prdc")
"""The phases of a run's record that FID alone does not have."""


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
    for metrics in ("fid", ",".join(("fid", *METRICS))):
        command = [sys.executable, "-m", "fidtool", "compute", str(sets.real), str(sets.fake), "--metrics", metrics]
        command += ["--no-cache", "--json", "--quiet", "--device", device, *options]
        runs[metrics] = _record(measure(command))
    alone, more = runs.values()
    return {
        "runs": runs,
        "extra_seconds": sum(more["phases"][name] for name in METRICS),
        "cost": more["seconds"] / alone["seconds"] - 1.0,
        "extraction_repeated": more["images_computed"] != sets.total,
    }


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
