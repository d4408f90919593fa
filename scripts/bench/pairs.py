"""PSNR and SSIM beside the FID against the FID alone: the command ``pairs``."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from bench.end_to_end import Contender, fidtool_command
from bench.images import Recipe, make_sets
from bench.joint import first_value, medians
from bench.report import MIB, header, json_option, publish, table

METRICS = {"fid": "fid", "pairs": "psnr,ssim", "both": "fid,psnr,ssim"}


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
def pairs(count: int, side: int, repeats: int, json_file: Path | None) -> None:
    """Time and peak memory of FID, PSNR and SSIM in one run, and of the FID or the other two
    alone.
    """
    machine = header("cpu", f"pairs: {count // 2} pairs of JPEGs of {side}x{side} pixels")
    with tempfile.TemporaryDirectory(prefix="fidtool-bench-") as folder:
        sets = make_sets(Path(folder), Recipe(count // 2, side, "jpg"))
        contenders = {
            name: Contender(
                name, fidtool_command(sets, "--device", "cpu", "--metrics", metrics), first_value
            )
            for name, metrics in METRICS.items()
        }
        for _ in range(repeats):
            for each in contenders.values():
                each.run()
    runs = {name: medians(each) for name, each in contenders.items()}
    columns = ("seconds", "extract", "decode", "network", "pairs")
    table(
        (
            "metrics",
            "seconds",
            "of which images",
            "decoding",
            "forward passes",
            "pairs",
            "peak MiB",
        ),
        [
            [
                METRICS[name],
                *(f"{run[each]:.2f}" for each in columns),
                f"{run['peak_bytes'] / MIB:.0f}",
            ]
            for name, run in runs.items()
        ],
    )
    ratio, images = (runs["both"][each] / runs["fid"][each] for each in ("seconds", "extract"))
    click.echo(f"fid,psnr,ssim / fid = {ratio:.3f} of the run, {images:.3f} of its images")
    results = {"runs": runs, "ratio": ratio, "ratio_of_images": images}
    publish(
        json_file, machine, "pairs", {"count": count, "side": side, "repeats": repeats}, results
    )
