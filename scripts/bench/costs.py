"""What metrics and the diagnosis cost: the commands ``metrics``, ``features`` and ``diagnosis``."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from bench.images import ImageSets, Recipe, image_sets
from bench.process import Measured, measure
from bench.report import MIB, header, json_option, network_arguments, publish, small_network_option, table

METRICS = ("kid", "prdc")
"""Phases in the record of a run that FID alone does not have."""
ALL = ",".join(("fid", *METRICS))
_METRIC_COLUMNS = ("metrics", "seconds", "extract", "distance", *METRICS, "MiB process", "images extracted")
DIAGNOSIS_ALLOWED = 0.05
"""Largest share of a run's time that the diagnosis may take."""
WITH, WITHOUT = "with the diagnosis", "without"
_DIAGNOSIS_COLUMNS = ("run", "seconds", "extract", "diagnosis", "distance")
_INSPECTED = 200
_PROGRAMS = str(Path(__file__).with_name("programs.py"))


@click.command()
@click.option("--count", type=click.IntRange(24), default=20000, help="Images in both sets together.")
@click.option("--side", type=click.IntRange(8), default=32, help="Width and height of the images.")
@click.option("--device", help="cpu, cuda or cuda:1.  [default: chosen by fidtool]")
@small_network_option
@json_option
def metrics(count: int, side: int, device: str | None, small_network: bool, json_file: Path | None) -> None:
    """Cost of KID, precision, recall etc. compared with FID alone.

    The exit status is 1 if an image goes through the network twice.
    """
    machine = header(device, f"metrics: 2 x {count // 2} images, {side}x{side} png, 1 run each")
    with image_sets(None, Recipe(count // 2, side, "png")) as sets:
        results = compare_metrics(sets, machine.device, network_arguments(small_network))
    table(_METRIC_COLUMNS, _metric_rows(results["runs"]))
    click.echo(
        f"compared with FID alone: {100 * results['cost']:+.1f} % "
        f"(the metrics themselves take {results['extra_seconds']:.1f} s)"
    )
    publish(json_file, machine, "metrics", {"count": count, "side": side, "small_network": small_network}, results)
    sys.exit(1 if results["extraction_repeated"] else 0)


def compare_metrics(sets: ImageSets, device: str, options: list[str]) -> dict[str, Any]:
    """Run ``fidtool compute`` with FID alone, and with KID, precision, recall, density and coverage as well.

    Args:
        sets: the images.
        device: device of the network.
        options: further command-line arguments.

    Returns:
        For both runs: the seconds in total and by phase, and the number of images that went through the network. Also
        the relative cost of the second run.
    """
    runs = {}
    for names in ("fid", ALL):
        command = [sys.executable, "-m", "fidtool", "compute", str(sets.real), str(sets.fake), "--metrics", names]
        command += ["--no-cache", "--json", "--quiet", "--device", device, *options]
        command += ["--kid-subset-size", str(min(1000, sets.total // 2))] if names == ALL else []
        runs[names] = _record(measure(command))
    alone, more = runs.values()
    return {
        "runs": runs,
        "extra_seconds": sum(more["phases"][name] for name in METRICS),
        "cost": more["seconds"] / alone["seconds"] - 1.0,
        "extraction_repeated": more["images_computed"] != sets.total,
    }


@click.command()
@click.option("--count", type=click.IntRange(12), default=50000, help="Feature vectors per set.")
@click.option("--dims", type=click.IntRange(1), default=2048, help="Dimensions of the feature vectors.")
@json_option
def features(count: int, dims: int, json_file: Path | None) -> None:
    """Time and memory of metrics on random features.

    Computes the same metrics as the command `metrics` from statistics files, on the CPU.
    """
    machine = header("cpu", f"features: 2 x {count} vectors of {dims} dimensions, 1 run")
    results = from_features(count, dims)
    table(_METRIC_COLUMNS, _metric_rows({ALL: results}))
    publish(json_file, machine, "features", {"count": count, "dims": dims}, results)


def from_features(count: int, dims: int) -> dict[str, Any]:
    """Run ``fidtool compute`` on two statistics files with random features.

    Args:
        count: number of vectors in each file.
        dims: dimensions of the vectors.

    Returns:
        The seconds in total and by phase, the peak memory in bytes, and the metrics.
    """
    with tempfile.TemporaryDirectory(prefix="fidtool-bench-") as folder:
        files = [str(Path(folder) / f"{name}.npz") for name in ("real", "fake")]
        for seed, file in enumerate(files):  # in a subprocess: this process's memory must stay small
            subprocess.run([sys.executable, _PROGRAMS, "features", file, str(count), str(dims), str(seed)], check=True)
        command = [sys.executable, "-m", "fidtool", "compute", *files, "--metrics", ALL, "--json", "--quiet"]
        return _record(measure([*command, "--device", "cpu", "--kid-subset-size", str(min(1000, count))]))


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


def _metric_rows(runs: dict[str, dict[str, Any]]) -> list[list[str]]:
    """One row per run."""
    rows = []
    for name, run in runs.items():
        seconds = [run["seconds"], *(run["phases"].get(phase, 0.0) for phase in ("extract", "distance", *METRICS))]
        memory = f"{run['peak_process_bytes'] / MIB:.0f}"
        rows.append([name, *(f"{each:.1f}" for each in seconds), memory, str(run["images_computed"])])
    return rows


@click.command()
@click.option("--count", type=click.IntRange(8), default=1000, help="Images in both sets together.")
@click.option("--side", type=click.IntRange(8), default=256, help="Width and height of the images.")
@click.option("--format", "suffix", type=click.Choice(["jpg", "png", "webp"]), default="jpg", help="Image format.")
@click.option("--device", help="cpu, cuda or cuda:1.  [default: chosen by fidtool]")
@click.option("--repeats", type=click.IntRange(1), default=3, help="Runs with and without; medians are reported.")
@small_network_option
@json_option
def diagnosis(
    count: int, side: int, suffix: str, device: str | None, repeats: int, small_network: bool, json_file: Path | None
) -> None:
    """Cost of the search for duplicates and faulty images.

    The exit status is 1 if this diagnosis takes more than 5 % of a run.
    """
    machine = header(device, f"diagnosis: 2 x {count // 2} images, {side}x{side} {suffix}, {repeats} run(s) each")
    with image_sets(None, Recipe(count // 2, side, suffix)) as sets:
        results = diagnosis_cost(sets, ["--device", machine.device, *network_arguments(small_network)], repeats)
    table(
        _DIAGNOSIS_COLUMNS,
        [
            [name, *(f"{run[phase]:.1f}" for phase in ("seconds", *_DIAGNOSIS_COLUMNS[2:]))]
            for name, run in results["runs"].items()
        ],
    )
    record, decode = (1e3 * results[f"seconds_a_{part}"] for part in ("record", "decode"))
    click.echo(
        f"recording one image takes {record:.2f} ms, decoding it {decode:.2f} ms; "
        f"the records and the search for duplicates take {results['own_share']:.2%} of the run"
    )
    click.echo(f"whole runs with the diagnosis take {results['cost']:+.1%} (medians)")
    passed = results["own_share"] <= DIAGNOSIS_ALLOWED
    click.echo(f"{'PASS' if passed else 'FAIL'}: at most {DIAGNOSIS_ALLOWED:.0%} of the run is allowed")
    results |= {"allowed_share": DIAGNOSIS_ALLOWED, "pass": passed}
    publish(json_file, machine, "diagnosis", {"count": count, "side": side, "format": suffix}, results)
    sys.exit(0 if passed else 1)


def diagnosis_cost(sets: ImageSets, options: list[str], repeats: int) -> dict[str, Any]:
    """Run ``fidtool compute`` with and without the diagnosis alternately, in an order that reverses each time.

    Args:
        sets: the images.
        options: further command-line arguments.
        repeats: number of runs of each kind.

    Returns:
        For both kinds of run: the median seconds in total and by phase. Also the seconds that the record and the
        decoding of one image take in this process, the share of a run that the records and the search for duplicates
        take, and the relative cost of whole runs.
    """
    command = [sys.executable, "-m", "fidtool", "compute", str(sets.real), str(sets.fake)]
    command += ["--no-cache", "--json", "--quiet", *options]
    flags: dict[str, list[str]] = {WITH: [], WITHOUT: ["--no-diagnosis"]}
    # Load libraries and images into the page cache, so that the first run is not slower.
    measure([*command, "--num", str(min(8, sets.total // 2)), "--no-diagnosis"])
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in flags}
    for repeat in range(repeats):
        for name in flags if repeat % 2 == 0 else reversed(flags):
            measured = measure([*command, *flags[name]])
            found[name].append({"seconds": measured.seconds, **json.loads(measured.stdout)["run"]["seconds"]})
    phases = ("seconds", *_DIAGNOSIS_COLUMNS[2:])
    runs = {
        name: {phase: statistics.median(run.get(phase, 0.0) for run in own) for phase in phases}
        for name, own in found.items()
    }
    record, decode = _seconds_per_image(sets)
    own = record * sets.total + runs[WITH]["diagnosis"]
    return {
        "runs": runs,
        "seconds_a_record": record,
        "seconds_a_decode": decode,
        "own_share": own / runs[WITH]["seconds"],
        "cost": runs[WITH]["seconds"] / runs[WITHOUT]["seconds"] - 1.0,
    }


def _seconds_per_image(sets: ImageSets) -> tuple[float, float]:
    """Return the mean seconds that the record and the decoding of one image take."""
    from fidtool.images.decode import decode
    from fidtool.images.records import records_of

    data = [file.read_bytes() for file in sorted(sets.fake.iterdir())[:_INSPECTED]]
    started = time.perf_counter()
    images = [decode(each) for each in data]
    between = time.perf_counter()
    records_of(images)
    return (time.perf_counter() - between) / len(data), (between - started) / len(data)
