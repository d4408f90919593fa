"""Two networks in one run against a run of each: the command ``joint``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from bench.report import MIB, VIT, header, json_option, publish, table
from bench.variants import run_options, run_variants

NETWORKS = {"Inception": "inception", "ViT": VIT, "both": f"inception,{VIT}"}
PARTS = {
    "seconds": "seconds",
    "extract": "of which images",
    "decode": "decoding",
    "network": "forward passes",
}
ALLOWED = 0.05
"""The images may take this share longer in the joint run than the forward passes of both networks
in their own runs.
"""


@click.command()
@run_options
@json_option
def joint(count: int, side: int, repeats: int, json_file: Path | None) -> None:
    """Time and peak memory of Inception and a small ViT (ViT-S/16) in one run, and of a run of
    each.

    The exit status is 1 if the images take more than 5 % longer in the joint run than both
    networks' forward passes.
    """
    machine = header("cpu", f"joint: {count} JPEGs of {side}x{side} pixels, Inception and ViT-S/16")
    variants = {name: ("--extractor", spec) for name, spec in NETWORKS.items()}
    runs = run_variants(variants, count, side, repeats)
    rows = []
    for name, run in runs.items():
        seconds = [f"{run[part]:.1f}" for part in PARTS]
        rows.append([name, *seconds, f"{run['peak_bytes'] / MIB:.0f}"])
    table(("networks", *PARTS.values(), "peak MiB"), rows)
    apart = runs["Inception"]["network"] + runs["ViT"]["network"]
    ratio = runs["both"]["extract"] / apart
    passed = ratio <= 1.0 + ALLOWED
    verdict = "PASS" if passed else "FAIL"
    click.echo(
        f"{verdict}: images of the joint run / forward passes apart = {ratio:.3f} (at most "
        f"{1.0 + ALLOWED})"
    )
    settings = {"count": count, "side": side, "repeats": repeats}
    results = {"runs": runs, "ratio": ratio, "allowed_ratio": 1.0 + ALLOWED, "pass": passed}
    publish(json_file, machine, "joint", settings, results)
    sys.exit(0 if passed else 1)
