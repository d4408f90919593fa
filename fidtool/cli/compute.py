"""``fidtool compute``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import click

from fidtool.cli.options import QUIET, Command, option
from fidtool.cli.output import as_flag, on_terminal, publish, publish_failure, result_file, write_json
from fidtool.distributed.launch import discover
from fidtool.distributed.signals import stopped_error
from fidtool.errors import FidtoolError, InputError
from fidtool.settings import OUTPUT, Settings, origin_of

_EXAMPLES = (
    ("FID of generated images", "fidtool compute real/ fake/"),
    ("The same value, computed on 8 GPUs", "torchrun --nproc-per-node=8 -m fidtool compute real/ fake/"),
    ("A CI gate: exit status 3 if the FID is above 20", "fidtool compute real/ fake/ --fail-above 20 -o fid.json"),
)


@click.command(cls=Command, settings=Settings, examples=_EXAMPLES)
@click.argument("real")
@click.argument("fakes", metavar="FAKE...", nargs=-1, required=True)
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
    from fidtool.console import Console

    as_json = as_json or form == "json"
    origin = origin_of(("fidtool", *(click.get_current_context().obj or ())))
    target = None if output is None else result_file(output)
    chosen: Settings | None = None

    def on_failure(error: FidtoolError) -> None:
        publish_failure(error, origin, chosen, target, as_json)

    try:
        chosen = settings()
        console = Console(warnings=True, progress=not quiet, on_failure=on_failure, spelling=as_flag)
        if discover().world_size == 1:
            from fidtool.pipeline.opening import check_paths

            check_paths([real, *fakes], real)  # reports a typo before the slow import of torch
        from fidtool.api import evaluated

        sets = [(path, "") for path in (real, *fakes)]
        evaluation, shown = evaluated(sets, chosen, console, origin, lambda: _check_target(target))
    except (FidtoolError, KeyboardInterrupt) as error:
        failure = error if isinstance(error, FidtoolError) else stopped_error()
        if not failure.printed:
            on_failure(failure)
        raise
    if shown is None:
        # Only rank zero exits with the gate's status: a launcher kills rank zero if another rank exits first with an
        # error.
        return 0
    from fidtool.report.loggers import log_values
    from fidtool.report.tables import table_lines
    from fidtool.report.text import dumps, framing_lines, influence_lines, result_lines, timing_line

    console.say(timing_line(evaluation))
    several = sum(len(result.titles) for result in evaluation.results) > 1
    as_table = form == "table" or (form is None and several and on_terminal())
    for line in [*([] if as_table else framing_lines(evaluation)), *influence_lines(evaluation)]:
        click.echo(line, err=True)
    json_text = dumps(evaluation.to_dict()) if as_json or target else ""
    lines = [json_text] if as_json else table_lines(evaluation) if as_table else result_lines(evaluation)
    files = {target: partial(write_json, json_text)} if target else {}
    try:
        publish(lines, {**files, **shown})
    finally:
        log_values(evaluation.results, chosen, console.warn)
    if evaluation.exit_code:
        click.echo(evaluation.exit_reason, err=True)
    return evaluation.exit_code


def _check_target(output: Path | None) -> None:
    """Check that the file can be written, before any work is done."""
    if output is not None:
        from fidtool.cache_dir import check_target

        check_target(f"--output {output}", output)
