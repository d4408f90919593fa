#!/usr/bin/env python3
"""The one place where fidtool's speed and memory are measured: ``python scripts/bench.py --help``.

Needs the peers of the ``test`` extra. What is measured end to end runs in processes of its own; this one stays small
and imports no torch there (see `bench_process`).
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import click
from bench_end_to_end import (
    PEERS,
    Contender,
    compared,
    draw,
    fidtool_command,
    fidtool_fid,
    limits,
    our_contenders,
    peers,
    race,
)
from bench_output import MIB, TargetFile, header, json_option, mib, publish, relative_difference, table
from bench_pictures import PictureSets, Recipe, given_sets, make_sets, picture_sets
from bench_process import measure
from bench_scale import scale
from bench_sources import million, sources

SCRIPTS = Path(__file__).resolve().parent
GROWTH_ALLOWED = 0.05
"""Promise 5: memory does not grow with the number of images. This much is left to the list of names and to chance."""
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
DIAGNOSIS_ALLOWED = 0.05
"""Of a run, for looking at the images."""


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
def cli() -> None:
    """Measures fidtool against its peers and the hardware. Run it on an idle machine."""


@cli.command("end-to-end")
@click.option("--count", type=click.IntRange(8), default=1000, help="Pictures in both sets together.")
@click.option("--side", type=click.IntRange(0), default=256, help="Their width and height; 0: mixed sizes.")
@click.option("--format", "suffix", type=click.Choice(["jpg", "png", "webp"]), default="jpg", help="Their format.")
@click.option(
    "--sets", nargs=2, type=click.Path(exists=True, file_okay=False, path_type=Path), help="Your own folders."
)
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), help="Make them here and keep them.")
@click.option("--device", help="cpu, cuda or cuda:1, for all tools.  [default: as fidtool chooses]")
@click.option(
    "--tool",
    "tools",
    type=click.Choice([*PEERS, "none"]),
    multiple=True,
    default=tuple(PEERS),
    help="Peers; none: fidtool alone.",
)
@click.option("--num-workers", type=click.IntRange(0), multiple=True, default=(0, 2), help="The peers'; repeatable.")
@click.option("--batch-size", type=click.IntRange(1), default=50, help="The peers'; 1 where sizes are mixed.")
@click.option(
    "--precision",
    "precisions",
    type=click.Choice(PRECISIONS),
    multiple=True,
    default=("fp32",),
    help="fidtool's beside fp32; repeatable.",
)
@click.option("--compile", "compiled", is_flag=True, help="fidtool with --compile, too.")
@click.option("--ranks", type=click.IntRange(2), multiple=True, help="fidtool under torchrun, too; repeatable.")
@click.option("--repeats", type=click.IntRange(1), default=1, help="Runs of each; the median time counts.")
@click.option(
    "--limit-seconds",
    type=click.FloatRange(0, min_open=True),
    default=10.0,
    help="How long each limit is measured, before and after.",
)
@click.option("--plot", type=TargetFile(), help="Draw the speeds.")
@json_option
def end_to_end(
    count: int,
    side: int,
    suffix: str,
    sets: tuple[Path, Path] | None,
    folder: Path | None,
    device: str | None,
    tools: tuple[str, ...],
    num_workers: tuple[int, ...],
    batch_size: int,
    precisions: tuple[str, ...],
    compiled: bool,
    ranks: tuple[int, ...],
    repeats: int,
    limit_seconds: float,
    plot: Path | None,
    json_file: Path | None,
) -> None:
    """Whole runs of `fidtool compute` and of the peers, and what the hardware allows.

    fidtool runs with its defaults and without its cache, the peers with each of --num-workers (after the first round
    with the better). Times are of whole processes, start-up included, with all files in the page cache.
    """
    if sets and folder:
        raise click.UsageError("--folder is where pictures are made, and --sets are there already: give one of them")
    precisions = tuple(dict.fromkeys(("fp32", *precisions)))
    recipe = Recipe(count // 2, side, suffix)
    title = f"{sets[0]} against {sets[1]}" if sets else str(recipe)
    machine = header(device, f"end to end: {title}, {repeats} run(s) each")
    with (
        given_sets(*sets) if sets else picture_sets(folder, recipe) as pictures,
        tempfile.TemporaryDirectory(prefix="fidtool-bench-") as torch_home,
    ):
        measure([sys.executable, str(SCRIPTS / "bench_weights.py"), torch_home])
        contenders = our_contenders(pictures, machine.device, precisions, compiled, ranks)
        chosen = [tool for tool in tools if tool != "none"]
        contenders += peers(chosen, pictures, machine.device, num_workers, batch_size, torch_home)
        _warm_up(pictures)
        limit = partial(limits, pictures, machine.device, precisions, limit_seconds)
        contenders, allowed = race(contenders, repeats, limit)
    results = compared(contenders, pictures.total, allowed)
    settings = {"pictures": title, "batch_size": batch_size, "repeats": repeats, "num_workers": list(num_workers)}
    publish(json_file, machine, "end-to-end", settings, results)
    if plot is not None:
        draw(plot, results, f"{title}\n{machine.device_name}, {machine.cores} cores")


def _warm_up(sets: PictureSets) -> None:
    """Brings the pictures and the libraries into the page cache; the first to run would pay for all."""
    for file in (*sets.real.iterdir(), *sets.fake.iterdir()):
        file.read_bytes()
    measure([sys.executable, "-c", "import fidtool.pipeline.evaluate, torchvision, scipy.linalg"])


@cli.command()
@click.option("--dims", type=click.IntRange(2), default=2048, help="Dimensions of the features.")
@click.option("--samples", type=click.IntRange(3), default=6000, help="Feature vectors behind each covariance.")
@click.option("--repeats", type=click.IntRange(1), default=3, help="Runs of each; the median time counts.")
@json_option
def distance(dims: int, samples: int, repeats: int, json_file: Path | None) -> None:
    """`fidtool.frechet_distance` against pytorch-fid's (scipy's sqrtm), on the same covariances of full rank."""
    if samples <= dims:
        raise click.UsageError(f"--samples must be more than --dims ({dims}), or the covariances are singular")
    machine = header("cpu", f"distance: D = {dims}, {samples} samples, {repeats} run(s) each")
    from bench_distance import compare_distances

    results = compare_distances(dims, samples, repeats)
    rows = []
    for tool in results["tools"]:
        numbers = [f"{tool['median_seconds']:.3f}", f"{tool['busy_cores']:.1f}"]
        rows.append([tool["tool"], *numbers, repr(tool["distance"])])
    table(("tool", "seconds", "busy cores", "distance"), rows)
    ours, theirs = results["tools"]
    results["speed_ratio"] = theirs["median_seconds"] / ours["median_seconds"]
    results["relative_difference"] = relative_difference(ours["distance"], theirs["distance"])
    click.echo(
        f"fidtool ({results['fidtool_threads']} threads) is {results['speed_ratio']:.2f} times as fast as pytorch-fid; "
        f"the values differ by {results['relative_difference']:.1e}"
    )
    publish(json_file, machine, "distance", {"dims": dims, "samples": samples, "repeats": repeats}, results)


@cli.command()
@click.option("--count", type=click.IntRange(2), default=100, help="Pictures.")
@click.option("--side", type=click.IntRange(0), default=256, help="Their width and height; 0: mixed sizes.")
@click.option("--format", "suffix", type=click.Choice(["jpg", "png", "webp"]), default="jpg", help="Their format.")
@click.option("--seconds", type=click.FloatRange(0, min_open=True), default=3.0, help="How long each is measured.")
@json_option
def decoders(count: int, side: int, suffix: str, seconds: float, json_file: Path | None) -> None:
    """Pillow and other decoders, as far as they are installed: speed, and whether their pixels are Pillow's."""
    from bench_decoders import COLUMNS, compare_decoders, table_rows

    recipe = Recipe(count, side, suffix)
    machine = header("cpu", f"decoders: {recipe}")
    with picture_sets(None, recipe) as sets:
        results = compare_decoders(sets, seconds)
    table(COLUMNS, table_rows(results))
    publish(json_file, machine, "decoders", {"count": count, "side": side, "format": suffix}, results)


