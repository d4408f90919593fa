"""How time and memory grow with the number of images: the command ``growth``."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from bench.end_to_end import Contender, fidtool_command, fidtool_fid
from bench.images import Recipe, make_sets
from bench.process import measure
from bench.report import MIB, SMALL_NETWORK, header, json_option, mib, publish, table

GROWTH_ALLOWED = 0.05
"""Memory must not grow with the number of images. This share is left for the list of names and for
noise.
"""


@click.command()
@click.option(
    "--count",
    "counts",
    type=click.IntRange(4),
    multiple=True,
    default=(2000, 20000),
    help="Images of a run, both sets together. Repeatable, the smallest first.",
)
@click.option(
    "--repeats", type=click.IntRange(1), default=1, help="Runs of each size; medians are reported."
)
@json_option
def growth(counts: tuple[int, ...], repeats: int, json_file: Path | None) -> None:
    """Time and peak memory on few and on many images.

    The images are tiny and the network takes almost no time, so that everything else is measured.
    The exit status is 1 if the peak memory of `fidtool compute` grows by more than 5 %.
    """
    if len(counts) < 2 or list(counts) != sorted(set(counts)):
        raise click.UsageError("--count: pass at least two numbers of images, the smallest first")
    machine = header(
        "cpu",
        f"growth: {', '.join(map(str, counts))} images of 8x8 pixels, a network of 64 features",
    )
    with tempfile.TemporaryDirectory(prefix="fidtool-bench-") as folder:
        runs = [_runs(Path(folder) / str(count), count, repeats) for count in counts]
    table(
        ("images", "seconds", "of which extraction", "peak MiB"),
        [
            [
                str(run["images"]),
                f"{run['seconds']:.1f}",
                f"{run['extract']:.1f}",
                f"{run['peak_bytes'] / MIB:.1f}",
            ]
            for run in runs
        ],
    )
    few, many = runs[0], runs[-1]
    ratio = many["peak_bytes"] / few["peak_bytes"]
    passed = ratio <= 1.0 + GROWTH_ALLOWED
    verdict = "PASS" if passed else "FAIL"
    click.echo(
        f"{verdict}: the memory grows by a factor of {ratio:.4f} (at most {1.0 + GROWTH_ALLOWED} "
        "is allowed)"
    )
    # Most of the peak is torch itself, which hides growth in the ratio. These numbers do not hide
    # it.
    imports = measure([sys.executable, "-c", "import fidtool.api"]).peak_process_bytes
    more = many["images"] - few["images"]
    each = {name: (many[name] - few[name]) / more for name in ("seconds", "extract", "peak_bytes")}
    click.echo(
        f"per additional image: {1e6 * each['seconds']:.0f} µs, of which extraction "
        f"{1e6 * each['extract']:.0f} µs, and {each['peak_bytes']:.0f} bytes; importing torch "
        f"alone peaks at {mib(imports)} MiB"
    )
    results = {"runs": runs, "ratio": ratio, "allowed_ratio": 1.0 + GROWTH_ALLOWED, "pass": passed}
    results |= {"per_image": each, "imports_peak_bytes": imports}
    publish(json_file, machine, "growth", {"counts": list(counts), "repeats": repeats}, results)
    sys.exit(0 if passed else 1)


def _runs(folder: Path, count: int, repeats: int) -> dict[str, Any]:
    """Run ``fidtool compute`` on ``count`` images, and return the medians."""
    sets = make_sets(folder, Recipe(count // 2, 8, "png"))
    command = fidtool_command(sets, "--device", "cpu", "--extractor", SMALL_NETWORK)
    contender = Contender(f"{sets.total} images", command, fidtool_fid)
    for _ in range(repeats):
        contender.run()
    extract = [json.loads(run.stdout)["run"]["seconds"]["extract"] for run in contender.runs]
    return {
        "images": sets.total,
        "seconds": contender.seconds,
        "extract": statistics.median(extract),
        "peak_bytes": statistics.median(run.peak_process_bytes for run in contender.runs),
        "fid": contender.fids[0],
    }
