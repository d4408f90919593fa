"""``fidtool compute``."""

from __future__ import annotations

from collections.abc import Callable

import click

from fidtool.cli.options import QUIET, Command, as_flag, option, settings_options
from fidtool.cli.output import Outlet, on_terminal
from fidtool.distributed.failure import stopped_error
from fidtool.errors import FidtoolError, InputError
from fidtool.settings import OUTPUT, Origin, Settings

_EXAMPLES = (
    ("FID of generated images", "fidtool compute real/ fake/"),
    ("The same value, computed on 8 GPUs", "torchrun --nproc-per-node=8 -m fidtool compute real/ fake/"),
    ("A CI gate: exit status 3 if the FID is above 20", "fidtool compute real/ fake/ --fail-above 20 -o fid.json"),
)


@click.command(cls=Command, examples=_EXAMPLES)
@click.argument("real")
@click.argument("fakes", metavar="FAKE...", nargs=-1, required=True)
@settings_options(Settings)
@option(
    "--format",
    "form",
    group=OUTPUT,
    type=click.Choice(("table", "lines", "json")),
    help="How to print the result. [default: table on a terminal if there are several values, else lines]",
)
@option("--json", "as_json", group=OUTPUT, is_flag=True, help="Same as --format json.")
@option("--output", "-o", group=OUTPUT, metavar="FILE.json", help="Also write the result to a file, as JSON.")
@QUIET
def compute(
    real: str,
    fakes: tuple[str, ...],
    settings: Callable[[], Settings],
    form: str | None,
    as_json: bool,
    output: str | None,
    quiet: bool,
) -> int:
    """Compute the FID and other metrics of each FAKE against REAL.

    REAL and FAKE are sets of images, statistics files (.npz .pkl) or published references such as adm:imagenet256,
    see `fidtool refs`. A set is a folder; a .zip or .tar archive, also compressed; an array (.npy .npz .pt
    .safetensors); a .parquet file; a list of paths (.txt, or .csv .tsv .jsonl with a column of them), or - for such a
    list on stdin; or a URL of any of these (s3://, https://, ...). Braces and wildcards join several files into one
    set ('shards-{000..127}.tar'). Archives are read without unpacking.

    Results are printed on stdout, everything else on stderr. Exit status: 0 success, 1 failure at run time, 2 bad
    usage or input, 3 missed gate, 130 or 143 stopped by Ctrl-C or SIGTERM.
    """
    if output == "-":  # for stdout, as in other programs
        as_json, output = True, None
    if as_json and form not in (None, "json"):
        raise InputError(f"--json and --format {form} contradict each other:", "pass one of them")
    origin = Origin.here(("fidtool", *(click.get_current_context().obj or ())))
    outlet = Outlet(origin, as_json or form == "json", output)
    try:
        chosen = settings()
        outlet.use(chosen)
        return _run(real, fakes, chosen, form, quiet, outlet, origin)
    except FidtoolError as error:
        if not error.printed and not error.agreed:
            outlet.failed(error, show=False)
        raise
    except KeyboardInterrupt:
        outlet.failed(stopped_error(), show=False)
        raise


def _run(
    real: str, fakes: tuple[str, ...], settings: Settings, form: str | None, quiet: bool, outlet: Outlet, origin: Origin
) -> int:
    from fidtool.console import Console
    from fidtool.distributed.launch import discover

    if discover().world_size == 1:
        from fidtool.pipeline.opening import require_exists, require_order

        require_exists([real, *fakes])  # reports a typo before the slow import of torch
        require_order(real, fakes)
    from fidtool.api import evaluated
    from fidtool.pipeline.sets import requested
    from fidtool.report.text import framing_lines, influence_lines, result_lines, table_lines, timing_line

    sets = requested(*((path, "") for path in (real, *fakes)))
    console = Console(warnings=True, progress=not quiet, on_failure=outlet.failed, spelling=as_flag)
    evaluation, write = evaluated(sets, settings, console, origin, outlet.check)
    if write is None:
        # Only rank zero exits with the gate's status: a launcher kills rank zero if another rank exits first with an
        # error.
        return 0
    console.say(timing_line(evaluation))
    several = sum(len(result.titles) for result in evaluation.results) > 1
    as_table = form == "table" or (form is None and on_terminal() and several)
    for line in [*([] if as_table else framing_lines(evaluation)), *influence_lines(evaluation)]:
        click.echo(line, err=True)
    lines = table_lines(evaluation) if as_table else result_lines(evaluation)
    outlet.publish(evaluation.to_dict(), lines, write)
    if evaluation.exit_code:
        click.echo(evaluation.exit_reason, err=True)
    return evaluation.exit_code
