"""``fidtool stats``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from fidtool.cli.options import QUIET, GroupedCommand, option, settings_options
from fidtool.cli.output import check_suffix, local_file, print_failure
from fidtool.errors import InputError, RunError
from fidtool.settings import OUTPUT, Settings, StatisticsSettings

_EXAMPLES = (
    ("Compute the statistics of the real images once", "fidtool stats real/ -o real.npz"),
    ("Store the features as well, which KID needs", "fidtool stats real/ -o real-kid.npz --metrics fid,kid"),
    ("Use the statistics", "fidtool compute real.npz fake/"),
)


@click.command(cls=GroupedCommand, examples=_EXAMPLES)
@click.argument("images")
@settings_options(StatisticsSettings)
@option("--output", "-o", group=OUTPUT, metavar="FILE.npz", required=True, help="Statistics file to write.")
@QUIET
@option("--force", group=OUTPUT, is_flag=True, help="Overwrite FILE.npz.")
def stats(
    images: str,
    settings: Callable[[], Settings],
    output: str,
    force: bool,
    quiet: bool,
) -> None:
    """Write the mean and covariance of a set of images to a file, which `compute` takes as REAL or FAKE.

    IMAGES is a set of images in any form that `compute` accepts.

    With --metrics kid, prdc or other metrics that use per-image features, the file has these features as well.
    pytorch-fid can read the file.
    """
    chosen = settings()
    from fidtool.distributed.launch import discover

    target = local_file("-o", output)
    if discover().world_size == 1:
        from fidtool.pipeline.opened import require_exists

        _check_target(target, force)  # reports a typo before the slow import of torch
        require_exists([images])
    from fidtool.console import Console
    from fidtool.pipeline.evaluate import compute_statistics
    from fidtool.pipeline.inputs import Inputs
    from fidtool.pipeline.run import open_run
    from fidtool.statistics.statistics_file import write_statistics

    console = Console(warnings=True, progress=not quiet, on_failure=print_failure)
    with open_run([images], chosen, console) as run:
        run.world.on_rank_zero(lambda: _check_target(target, force))
        statistics = compute_statistics(Inputs(run, [images], real=False))
    if statistics is None:
        return
    try:
        write_statistics(target, statistics)
    except OSError as error:
        raise RunError(f"the statistics could not be written to {target}: {error.strerror or error}") from None
    console.say(f"wrote {target}: {statistics.count} images, {statistics.dims} dimensions")


def _check_target(target: Path, force: bool) -> None:
    """Check that the file can be written and read back, before any work is done."""
    from fidtool.cache_dir import check_target

    check_target(f"-o {target}", target)
    check_suffix("-o", target, ".npz")
    if target.exists() and not force:
        raise InputError(f"{target} exists", "pass --force to overwrite it")
