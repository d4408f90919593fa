"""``fidtool compute``."""

from __future__ import annotations

from collections.abc import Callable

import click

from fidtool.cli.options import QUIET, GroupedCommand, option, settings_options
from fidtool.cli.output import Outlet, command_of, loading
from fidtool.distributed.failure import stopped_error
from fidtool.errors import FidtoolError
from fidtool.record import Origin
from fidtool.settings import OUTPUT, Settings


@click.command(cls=GroupedCommand)
@click.argument("real")
@click.argument("fakes", metavar="FAKE...", nargs=-1, required=True)
@settings_options(Settings)
@option("--json", "as_json", group=OUTPUT, is_flag=True, help="Print the result as JSON.")
@option("--output", group=OUTPUT, metavar="FILE", help="Also write the JSON to FILE.")
@QUIET
def compute(
    real: str,
    fakes: tuple[str, ...],
    settings: Callable[[], Settings],
    as_json: bool,
    output: str | None,
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
    outlet = Outlet(origin, as_json, output, [real, *fakes])
    try:
        chosen = settings()
        outlet.use(chosen)
        return _run(real, fakes, chosen, quiet, outlet, origin)
    except FidtoolError as error:
        if not error.printed and not error.agreed:
            outlet.failed(error, aloud=False)
        raise
    except KeyboardInterrupt:
        outlet.failed(stopped_error(), aloud=False)
        raise


def _run(real: str, fakes: tuple[str, ...], settings: Settings, quiet: bool, outlet: Outlet, origin: Origin) -> int:
    from fidtool.console import Console
    from fidtool.distributed.launch import discover

    if discover().world_size == 1:
        from fidtool.pipeline.inputs import require_exists

        require_exists([real, *fakes])  # a typo is answered before torch is imported
    with loading():
        from fidtool.pipeline.evaluate import evaluate
        from fidtool.pipeline.inputs import Inputs
        from fidtool.pipeline.run import open_run
        from fidtool.report.files import write_plot, write_report
        from fidtool.report.text import influence_lines, result_lines, timing_line

    paths = [real, *fakes]
    console = Console(warnings=True, progress=not quiet, on_failure=outlet.failed)
    with open_run(paths, settings, console) as run:
        run.world.on_rank_zero(outlet.check)
        inputs = Inputs(run, paths)
        evaluation, exhibits = evaluate(inputs, origin)
    if discover().rank > 0:
        # The gate's status is rank zero's to give: launchers kill rank zero when another rank ends before it badly.
        return 0
    console.say(timing_line(evaluation))
    for line in influence_lines(evaluation):
        click.echo(line, err=True)
    lookup = inputs.lookup()
    writers = {
        "report": lambda file: write_report(evaluation, exhibits, lookup, file),
        "plot": lambda file: write_plot(evaluation, file),
    }
    outlet.publish(evaluation.to_dict(), result_lines(evaluation), writers)
    if evaluation.exit_code:
        click.echo(evaluation.exit_reason, err=True)
    return evaluation.exit_code
