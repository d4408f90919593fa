"""Two networks in one run against a run of each: the command ``joint``."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from bench.end_to_end import Contender, fidtool_command
from bench.images import Recipe, make_sets
from bench.report import MIB, VIT, header, json_option, publish, table

ALLOWED = 0.05
"""The images may take this share longer in the joint run than the forward passes of both networks
in their own runs.
"""


@click.command()
@click.option(
    "--count", type=click.IntRange(4), default=200, help="Images of a run, both sets together."
)
@click.option(
    "--side", type=click.IntRange(8), default=256, help="Their height and width in pixels."
)
@click.option(
    "--repeats",
    type=click.IntRange(1),
    default=3,
    help="Runs of each, in turn; medians are reported.",
)
@json_option
def joint(count: int, side: int, repeats: int, json_file: Path | None) -> None:
    """Time and peak memory of Inception and a small ViT (ViT-S/16) in one run, and of a run of
    each.

    The exit status is 1 if the images take more than 5 % longer in the joint run than both
    networks' forward passes.
    """
    machine = header("cpu", f"joint: {count} JPEGs of {side}x{side} pixels, Inception and ViT-S/16")
    networks = {"Inception": "inception", "ViT": VIT, "both": f"inception,{VIT}"}
    with tempfile.TemporaryDirectory(prefix="fidtool-bench-") as folder:
        sets = make_sets(Path(folder), Recipe(count // 2, side, "jpg"))
        contenders = {
            name: Contender(
                name, fidtool_command(sets, "--device", "cpu", "--extractor", spec), first_value
            )
            for name, spec in networks.items()
        }
        for _ in range(repeats):
            for each in contenders.values():
                each.run()
    runs = {name: medians(each) for name, each in contenders.items()}
    columns = ("seconds", "extract", "decode", "network")
    table(
        ("networks", "seconds", "of which images", "decoding", "forward passes", "peak MiB"),
        [
            [name, *(f"{run[each]:.1f}" for each in columns), f"{run['peak_bytes'] / MIB:.0f}"]
            for name, run in runs.items()
        ],
    )
    apart = runs["Inception"]["network"] + runs["ViT"]["network"]
    ratio = runs["both"]["extract"] / apart
    passed = ratio <= 1.0 + ALLOWED
    verdict = "PASS" if passed else "FAIL"
    click.echo(
        f"{verdict}: images of the joint run / forward passes apart = {ratio:.3f} (at most "
        f"{1.0 + ALLOWED})"
    )
    results = {"runs": runs, "ratio": ratio, "allowed_ratio": 1.0 + ALLOWED, "pass": passed}
    publish(
        json_file, machine, "joint", {"count": count, "side": side, "repeats": repeats}, results
    )
    sys.exit(0 if passed else 1)


def medians(contender: Contender) -> dict[str, Any]:
    """Return the medians of a contender's runs: seconds, those of parts of the extraction, and
    bytes.
    """
    records = [json.loads(run.stdout)["run"] for run in contender.runs]
    parts = {
        name: statistics.median(each["extraction"].get(name, 0.0) for each in records)
        for name in ("decode", "network", "pairs")
    }
    return {
        **parts,
        "seconds": contender.seconds,
        "extract": statistics.median(each["seconds"]["extract"] for each in records),
        "peak_bytes": statistics.median(run.peak_process_bytes for run in contender.runs),
        "fid": contender.fids[0],
    }


def first_value(stdout: str) -> float:
    """Return the first value of the result."""
    return float(next(iter(json.loads(stdout)["results"][0]["metrics"].values())))
