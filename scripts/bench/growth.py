"""A cost model of a run, fitted to small ones, and what it says of large ones. Imports no torch.

A run of N images on W ranks takes

    seconds = fixed + N * (on rank zero alone) + N / W * (an image in the pipeline) + what merging takes

Rank zero lists the files, looks for copies and writes; the ranks share decoding and the network; merging sends the
same few matrices whatever N is.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from bench_end_to_end import SCRIPTS, fidtool_command
from bench_output import header, json_option, mib, publish, table
from bench_pictures import PictureSets
from bench_process import measure
from PIL import Image

_DIMS = 2048
_SIDE = 16
_LINKS = {"10 Gbit/s Ethernet": 1.25e9, "400 Gbit/s InfiniBand": 50e9}
"""Bytes a second between two machines, to compute with."""


@dataclass(frozen=True)
class Line:
    """``fixed + each * images`` seconds, or bytes."""

    fixed: float
    each: float

    @classmethod
    def through(cls, images: list[int], values: list[float]) -> Line:
        """The straight line nearest to the points, in proportion: small runs count as much as large ones."""
        each, fixed = np.polyfit(images, values, 1, w=1.0 / np.maximum(values, 1e-9))
        return cls(max(0.0, float(fixed)), max(0.0, float(each)))

    def at(self, images: float) -> float:
        return self.fixed + self.each * images


@dataclass(frozen=True)
class Model:
    """Of one kind of machine: what was fitted.

    Attributes:
        alone: seconds of what rank zero does alone (listing, the search for copies, all else but the pipeline).
        pipeline: seconds of extraction on one rank.
        memory: bytes of rank zero.
    """

    alone: Line
    pipeline: Line
    memory: Line

    def seconds(self, images: int, ranks: int, rate: float | None, merge: float) -> float:
        """Of a run.

        Args:
            images: in both sets.
            ranks: that share them.
            rate: images/s of a rank's pipeline; None takes the fitted one.
            merge: seconds of the all-reduce.
        """
        each = self.pipeline.each if rate is None else 1.0 / rate
        return self.alone.at(images) + self.pipeline.fixed + each * images / ranks + merge


@click.command()
@click.option(
    "--count", "counts", type=click.IntRange(8), multiple=True, default=(1000, 4000, 16000), help="Fitted to."
)
@click.option("--check", type=click.IntRange(8), default=40000, help="Images of the run that the model is checked on.")
@click.option("--images", type=click.IntRange(1), default=10_000_000, help="Images of the run that is computed.")
@click.option("--ranks", type=click.IntRange(1), multiple=True, default=(1, 8, 64), help="Its ranks.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), default=2000.0, help="Its images/s a rank.")
@click.option("--merge-ranks", type=click.IntRange(2), multiple=True, default=(2, 4), help="Ranks that merge here.")
@json_option
def scale(
    counts: tuple[int, ...],
    check: int,
    images: int,
    ranks: tuple[int, ...],
    rate: float,
    merge_ranks: tuple[int, ...],
    json_file: Path | None,
) -> None:
    """A cost model of many images on many ranks, fitted to runs with a network that costs next to nothing."""
    machine = header("cpu", f"scale: fitted to runs of {', '.join(map(str, counts))} images, checked on {check}")
    with tempfile.TemporaryDirectory(prefix="fidtool-bench-") as folder:
        runs = [_run(Path(folder), count) for count in (*counts, check)]
    merges = [_merge(number) for number in merge_ranks]
    *fitted, checked = runs
    sizes = [run["images"] for run in fitted]
    model = Model(
        Line.through(sizes, [run["seconds"] - run["pipeline"] for run in fitted]),
        Line.through(sizes, [run["pipeline"] for run in fitted]),
        Line.through(sizes, [run["peak_bytes"] for run in fitted]),
    )
    predicted = model.seconds(checked["images"], 1, None, 0.0)
    rows = [[str(run["images"]), *(f"{run[part]:.2f}" for part in ("seconds", "pipeline"))] for run in runs]
    table(("images", "seconds", "of these extraction"), rows)
    click.echo(
        f"the model says {predicted:.1f} s of {checked['images']} images, which took {checked['seconds']:.1f} s "
        f"({predicted / checked['seconds'] - 1:+.1%})"
    )
    far = _computed(model, images, ranks, rate)
    results = {"runs": runs, "model": asdict(model), "predicted_seconds": predicted, "merges": merges, "far": far}
    _print_merges(merges, max(ranks))
    settings = {"counts": list(counts), "check": check, "images": images, "ranks": list(ranks), "rate": rate}
    publish(json_file, machine, "scale", settings, results)


def _run(folder: Path, count: int) -> dict[str, Any]:
    place = folder / str(count)
    sets = PictureSets(_noise(place / "real", count // 2, 1), _noise(place / "fake", count // 2, 2), count // 2 * 2)
    network = f"{SCRIPTS / 'small_network.py'}:network"
    measured = measure(fidtool_command(sets, "--device", "cpu", "--extractor", network))
    extract = json.loads(measured.stdout)["run"]["seconds"]["extract"]
    found = {"images": sets.total, "seconds": measured.seconds, "pipeline": extract}
    return {**found, "peak_bytes": measured.peak_process_bytes}


def _noise(folder: Path, count: int, seed: int) -> Path:
    """Noise, among which near copies are not looked for, as in sets of more than 500,000 pictures; all else is done."""
    folder.mkdir(parents=True)
    rng = np.random.RandomState(seed)
    for number in range(count):
        pixels = rng.randint(0, 256, (_SIDE, _SIDE, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:06}.png")
    return folder


def _merge(ranks: int) -> dict[str, Any]:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    found: dict[str, Any] = json.loads(measure([*launch, str(SCRIPTS / "bench_merge.py"), str(_DIMS)]).stdout)
    return found


def _computed(model: Model, images: int, ranks: tuple[int, ...], rate: float) -> list[dict[str, float]]:
    click.echo(f"\n{images:,} images at {rate:g} images/s a rank, by the model:")
    rows, found = [], []
    for number in ranks:
        alone, pipeline = model.alone.at(images), images / number / rate
        whole = model.seconds(images, number, rate, 0.0)
        found.append({"ranks": number, "alone_seconds": alone, "pipeline_seconds": pipeline, "seconds": whole})
        rows.append([str(number), f"{pipeline:,.0f}", f"{alone:,.0f}", f"{whole:,.0f}", f"{images / whole:,.0f}"])
    table(("ranks", "pipeline s", "rank zero alone s", "whole s", "images/s"), rows)
    click.echo(f"rank zero's memory: {mib(model.memory.at(images))} MiB ({model.memory.each:.0f} bytes an image)")
    return found


def _print_merges(merges: list[dict[str, Any]], ranks: int) -> None:
    for merge in merges:
        click.echo(f"all-reduce among {merge['ranks']} ranks here, over gloo: {merge['seconds']:.2f} s")
    # A ring sends and receives 2 (W - 1) / W times the matrix.
    sent = 2 * (ranks - 1) / ranks * merges[0]["bytes"]
    times = ", ".join(f"{1e3 * sent / rate:.1f} ms over {link}" for link, rate in _LINKS.items())
    click.echo(f"each of {ranks} ranks sends {mib(sent)} MiB for a set: {times} (computed)")
