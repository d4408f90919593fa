"""``fidtool table``."""

from __future__ import annotations

from functools import partial

import click

from fidtool.cli.options import OnceCommand
from fidtool.cli.output import publish, result_file, write_lines
from fidtool.errors import InputError
from fidtool.names import legible

_EXAMPLES = (
    ("Write a result", "fidtool compute real/ fake/ -o fid.json"),
    ("Print this result, or several, as a table", "fidtool table fid.json"),
    ("For a paper; fid.csv has all digits, for programs", "fidtool table fid.json --format latex -o fid.csv"),
)


@click.command(cls=OnceCommand, examples=_EXAMPLES)
@click.argument("results", metavar="RESULT.json...", nargs=-1, required=True)
@click.option(
    "--format",
    "form",
    type=click.Choice(("table", "csv", "markdown", "latex")),
    default="table",
    help="How to print the table.",
    show_default=True,
)
@click.option("--output", "-o", metavar="FILE", help="Also write the table: FILE.csv, .md or .tex.")
def table(results: tuple[str, ...], form: str, output: str | None) -> None:
    """Print saved results as one table, with a row for each FAKE.

    RESULT.json is what `compute -o` or `compute --json` wrote, or - for stdin. Values of different networks have
    columns of their own, and values of different protocols are refused. If the results have other REALs, settings of
    metrics or precisions, the table says so and marks none as best.
    """
    target, written = (None, "csv") if output is None else result_file(output)
    if written == "json":
        raise InputError(f"--output {output}: a table has no JSON:", "choose a name that ends in .csv, .md or .tex")
    from fidtool.cache_dir import check_target
    from fidtool.report.tables import doubts_about, joined, lines_in
    from fidtool.report.text import alerts_of
    from fidtool.results import read_evaluation

    if target is not None:
        check_target(f"--output {target}", target)
    saved = {name: read_evaluation(name) for name in results}
    lines, files = lines_in(form, saved), {target: partial(write_lines, lines_in(written, saved))} if target else {}
    alerts = [alert for alert in alerts_of(joined(saved)) if alert.severity == "high"]
    for line in [*(doubts_about(saved) if form == "csv" else []), *alerts]:  # the other formats have them
        click.echo(f"warning: {legible(line)}", err=True)
    publish(lines, files)
