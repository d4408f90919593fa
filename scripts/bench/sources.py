"""How fast each kind of source is, against a folder of the same pictures; and a folder of a million."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
from bench_output import MIB, header, json_option, publish, table
from bench_pictures import Recipe, picture_sets
from bench_process import measure
from bench_source_forms import FOLDER, make_sources, s3_server, write_tiny

SCRIPTS = Path(__file__).resolve().parent
COLUMNS = ("source", "listing s", "reading images/s", "to folder", "run images/s", "to folder")
RATIO_ALLOWED = 0.8
"""No source may be slower than this, against the folder."""
START_ALLOWED_SECONDS, MEMORY_ALLOWED = 30.0, 300e6
"""What a folder of a million files may take until the first forward pass, and of a rank's memory."""
_PATIENCE = 900.0


@click.command()
@click.option("--count", type=click.IntRange(16), default=400, help="Pictures in the set.")
@click.option("--side", type=click.IntRange(8), default=256, help="Their width and height.")
@click.option("--format", "suffix", type=click.Choice(["jpg", "png", "webp"]), default="png", help="Their format.")
@click.option("--device", help="cpu, cuda or cuda:1.  [default: as fidtool chooses]")
@click.option("--num-workers", type=click.IntRange(0), default=0, show_default=True, help="Decoding processes.")
@click.option("--small-network", is_flag=True, help="64 features of a network that costs next to nothing.")
@json_option
def sources(
    count: int,
    side: int,
    suffix: str,
    device: str | None,
    num_workers: int,
    small_network: bool,
    json_file: Path | None,
) -> None:
    """Images a second from each kind of source; exit status 1 if one is slower than 0.8 times the folder.

    Reading is listing aside, with decoding, without a network; the run is the extraction of `fidtool compute`.
    """
    machine = header(device, f"sources: {count} pictures, {side}x{side} {suffix}, {num_workers} decoding processes")
    options = ["--device", machine.device]
    options += ["--extractor", f"{SCRIPTS / 'small_network.py'}:network"] if small_network else []
    with picture_sets(None, Recipe(count, side, suffix)) as sets:
        forms = make_sources(sets.fake)
        with s3_server(sets.fake.parent, sets.fake.name) as (environment, remote):
            runner = _Runner(sets.real, sets.fake.parent / "real.npz", environment, num_workers, options)
            found = throughputs(runner, {**forms, **remote})
    table(COLUMNS, table_rows(found))
    slowest = min(found, key=lambda name: found[name]["run_ratio"])
    ratio = found[slowest]["run_ratio"]
    passed = ratio >= RATIO_ALLOWED
    click.echo(
        f"{'PASS' if passed else 'FAIL'}: the slowest run, from {slowest}, is {ratio:.2f} of the folder's "
        f"(at least {RATIO_ALLOWED} is allowed)"
    )
    settings = {"count": count, "side": side, "format": suffix, "num_workers": num_workers}
    results = {"sources": found, "allowed_ratio": RATIO_ALLOWED, "pass": passed}
    publish(json_file, machine, "sources", {**settings, "small_network": small_network}, results)
    sys.exit(0 if passed else 1)


@click.command()
@click.option("--count", type=click.IntRange(1000), default=1_000_000, help="Files.")
@click.option("--ranks", type=click.IntRange(1), default=2, help="Processes under torchrun.")
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), help="Make them below this folder.")
@json_option
def million(count: int, ranks: int, folder: Path | None, json_file: Path | None) -> None:
    """A folder of a million tiny files: time to the first forward pass, and memory of a rank; status 1 if too much."""
    machine = header("cpu", f"million: {count} bitmaps of one pixel, {ranks} ranks, on the CPU")
    with tempfile.TemporaryDirectory(prefix="fidtool-bench-", dir=folder) as place:
        results = first_passes(count, Path(place), ranks)
    small, large = results["small"], results["large"]
    seconds, memory = large["seconds"] - small["seconds"], large["peak_bytes"] - small["peak_bytes"]
    table(
        ("files", "first pass s", "peak MiB a rank"),
        [[name, f"{each['seconds']:.1f}", f"{each['peak_bytes'] / MIB:.0f}"] for name, each in results.items()],
    )
    passed = large["seconds"] <= START_ALLOWED_SECONDS and memory <= MEMORY_ALLOWED
    click.echo(
        f"{'PASS' if passed else 'FAIL'}: work starts after {large['seconds']:.1f} s, {seconds:.1f} s of it for their "
        f"number ({START_ALLOWED_SECONDS:g} s are allowed), and takes {memory / 1e6:.0f} MB more of a rank "
        f"({MEMORY_ALLOWED / 1e6:.0f} MB are allowed)"
    )
    publish(json_file, machine, "million", {"count": count, "ranks": ranks}, {**results, "pass": passed})
    sys.exit(0 if passed else 1)


