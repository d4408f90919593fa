"""How time and memory grow with the number of images: the commands ``memory``, ``million`` and ``scale``.

The cost model of ``scale``: a run of N images on W ranks takes

    seconds = fixed + N * (rank zero alone) + N / W * (one image in the pipeline) + merging

Rank zero lists the files, looks for duplicates and writes. The ranks share decoding and the network. Merging sends the
same few matrices for any N.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from PIL import Image

from bench.end_to_end import Contender, fidtool_command, fidtool_fid
from bench.images import ImageSets, Recipe, make_sets, write_tiny
from bench.process import measure
from bench.report import MIB, SMALL_NETWORK, header, json_option, mib, publish, table

GROWTH_ALLOWED = 0.05
"""Memory must not grow with the number of images. This share is left for the list of names and for noise."""
START_ALLOWED_SECONDS, MEMORY_ALLOWED = 30.0, 300e6
"""What a folder of a million files may cost: seconds until the first forward pass, and bytes per rank."""
_TIMEOUT = 900.0
_DIMS = 2048
_SIDE = 16
_LINKS = {"10 Gbit/s Ethernet": 1.25e9, "400 Gbit/s InfiniBand": 50e9}
"""Bytes per second between two machines, for the computed times of merging."""


@click.command()
@click.option("--small", type=click.IntRange(4), default=2000, help="Images in the small run, both sets together.")
@click.option("--large", type=click.IntRange(4), default=20000, help="Images in the large run.")
@click.option("--repeats", type=click.IntRange(1), default=1, help="Runs of each size; the median peak is reported.")
@json_option
def memory(small: int, large: int, repeats: int, json_file: Path | None) -> None:
    """Peak memory on few and on many images.

    The exit status is 1 if the peak of `fidtool compute` grows by more than 5 %.
    """
    if small // 2 >= large // 2:
        raise click.UsageError("--large must be more than --small")
    machine = header("cpu", f"memory: {small} and {large} images of 8x8 pixels, a network of 64 features, on the CPU")
    runs = _memory_runs({"small": small, "large": large}, repeats)
    rows = [[str(run["images"]), f"{run['peak_bytes'] / MIB:.1f}", f"{run['seconds']:.1f}"] for run in runs]
    table(("images", "peak MiB", "seconds"), rows)
    ratio = runs[1]["peak_bytes"] / runs[0]["peak_bytes"]
    passed = ratio <= 1.0 + GROWTH_ALLOWED
    verdict = "PASS" if passed else "FAIL"
    click.echo(f"{verdict}: the ratio large to small is {ratio:.4f} (at most {1.0 + GROWTH_ALLOWED} is allowed)")
    # Most of the peak is torch itself, which hides growth in the ratio. These two numbers do not hide it.
    imports = measure([sys.executable, "-c", "import fidtool.pipeline.evaluate"]).peak_process_bytes
    per_image = (runs[1]["peak_bytes"] - runs[0]["peak_bytes"]) / (runs[1]["images"] - runs[0]["images"])
    click.echo(f"{per_image:.0f} bytes per additional image; importing torch alone peaks at {mib(imports)} MiB")
    results = {"runs": runs, "ratio": ratio, "allowed_ratio": 1.0 + GROWTH_ALLOWED, "pass": passed}
    results |= {"bytes_per_image": per_image, "imports_peak_bytes": imports}
    publish(json_file, machine, "memory", {"small": small, "large": large, "repeats": repeats}, results)
    sys.exit(0 if passed else 1)


def _memory_runs(counts: dict[str, int], repeats: int) -> list[dict[str, Any]]:
    """Run ``fidtool compute`` on sets of each size."""
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="fidtool-bench-") as folder:
        for name, count in counts.items():
            sets = make_sets(Path(folder) / name, Recipe(count // 2, 8, "png"))
            command = fidtool_command(sets, "--device", "cpu", "--extractor", SMALL_NETWORK)
            contender = Contender(f"{sets.total} images", command, fidtool_fid)
            for _ in range(repeats):
                contender.run()
            peaks = [run.peak_process_bytes for run in contender.runs]
            costs = {"peaks_bytes": peaks, "peak_bytes": statistics.median(peaks), "seconds": contender.seconds}
            runs.append({"images": sets.total, **costs, "fid": contender.fids[0]})
    return runs


@click.command()
@click.option("--count", type=click.IntRange(1000), default=1_000_000, help="Number of files.")
@click.option("--ranks", type=click.IntRange(1), default=2, help="Ranks started by torchrun.")
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), help="Create the files below this folder.")
@json_option
def million(count: int, ranks: int, folder: Path | None, json_file: Path | None) -> None:
    """Start-up time and memory on a folder of a million files.

    Measures the time to the first forward pass, and the memory of each rank until then. The exit status is 1 if it
    takes more than 30 s, or 300 MB more than a small folder.
    """
    machine = header("cpu", f"million: {count} bitmaps of one pixel, {ranks} ranks, on the CPU")
    with tempfile.TemporaryDirectory(prefix="fidtool-bench-", dir=folder) as place:
        results = first_passes(count, Path(place), ranks)
    small, large = results["small"], results["large"]
    seconds, more = large["seconds"] - small["seconds"], large["peak_bytes"] - small["peak_bytes"]
    table(
        ("files", "first pass s", "peak MiB per rank"),
        [[name, f"{each['seconds']:.1f}", f"{each['peak_bytes'] / MIB:.0f}"] for name, each in results.items()],
    )
    passed = large["seconds"] <= START_ALLOWED_SECONDS and more <= MEMORY_ALLOWED
    click.echo(
        f"{'PASS' if passed else 'FAIL'}: the first forward pass starts after {large['seconds']:.1f} s, "
        f"{seconds:.1f} s later than with few files ({START_ALLOWED_SECONDS:g} s in total are allowed), "
        f"and a rank needs {more / 1e6:.0f} MB more ({MEMORY_ALLOWED / 1e6:.0f} MB are allowed)"
    )
    publish(json_file, machine, "million", {"count": count, "ranks": ranks}, {**results, "pass": passed})
    sys.exit(0 if passed else 1)


def first_passes(count: int, place: Path, ranks: int) -> dict[str, Any]:
    """Measure the start on a small and on a large folder.

    Args:
        count: files in the large folder; the small one has 64 per rank.
        place: folder for the files.
        ranks: ranks started by torchrun.

    Returns:
        For each folder: the seconds from the start until all ranks have begun their first forward pass, and the
        largest peak memory of a rank until then, in bytes.
    """
    found: dict[str, Any] = {}
    for name, files in (("small", 64 * ranks), ("large", count)):
        folder, marks = place / name, place / f"marks-{name}"
        marks.mkdir()
        write_tiny(folder, files)
        for entry in os.scandir(folder):  # bring the listing into the cache
            entry.stat()
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "-m", "fidtool"]
        command += ["compute", str(folder), str(folder), "--no-cache", "--quiet", "--device", "cpu"]
        command += ["--extractor", SMALL_NETWORK.replace(":network", ":first_pass")]
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
    end = time.monotonic() + _TIMEOUT
    while time.monotonic() < end:
        files = list(marks.glob("*.json"))
        if len(files) == ranks:
            return [json.loads(file.read_text()) for file in files]
        if run.poll() is not None:
            break
        time.sleep(0.05)
    raise click.ClickException(f"not all of the {ranks} ranks started a forward pass")


@dataclass(frozen=True)
class Line:
    """``fixed + each * images``, in seconds or bytes."""

    fixed: float
    each: float

    @classmethod
    def through(cls, images: list[int], values: list[float]) -> Line:
        """Fit a line that minimises the relative errors, so that small runs count as much as large ones."""
        each, fixed = np.polyfit(images, values, 1, w=1.0 / np.maximum(values, 1e-9))
        return cls(max(0.0, float(fixed)), max(0.0, float(each)))

    def at(self, images: float) -> float:
        """Return the value for this number of images."""
        return self.fixed + self.each * images


@dataclass(frozen=True)
class Model:
    """The fitted cost model.

    Attributes:
        alone: seconds of rank zero's own work: listing, the search for duplicates, everything but the pipeline.
        pipeline: seconds of extraction on one rank.
        memory: bytes of rank zero.
    """

    alone: Line
    pipeline: Line
    memory: Line

    def seconds(self, images: int, ranks: int, rate: float | None, merge: float) -> float:
        """Return the predicted seconds of a run.

        Args:
            images: images in both sets.
            ranks: number of ranks.
            rate: images/s of one rank's pipeline; None uses the fitted rate.
            merge: seconds of the all-reduce.
        """
        each = self.pipeline.each if rate is None else 1.0 / rate
        return self.alone.at(images) + self.pipeline.fixed + each * images / ranks + merge


@click.command()
@click.option(
    "--count",
    "counts",
    type=click.IntRange(8),
    multiple=True,
    default=(1000, 4000, 16000),
    help="Images of the runs to fit the model to. Repeatable.",
)
@click.option("--check", type=click.IntRange(8), default=40000, help="Images of the run to check the model with.")
@click.option("--images", type=click.IntRange(1), default=10_000_000, help="Images of the run to predict.")
@click.option("--ranks", type=click.IntRange(1), multiple=True, default=(1, 8, 64), help="Ranks of that run.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), default=2000.0, help="Images/s per rank of that run.")
@click.option(
    "--merge-ranks", type=click.IntRange(2), multiple=True, default=(2, 4), help="Ranks that merge on this machine."
)
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
    """Predicted time on many images and many ranks.

    The cost model is fitted to small runs. They use a network that takes almost no time, so that everything else is
    measured.
    """
    machine = header("cpu", f"scale: fitted to runs of {', '.join(map(str, counts))} images, checked with {check}")
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
    table(("images", "seconds", "of which extraction"), rows)
    click.echo(
        f"the model predicts {predicted:.1f} s for {checked['images']} images, which took {checked['seconds']:.1f} s "
        f"({predicted / checked['seconds'] - 1:+.1%})"
    )
    far = _predicted(model, images, ranks, rate)
    results = {"runs": runs, "model": asdict(model), "predicted_seconds": predicted, "merges": merges, "far": far}
    _print_merges(merges, max(ranks))
    settings = {"counts": list(counts), "check": check, "images": images, "ranks": list(ranks), "rate": rate}
    publish(json_file, machine, "scale", settings, results)


def _run(folder: Path, count: int) -> dict[str, Any]:
    place = folder / str(count)
    sets = ImageSets(_noise(place / "real", count // 2, 1), _noise(place / "fake", count // 2, 2), count // 2 * 2)
    measured = measure(fidtool_command(sets, "--device", "cpu", "--extractor", SMALL_NETWORK))
    extract = json.loads(measured.stdout)["run"]["seconds"]["extract"]
    found = {"images": sets.total, "seconds": measured.seconds, "pipeline": extract}
    return {**found, "peak_bytes": measured.peak_process_bytes}


def _noise(folder: Path, count: int, seed: int) -> Path:
    """Write images of noise. fidtool looks for no near duplicates in noise, nor in sets of more than 500,000 images."""
    folder.mkdir(parents=True)
    rng = np.random.RandomState(seed)
    for number in range(count):
        pixels = rng.randint(0, 256, (_SIDE, _SIDE, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:06}.png")
    return folder


def _merge(ranks: int) -> dict[str, Any]:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    program = [str(Path(__file__).with_name("programs.py")), "merge", str(_DIMS)]
    found: dict[str, Any] = json.loads(measure([*launch, *program]).stdout)
    return found


def _predicted(model: Model, images: int, ranks: tuple[int, ...], rate: float) -> list[dict[str, float]]:
    click.echo(f"\npredicted for {images:,} images at {rate:g} images/s per rank:")
    rows, found = [], []
    for number in ranks:
        alone, pipeline = model.alone.at(images), images / number / rate
        whole = model.seconds(images, number, rate, 0.0)
        found.append({"ranks": number, "alone_seconds": alone, "pipeline_seconds": pipeline, "seconds": whole})
        rows.append([str(number), f"{pipeline:,.0f}", f"{alone:,.0f}", f"{whole:,.0f}", f"{images / whole:,.0f}"])
    table(("ranks", "pipeline s", "rank zero alone s", "total s", "images/s"), rows)
    click.echo(f"memory of rank zero: {mib(model.memory.at(images))} MiB ({model.memory.each:.0f} bytes per image)")
    return found


def _print_merges(merges: list[dict[str, Any]], ranks: int) -> None:
    for merge in merges:
        click.echo(f"all-reduce among {merge['ranks']} ranks on this machine, over gloo: {merge['seconds']:.2f} s")
    # A ring sends and receives 2 (W - 1) / W times the matrix.
    sent = 2 * (ranks - 1) / ranks * merges[0]["bytes"]
    times = ", ".join(f"{1e3 * sent / rate:.1f} ms over {link}" for link, rate in _LINKS.items())
    click.echo(f"each of {ranks} ranks sends {mib(sent)} MiB per set: {times} (computed)")
