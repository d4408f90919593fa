"""PSNR and SSIM beside the FID against the FID alone: the command ``pairs``."""

from __future__ import annotations

from pathlib import Path

import click

from bench.report import MIB, header, json_option, publish, table
from bench.variants import run_options, run_variants

METRICS = {"fid": "fid", "pairs": "psnr,ssim", "both": "fid,psnr,ssim"}
PARTS = {
    "seconds": "seconds",
    "extract": "of which images",
    "decode": "decoding",
    "network": "forward passes",
    "pairs": "pairs",
}


@click.command()
@run_options
@json_option
def pairs(count: int, side: int, repeats: int, json_file: Path | None) -> None:
    """Time and peak memory of FID, PSNR and SSIM in one run, and of the FID or the other two
    alone.
    """
    machine = header("cpu", f"pairs: {count // 2} pairs of JPEGs of {side}x{side} pixels")
    variants = {name: ("--metrics", metrics) for name, metrics in METRICS.items()}
    runs = run_variants(variants, count, side, repeats)
    rows = []
    for name, run in runs.items():
        seconds = [f"{run[part]:.2f}" for part in PARTS]
        rows.append([METRICS[name], *seconds, f"{run['peak_bytes'] / MIB:.0f}"])
    table(("metrics", *PARTS.values(), "peak MiB"), rows)
    ratio = runs["both"]["seconds"] / runs["fid"]["seconds"]
    ratio_of_images = runs["both"]["extract"] / runs["fid"]["extract"]
    click.echo(f"fid,psnr,ssim / fid = {ratio:.3f} of the run, {ratio_of_images:.3f} of its images")
    settings = {"count": count, "side": side, "repeats": repeats}
    results = {"runs": runs, "ratio": ratio, "ratio_of_images": ratio_of_images}
    publish(json_file, machine, "pairs", settings, results)
