"""Speed of each kind of source, compared with a folder of the same images: the command ``sources``."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import click

from bench.images import FOLDER, Recipe, image_sets, make_sources, s3_server
from bench.process import measure
from bench.report import header, json_option, network_arguments, publish, small_network_option, table

RATIO_ALLOWED = 0.8
"""Lowest speed of a source, relative to the folder."""
_COLUMNS = ("source", "listing s", "reading images/s", "to folder", "run images/s", "to folder")
_PROGRAMS = str(Path(__file__).with_name("programs.py"))


@click.command()
@click.option("--count", type=click.IntRange(16), default=400, help="Images in the set.")
@click.option("--side", type=click.IntRange(8), default=256, help="Width and height of the images.")
@click.option("--format", "suffix", type=click.Choice(["jpg", "png", "webp"]), default="png", help="Image format.")
@click.option("--device", help="cpu, cuda or cuda:1.  [default: chosen by fidtool]")
@click.option("--num-workers", type=click.IntRange(0), default=0, help="Decoding workers.")
@small_network_option
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
    """Speed of archives, arrays, S3 etc. compared with a folder.

    All sources contain the same images. "Reading" includes decoding, but neither listing nor a network. "Run" is the
    extraction of `fidtool compute`. The exit status is 1 if the run from a source is slower than 0.8 times that from
    the folder.
    """
    machine = header(device, f"sources: {count} images, {side}x{side} {suffix}, {num_workers} decoding workers")
    options = ["--device", machine.device, *network_arguments(small_network)]
    with image_sets(None, Recipe(count, side, suffix)) as sets:
        forms = make_sources(sets.fake)
        with s3_server(sets.fake.parent, sets.fake.name) as (environment, remote):
            runner = _Runner(sets.real, sets.fake.parent / "real.npz", environment, num_workers, options)
            found = throughputs(runner, {**forms, **remote})
    table(_COLUMNS, _rows(found))
    slowest = min(found, key=lambda name: found[name]["run_ratio"])
    ratio = found[slowest]["run_ratio"]
    passed = ratio >= RATIO_ALLOWED
    click.echo(
        f"{'PASS' if passed else 'FAIL'}: the slowest run, from {slowest}, has {ratio:.2f} times the speed of the "
        f"folder (at least {RATIO_ALLOWED} is required)"
    )
    settings = {"count": count, "side": side, "format": suffix, "num_workers": num_workers}
    results = {"sources": found, "allowed_ratio": RATIO_ALLOWED, "pass": passed}
    publish(json_file, machine, "sources", {**settings, "small_network": small_network}, results)
    sys.exit(0 if passed else 1)


def throughputs(runner: _Runner, forms: dict[str, str]) -> dict[str, dict[str, float]]:
    """Measure each source, with the folder before and after each.

    Args:
        runner: measures one source.
        forms: paths or addresses of the sources, by name.

    Returns:
        For each source: the seconds of the listing, the images/s of reading and of the run's extraction, and both
        relative to the mean of the folder's measurements before and after.
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
        real: folder of the real images.
        statistics_file: file to which their statistics are written.
        environment: environment variables to add.
        workers: number of decoding workers.
        options: further arguments of ``fidtool compute``.
    """

    def __init__(
        self, real: Path, statistics_file: Path, environment: dict[str, str], workers: int, options: list[str]
    ) -> None:
        self._real, self._environment, self._workers, self._options = statistics_file, environment, workers, options
        measure([sys.executable, "-m", "fidtool", "stats", str(real), "-o", str(statistics_file), "--force", *options])

    def run(self, source: str) -> dict[str, float]:
        """Return the seconds of listing, and the images/s of reading (the better of two) and of a run."""
        command = [sys.executable, _PROGRAMS, "read", source, str(self._workers)]
        reads = [json.loads(measure(command, self._environment).stdout) for _ in range(2)]
        best = min(reads, key=lambda each: float(each["seconds"]))
        compute = [sys.executable, "-m", "fidtool", "compute", str(self._real), source, "--no-cache", "--json"]
        compute += ["--quiet", "--num-workers", str(self._workers), *self._options]
        record = json.loads(measure(compute, self._environment).stdout)["run"]
        return {
            "list_seconds": best["list_seconds"],
            "reading": best["images"] / best["seconds"],
            "run": float(record["images_per_second"]),
        }


def _rows(found: dict[str, dict[str, float]]) -> list[list[str]]:
    """One row per source."""
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
