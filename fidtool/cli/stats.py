"""``fidtool stats``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from fidtool.cache_dir import check_target
from fidtool.cli.options import QUIET, TYPED, Command, option
from fidtool.cli.output import as_flag, check_early, local_file
from fidtool.errors import InputError, RunError
from fidtool.features.protocol import WRITTEN_LAYOUTS, protocol_named
from fidtool.settings import OUTPUT, Settings, StatisticsSettings

_EXAMPLES = (
    ("Compute the statistics of the real images once", "fidtool stats real/ -o real.npz"),
    ("Store the features as well, which KID needs", "fidtool stats real/ -o real-kid.npz --metrics fid,kid"),
    ("A reference for ADM's evaluator", "fidtool stats real/ -o REF.npz --layout adm --crop adm:256"),
)


@click.command(cls=Command, settings=StatisticsSettings, examples=_EXAMPLES)
@click.argument("images")
@option("--output", "-o", group=OUTPUT, metavar="FILE.npz", required=True, help="Statistics file to write.")
@option(
    "--layout",
    group=OUTPUT,
    type=click.Choice([*WRITTEN_LAYOUTS], case_sensitive=False),
    help="Write FILE.npz for another project's evaluator, with its protocol: edm is EDM2's, too. [default: fidtool's]",
)
@option(
    "--images",
    "stored",
    group=OUTPUT,
    metavar="N",
    type=int,
    help="With --layout adm, store a random sample of N images. [default: 10000, or all if there are fewer]",
)
@option(
    "--complete",
    group=OUTPUT,
    metavar="FILE.npz",
    help="Take the networks that a statistics file of the same images has from it, and compute the others.",
)
@QUIET
@option("--force", group=OUTPUT, is_flag=True, help="Overwrite FILE.npz.")
def stats(
    images: str,
    settings: Callable[[], Settings],
    output: str,
    layout: str | None,
    stored: int | None,
    complete: str | None,
    force: bool,
    quiet: bool,
) -> None:
    """Write the mean and covariance of a set of images to a file, which `compute` takes as REAL or FAKE.

    IMAGES is a set of images in any form that `compute` accepts.

    With --metrics kid, prdc or other metrics that use per-image features, the file has these features as well.
    pytorch-fid can read the file.
    """
    chosen = settings()
    if layout is not None:
        chosen = _in_layout(chosen, layout)
    if stored is not None and layout != "adm":
        raise InputError("only files with --layout adm have --images")
    target = local_file("-o", output)
    check = partial(_check_target, target, layout, force)
    check_early([images], check=check)
    from fidtool.api import statistics_of
    from fidtool.console import Console
    from fidtool.statistics.statistics_file import read_statistics, write_statistics

    console = Console(warnings=True, progress=not quiet, spelling=as_flag)
    known = (lambda: None) if complete is None else partial(read_statistics, complete)
    statistics, sample = statistics_of([(images, "")], chosen, console, check, layout == "adm", stored, known)
    if statistics is None:
        return
    try:
        write_statistics(target, statistics, layout, sample)
    except OSError as error:
        raise RunError(f"the statistics could not be written to {target}: {error.strerror or error}") from None
    form = "" if layout is None else f", layout {layout}, protocol {chosen.protocol}"
    form += "" if sample is None else f", {len(sample)} of them in arr_0"
    console.say(f"wrote {target}: {statistics.count} images, {statistics.dims} dimensions{form}")


def _in_layout(settings: Settings, layout: str) -> Settings:
    """Return the settings with which a layout's project computes statistics."""
    protocol: Any = protocol_named(layout).name
    others = {
        "preset" if settings.preset else "protocol": settings.protocol not in (None, protocol),
        "extractor": settings.network.extractor != "inception",
        "dims": settings.dims not in (None, 2048),
        "metrics": click.get_current_context().get_parameter_source("metrics") == TYPED,
    }
    for name in (name for name, differs in others.items() if differs):
        problem = f"--layout {layout} is for Inception's 2048 dimensions and the protocol {protocol}:"
        raise InputError(problem, f"omit {as_flag(name)}, which follows from it", setting=name)
    return replace(settings, protocol=protocol, metrics=WRITTEN_LAYOUTS[layout])


def _check_target(target: Path, layout: str | None, force: bool) -> None:
    """Check that the file can be written and read back, before any work is done."""
    from fidtool.statistics.statistics_file import features_file

    check_target(f"-o {target}", target)
    local_file("-o", str(target), (".npz",))
    for file in (target, features_file(target)) if layout == "clean-fid" else (target,):
        if file.exists() and not force:
            raise InputError(f"{file} exists", "pass --force to overwrite it")
