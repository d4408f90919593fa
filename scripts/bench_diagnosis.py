"""What looking at the images costs: whole runs with and without it, and a picture's share by itself."""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

from bench_pictures import PictureSets
from bench_process import measure

WITH, WITHOUT = "with the diagnosis", "without"
COLUMNS = ("run", "seconds", "extract", "diagnosis", "distance")
_LOOKED_AT = 200


def diagnosis_cost(sets: PictureSets, options: list[str], repeats: int) -> dict[str, Any]:
    """Runs ``fidtool compute`` with the diagnosis and without it, in turn, there and back.

    Args:
        sets: the pictures.
        options: further arguments of the command line.
        repeats: runs of each.

    Returns:
        Of both kinds of run the median seconds, as a whole and by phase; the seconds that a picture's record and its
        decoding take in this process; the share of the run that records and the search for copies are; and what whole
        runs take more, over those without.
    """
    command = [sys.executable, "-m", "fidtool", "compute", str(sets.real), str(sets.fake)]
    command += ["--no-cache", "--json", "--quiet", *options]
    flags: dict[str, list[str]] = {WITH: [], WITHOUT: ["--no-diagnosis"]}
    # Libraries and pictures come into the page cache; the first to run would pay for both.
    measure([*command, "--num", str(min(8, sets.total // 2)), "--no-diagnosis"])
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in flags}
    for repeat in range(repeats):
        for name in flags if repeat % 2 == 0 else reversed(flags):
            measured = measure([*command, *flags[name]])
            found[name].append({"seconds": measured.seconds, **json.loads(measured.stdout)["run"]["seconds"]})
    runs = {
        name: {phase: statistics.median(run.get(phase, 0.0) for run in own) for phase in ("seconds", *COLUMNS[2:])}
        for name, own in found.items()
    }
    record, decode = _seconds_a_picture(sets)
    own = record * sets.total + runs[WITH]["diagnosis"]
    return {
        "runs": runs,
        "seconds_a_record": record,
        "seconds_a_decode": decode,
        "own_share": own / runs[WITH]["seconds"],
        "cost": runs[WITH]["seconds"] / runs[WITHOUT]["seconds"] - 1.0,
    }


def _seconds_a_picture(sets: PictureSets) -> tuple[float, float]:
    """Seconds that a record and decoding take for one picture, means over some."""
    from fidtool.images.decode import decode
    from fidtool.images.records import record_of

    data = [file.read_bytes() for file in sorted(sets.fake.iterdir())[:_LOOKED_AT]]
    started = time.perf_counter()
    images = [decode(each) for each in data]
    between = time.perf_counter()
    for image in images:
        record_of(image)
    return (time.perf_counter() - between) / len(data), (between - started) / len(data)


def table_rows(runs: dict[str, dict[str, float]]) -> list[list[str]]:
    """A row a kind of run under `COLUMNS`."""
    return [[name, *(f"{run[phase]:.1f}" for phase in ("seconds", *COLUMNS[2:]))] for name, run in runs.items()]
