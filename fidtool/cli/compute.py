"""``fidtool compute``."""

from __future__ import annotations

from collections.abc import Callable

import click

from fidtool.cli.loading import loading
from fidtool.cli.options import (
    DIAGNOSIS,
    GATES,
    IMAGES,
    MEASURE,
    METRIC,
    OUTPUT,
    QUIET,
    Function,
    GroupedCommand,
    measuring,
    option,
    refuse_idle_flags,
)
from fidtool.cli.outlet import Outlet, command_of
from fidtool.config import TIES, Config
from fidtool.distributed.cause import stopped
from fidtool.errors import FidtoolError, InputError
from fidtool.record import Origin


def _integer(name: str, least: int, default: int, text: str) -> Callable[[Function], Function]:
    kind = click.IntRange(least)
    return option(name, group=METRIC, type=kind, metavar="N", default=default, show_default=True, help=text)


@click.command(cls=GroupedCommand)
@click.argument("real")
@click.argument("fakes", metavar="FAKE...", nargs=-1, required=True)
@measuring
@option(
    "--expect",
    group=IMAGES,
    type=click.IntRange(1),
    metavar="N",
    help="Refuse a FAKE that has not exactly N images (before --num takes its share).",
)
@option(
    "--allow-mismatch", group=MEASURE, is_flag=True, help="Compare statistics of different protocols, with a warning."
)
@option(
    "--uncertainty",
    group=DIAGNOSIS,
    is_flag=True,
    help="Error bars of the metric fid: its bias, the value without it, the 95 % interval, and which FAKE is better.",
)
@option("--influence", group=DIAGNOSIS, is_flag=True, help="Name the images that raise the metric fid most.")
@option(
    "--report",
    group=OUTPUT,
    metavar="FILE.html",
    help="Write a page with the numbers, charts and pictures (needs fidtool[report]).",
)
@option(
    "--plot",
    group=OUTPUT,
    metavar="FILE.png",
    help="Write the metric fid of the FAKEs as a curve (needs fidtool[report]).",
)
@option("--json", "as_json", group=OUTPUT, is_flag=True, help="Print the result as JSON.")
@option("--output", group=OUTPUT, metavar="FILE", help="Also write the JSON to FILE.")
@_integer("--kid-subset-size", 2, 1000, "KID: images in a subset; no set may have fewer.")
@_integer("--kid-subsets", 1, 100, "KID: number of pairs of random subsets, over which it is the mean.")
@option("--kid-seed", group=METRIC, type=int, default=0, show_default=True, help="KID: which random subsets.")
@_integer("--is-splits", 1, 10, "Inception Score: consecutive parts of a FAKE, over which it is the mean.")
@option("--is-bias", group=METRIC, is_flag=True, help="Inception Score: add the classifier's bias; nobody's default.")
@_integer("--nearest-k", 1, 5, "Precision, recall, density, coverage: neighbours that a ball reaches to.")
@option(
    "--ties",
    group=METRIC,
    type=click.Choice(list(TIES)),
    default="strict",
    show_default=True,
    help="Whether an image on the surface of a ball is outside (as prdc has it) or inside (as StyleGAN and ADM).",
)
@QUIET
@option(
    "--fail-above",
    group=GATES,
    type=click.FloatRange(0),
    metavar="X",
    help="Exit with status 3 if the first Fréchet distance in --metrics (fid, sfid, fid-infinity) is above X.",
)
@option(
    "--max-duplicates",
    group=GATES,
    type=click.FloatRange(0, 1),
    metavar="FRACTION",
    help="Exit with status 3 if more than this fraction of a FAKE are copies of others in it.",
)
def compute(
    real: str,
    fakes: tuple[str, ...],
    settings: Callable[..., Config],
    expect: int | None,
    allow_mismatch: bool,
    uncertainty: bool,
    influence: bool,
    report: str | None,
    plot: str | None,
    as_json: bool,
    output: str | None,
    fail_above: float | None,
    max_duplicates: float | None,
    kid_subset_size: int,
    kid_subsets: int,
    kid_seed: int,
    is_splits: int,
    is_bias: bool,
    nearest_k: int,
    ties: str,
    quiet: bool,
) -> int:
    """FID and other distances of each FAKE to REAL.

    Which ones, --metrics says; all come from one pass over the images.

    REAL and FAKE are images or statistics files (.npz). Images come from a folder; a .zip or .tar, plain or compressed;
    an array (.npy .npz .pt .safetensors); a .parquet; a .txt of paths, or - for one on stdin; a URL of any of these
    (s3:// https:// …); several under one name ('shards-{000..127}.tar'). Nothing is unpacked.

    The numbers go to stdout, everything else to stderr. Exit status: 0 done, 1 failed, 2 bad usage or input, 3 a gate
    was missed, 130 and 143 stopped by Ctrl-C or SIGTERM.
    """
    context = click.get_current_context()
    origin = Origin.here(command_of(context.obj or ()))
    outlet = Outlet(origin, as_json, output, report, plot)
    try:
        refuse_idle_flags(context)
        config = outlet.config = settings(
            expect=expect,
            allow_mismatch=allow_mismatch,
            fail_above=fail_above,
            max_duplicates=max_duplicates,
            uncertainty=uncertainty,
            influence=influence,
            exhibits=report is not None,
            kid_subset_size=kid_subset_size,
            kid_subsets=kid_subsets,
            kid_seed=kid_seed,
            is_splits=is_splits,
            is_bias=is_bias,
            nearest_k=nearest_k,
            ties=ties,
        )
        if plot is not None and "fid" not in config.metrics:
            raise InputError("--plot draws the metric fid, which is not among --metrics")
        return _run(real, fakes, config, quiet, outlet, origin)
    except FidtoolError as error:
        if not error.told and not error.agreed:
            outlet.failed(error, aloud=False)
        raise
    except KeyboardInterrupt:
        outlet.failed(stopped(), aloud=False)
        raise


def _run(real: str, fakes: tuple[str, ...], config: Config, quiet: bool, outlet: Outlet, origin: Origin) -> int:
    from fidtool.console import Console
    from fidtool.distributed.launch import discover

    if discover().world_size == 1:
        from fidtool.inputs import require_exists

        require_exists([real, *fakes])  # a typo is answered before torch is imported
    with loading():
        from fidtool.evaluate import evaluate
        from fidtool.report.as_text import influence_lines, result_lines, timing_line

    console = Console(warnings=True, progress=not quiet, on_failure=outlet.failed)
    evaluation = evaluate(real, fakes, config, console, before=outlet.check, publish=outlet.take, origin=origin)
    if discover().rank > 0:
        # The gate's status is rank zero's to give: launchers kill rank zero when another rank ends before it badly.
        return 0
    console.say(timing_line(evaluation))
    for line in influence_lines(evaluation):
        click.echo(line, err=True)
    outlet.publish(evaluation.to_dict(), result_lines(evaluation))
    if evaluation.exit_code:
        click.echo(evaluation.exit_reason, err=True)
    return evaluation.exit_code