@cli.command()
@click.option("--small", type=click.IntRange(4), default=2000, help="Images in the small run, both sets together.")
@click.option("--large", type=click.IntRange(4), default=20000, help="Images in the large run.")
@click.option("--repeats", type=click.IntRange(1), default=1, help="Runs of each; the median peak counts.")
@json_option
def memory(small: int, large: int, repeats: int, json_file: Path | None) -> None:
    """Peak memory of `fidtool compute` on few and on many images; exit status 1 if it grows by more than 5 %."""
    if small // 2 >= large // 2:
        raise click.UsageError("--large must be more than --small")
    machine = header("cpu", f"memory: {small} and {large} images of 8x8 pixels, a network of 64 features, on the CPU")
    network = f"{SCRIPTS / 'small_network.py'}:network"
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="fidtool-bench-") as folder:
        for name, count in (("small", small), ("large", large)):
            sets = make_sets(Path(folder) / name, Recipe(count // 2, 8, "png"))
            command = fidtool_command(sets, "--device", "cpu", "--extractor", network)
            contender = Contender(f"{sets.total} images", command, fidtool_fid)
            for _ in range(repeats):
                contender.run()
            peaks = [run.peak_process_bytes for run in contender.runs]
            costs = {"peaks_bytes": peaks, "peak_bytes": statistics.median(peaks), "seconds": contender.seconds}
            runs.append({"images": sets.total, **costs, "fid": contender.fids[0]})
    rows = [[str(run["images"]), f"{run['peak_bytes'] / MIB:.1f}", f"{run['seconds']:.1f}"] for run in runs]
    table(("images", "peak MiB", "seconds"), rows)
    ratio = runs[1]["peak_bytes"] / runs[0]["peak_bytes"]
    passed = ratio <= 1.0 + GROWTH_ALLOWED
    verdict = "PASS" if passed else "FAIL"
    click.echo(f"{verdict}: large to small is {ratio:.4f} (at most {1.0 + GROWTH_ALLOWED} is allowed)")
    # Most of the peak is torch itself, so the ratio forgives much: these two say what it cannot.
    imports = measure([sys.executable, "-c", "import fidtool.pipeline.evaluate"]).peak_process_bytes
    per_image = (runs[1]["peak_bytes"] - runs[0]["peak_bytes"]) / (runs[1]["images"] - runs[0]["images"])
    click.echo(f"{per_image:.0f} bytes for each image more; importing torch alone peaks at {mib(imports)} MiB")
    results = {"runs": runs, "ratio": ratio, "allowed_ratio": 1.0 + GROWTH_ALLOWED, "pass": passed}
    results |= {"bytes_per_image": per_image, "imports_peak_bytes": imports}
    publish(json_file, machine, "memory", {"small": small, "large": large, "repeats": repeats}, results)
    sys.exit(0 if passed else 1)


@cli.command()
@click.option("--count", type=click.IntRange(24), default=20000, help="Pictures in both sets together.")
@click.option("--side", type=click.IntRange(8), default=32, help="Their width and height.")
@click.option("--device", help="cpu, cuda or cuda:1.  [default: as fidtool chooses]")
@click.option("--small-network", is_flag=True, help="64 features of a network that costs next to nothing.")
@json_option
def metrics(count: int, side: int, device: str | None, small_network: bool, json_file: Path | None) -> None:
    """The cost of KID, precision, recall, density and coverage beside FID; status 1 if images are extracted twice."""
    from bench_metrics import COLUMNS, compare_metrics, table_rows

    machine = header(device, f"metrics: 2 x {count // 2} pictures, {side}x{side} png, 1 run each")
    options = ["--extractor", f"{SCRIPTS / 'small_network.py'}:network"] if small_network else []
    with picture_sets(None, Recipe(count // 2, side, "png")) as sets:
        results = compare_metrics(sets, machine.device, options)
    table(COLUMNS, table_rows(results["runs"]))
    own = results["extra_seconds"]
    click.echo(f"beside FID alone they take {100 * results['cost']:+.1f} % ({own:.1f} s of their own)")
    publish(json_file, machine, "metrics", {"count": count, "side": side, "small_network": small_network}, results)
    sys.exit(1 if results["extraction_repeated"] else 0)


@cli.command()
@click.option("--count", type=click.IntRange(12), default=50000, help="Feature vectors in each set.")
@click.option("--dims", type=click.IntRange(1), default=2048, help="Their length.")
@json_option
def features(count: int, dims: int, json_file: Path | None) -> None:
    """FID, KID, precision, recall, density and coverage of made-up features in statistics files, on the CPU."""
    from bench_metrics import ALL, COLUMNS, from_features, table_rows

    machine = header("cpu", f"features: 2 x {count} vectors of {dims} dimensions, 1 run")
    results = from_features(count, dims)
    table(COLUMNS, table_rows({ALL: results}))
    publish(json_file, machine, "features", {"count": count, "dims": dims}, results)


@cli.command()
@click.option("--count", type=click.IntRange(8), default=1000, help="Pictures in both sets together.")
@click.option("--side", type=click.IntRange(8), default=256, help="Their width and height.")
@click.option("--format", "suffix", type=click.Choice(["jpg", "png", "webp"]), default="jpg", help="Their format.")
@click.option("--device", help="cpu, cuda or cuda:1.  [default: as fidtool chooses]")
@click.option("--repeats", type=click.IntRange(1), default=3, help="Runs with and without; the median time counts.")
@click.option("--small-network", is_flag=True, help="64 features of a network that costs next to nothing.")
@json_option
def diagnosis(
    count: int, side: int, suffix: str, device: str | None, repeats: int, small_network: bool, json_file: Path | None
) -> None:
    """What looking for copies and faulty pictures costs, which every run does; exit status 1 if beyond 5 % of it."""
    from bench_diagnosis import COLUMNS, diagnosis_cost, table_rows

    machine = header(device, f"diagnosis: 2 x {count // 2} pictures, {side}x{side} {suffix}, {repeats} run(s) each")
    options = ["--extractor", f"{SCRIPTS / 'small_network.py'}:network"] if small_network else []
    with picture_sets(None, Recipe(count // 2, side, suffix)) as sets:
        results = diagnosis_cost(sets, ["--device", machine.device, *options], repeats)
    table(COLUMNS, table_rows(results["runs"]))
    record, decode = (1e3 * results[f"seconds_a_{part}"] for part in ("record", "decode"))
    share = f"with the search for copies that is {results['own_share']:.2%} of the run"
    click.echo(f"a picture's record takes {record:.2f} ms beside {decode:.2f} ms for decoding it; {share}")
    click.echo(f"whole runs with it take {results['cost']:+.1%} (medians)")
    passed = results["own_share"] <= DIAGNOSIS_ALLOWED
    click.echo(f"{'PASS' if passed else 'FAIL'}: at most {DIAGNOSIS_ALLOWED:.0%} of the run is allowed")
    results |= {"allowed_share": DIAGNOSIS_ALLOWED, "pass": passed}
    publish(json_file, machine, "diagnosis", {"count": count, "side": side, "format": suffix}, results)
    sys.exit(0 if passed else 1)


@cli.command()
@click.option("--device", help="cpu, cuda or cuda:1.  [default: as fidtool chooses]")
@click.option("--precision", type=click.Choice(PRECISIONS), default="fp32", help="As of `fidtool compute`.")
@click.option("--compile", "compiled", is_flag=True, help="As of `fidtool compute`.")
@click.option("--passes", type=click.IntRange(1), default=20, help="Batches that are profiled.")
@json_option
def profile(device: str | None, precision: str, compiled: bool, passes: int, json_file: Path | None) -> None:
    """Which operations the network's time goes to, by torch.profiler."""
    machine = header(device, f"profile: {passes} batches, {precision}{', compiled' if compiled else ''}")
    from bench_profile import COLUMNS, operations, table_rows

    results = operations(machine.device, precision, compiled, passes)
    table(COLUMNS, table_rows(results))
    rate = 1e3 * results["batch_size"] / results["milliseconds"]
    click.echo(
        f"{results['milliseconds']:.1f} ms for a batch of {results['batch_size']}, one at a time: {rate:.1f} images/s"
    )
    publish(json_file, machine, "profile", {"precision": precision, "compiled": compiled, "passes": passes}, results)


cli.add_command(sources)
cli.add_command(million)
cli.add_command(scale)

if __name__ == "__main__":
    cli()