def throughputs(runner: _Runner, forms: dict[str, str]) -> dict[str, dict[str, float]]:
    """What each source takes: read and decoded alone, and as FAKE of a whole run. The folder comes between all.

    Args:
        runner: measures one.
        forms: what is read, by name.

    Returns:
        By name the seconds of the listing, images a second of reading and of the run's extraction, and both in
        relation to the folder's, measured before and after.
    """
    before = runner.run(forms[FOLDER])
    found = {FOLDER: {**before, "reading_ratio": 1.0, "run_ratio": 1.0}}
    for name, source in forms.items():
        if name == FOLDER:
            continue
        own, after = runner.run(source), runner.run(forms[FOLDER])
        ratios = {
            f"{kind}_ratio": own[kind] / statistics.mean((before[kind], after[kind])) for kind in ("reading", "run")
        }
        found[name] = {**own, **ratios}
        before = after
        click.echo(f"  {name}: reading {ratios['reading_ratio']:.2f}, run {ratios['run_ratio']:.2f}", err=True)
    return found


class _Runner:
    """Measures sources.

    Args:
        real: folder of other pictures.
        kept: where their statistics are kept.
        environment: variables to add.
        workers: decoding processes.
        options: further arguments of `fidtool compute`.
    """

    def __init__(self, real: Path, kept: Path, environment: dict[str, str], workers: int, options: list[str]) -> None:
        self._kept, self._environment, self._workers, self._options = kept, environment, workers, options
        measure([sys.executable, "-m", "fidtool", "stats", str(real), "-o", str(kept), "--force", *options])

    def run(self, source: str) -> dict[str, float]:
        """Images a second of a source; of reading, the better of two counts."""
        command = [sys.executable, str(SCRIPTS / "bench_read.py"), source, str(self._workers)]
        reads = [json.loads(measure(command, self._environment).stdout) for _ in range(2)]
        best = min(reads, key=lambda each: float(each["seconds"]))
        compute = [sys.executable, "-m", "fidtool", "compute", str(self._kept), source, "--no-cache", "--json"]
        compute += ["--quiet", "--num-workers", str(self._workers), *self._options]
        record = json.loads(measure(compute, self._environment).stdout)["run"]
        return {
            "list_seconds": best["list_seconds"],
            "reading": best["images"] / best["seconds"],
            "run": float(record["images_per_second"]),
        }


def table_rows(found: dict[str, dict[str, float]]) -> list[list[str]]:
    """A row a source under `COLUMNS`."""
    return [
        [
            name,
            f"{own['list_seconds']:.2f}",
            f"{own['reading']:.0f}",
            f"{own['reading_ratio']:.2f}",
            f"{own['run']:.1f}",
            f"{own['run_ratio']:.2f}",
        ]
        for name, own in found.items()
    ]


def first_passes(count: int, place: Path, ranks: int) -> dict[str, Any]:
    """Seconds from the start to the first forward pass of the last rank, and the peak memory of the fattest by then.

    Args:
        count: files of the large folder; the small one has 64.
        place: where they are made.
        ranks: processes under torchrun.
    """
    found: dict[str, Any] = {}
    for name, files in (("small", 64 * ranks), ("large", count)):
        folder, marks = place / name, place / f"marks-{name}"
        marks.mkdir()
        write_tiny(folder, files)
        for entry in os.scandir(folder):  # a warm listing
            entry.stat()
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "-m", "fidtool"]
        command += ["compute", str(folder), str(folder), "--no-cache", "--quiet", "--device", "cpu"]
        command += ["--extractor", f"{SCRIPTS / 'first_pass.py'}:network"]
        environment = {**os.environ, "FIRST_PASS": str(marks)}
        started = time.clock_gettime(time.CLOCK_BOOTTIME)
        silent = subprocess.DEVNULL
        run = subprocess.Popen(command, env=environment, stdout=silent, stderr=silent, start_new_session=True)
        try:
            marked = _wait_for(marks, ranks, run)
        finally:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()
        seconds = max(mark["at"] for mark in marked) - started
        found[name] = {"files": files, "seconds": seconds, "peak_bytes": max(mark["peak_bytes"] for mark in marked)}
    return found


def _wait_for(marks: Path, ranks: int, run: subprocess.Popen[bytes]) -> list[dict[str, float]]:
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        files = list(marks.glob("*.json"))
        if len(files) == ranks:
            return [json.loads(file.read_text()) for file in files]
        if run.poll() is not None:
            break
        time.sleep(0.05)
    raise click.ClickException(f"{ranks} ranks did not all come to a forward pass")
