"""Commands on saved results: what changed from one to another, a history of them, the page of one,
a table, and whether they are comparable with published values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fidtool.cli.options import JSON, LocalRankZeroCommand, make_completer, outputs_option
from fidtool.cli.output import (
    align_columns,
    format_flag,
    format_labelled,
    note,
    paragraph,
    parse_output_file,
    parse_result_file,
    print_lines,
    publish,
    render_message,
    to_json_text,
    write_lines,
)
from fidtool.errors import InputError
from fidtool.names import escape_text, short_names
from fidtool.settings.presets import PRESETS

if TYPE_CHECKING:
    from fidtool.result.changes import Values
    from fidtool.result.evaluation import Evaluation
    from fidtool.result.verify import Verdict

# How many values of classes `diff` prints; its JSON has all.
_MAX_CLASSES = 20
_DIFF_EXAMPLES = (
    ("Write a result", "fidtool compute real/ fake/ --uncertainty -o fid.json"),
    ("Another day", "fidtool compute real/ fake/ --uncertainty -o new.json"),
    ("What changed, and is it worse?", "fidtool diff fid.json new.json"),
)
_OF_HISTORY = (
    ("Add a result to a history", "fidtool compute real/ fake/ --uncertainty --history fid.jsonl"),
    ("Another day", "fidtool compute real/ fake/ --uncertainty --history fid.jsonl"),
    ("Show both", "fidtool history fid.jsonl"),
)
_OF_REPORT = (
    ("Write a result", "fidtool compute real/ fake/ --report first.html -o fid.json"),
    ("Make its page again, as fid.html", "fidtool report fid.json"),
    ("Write the page to another file", "fidtool report fid.json -o page.html"),
)
_OF_TABLE = (
    ("Write a result", "fidtool compute real/ fake/ -o fid.json"),
    ("Print one or several results as a table", "fidtool table fid.json"),
    (
        "Print a table for a paper, and write all digits to fid.csv",
        "fidtool table fid.json --format latex -o fid.csv",
    ),
)


@click.command(cls=LocalRankZeroCommand, examples=_DIFF_EXAMPLES)
@click.argument("before", metavar="A.json")
@click.argument("after", metavar="B.json")
@JSON
def diff(before: str, after: str, as_json: bool) -> Iterator[str]:
    """Show what changed from result A to result B: the values of each FAKE, then settings, sets and
    environment.

    A.json and B.json are files that `compute -o` wrote. FAKEs with the same name are compared; if
    each result has only one FAKE, these two are compared. If both results have error bars
    (--uncertainty), a FAKE is worse or better if the 95 % interval of the difference excludes 0.
    """
    from fidtool.result.changes import compare_results, difference_lines
    from fidtool.result.evaluation import read_evaluation

    changes = compare_results(read_evaluation(before), read_evaluation(after))
    changes = [replace(change, reason=render_message(change.reason)) for change in changes]
    if as_json:
        yield to_json_text(changes=changes)
        return
    lines = []
    for change in changes:
        lines.append(f"{change.fake}: {change.verdict}: {change.reason}")
        classes = _class_rows(change.classes)
        rows = [("", *short_names([before, after]), "difference")]
        rows += [_value_row(key, pair) for key, pair in change.metrics.items()]
        lines += align_columns([*rows, *classes[:_MAX_CLASSES]])
        if len(classes) > _MAX_CLASSES:
            lines.append(f"  and {len(classes) - _MAX_CLASSES} more, see --json")
        if not change.besides:
            lines.append("  no difference in settings, protocol, sets and environment")
        lines += [
            f"  {line}" for line in difference_lines(change.besides) if line not in change.reason
        ]
    yield from map(escape_text, lines)


def _class_rows(classes: Mapping[str, Values]) -> list[tuple[str, ...]]:
    """Return the rows of the values of all classes: first those that only one result has, then the
    largest changes.
    """

    def change(name: str) -> float:
        before, after = next(iter(classes[name].values()))
        return inf if before is None or after is None else abs(after - before)

    rows = []
    for name in sorted(classes, key=change, reverse=True):
        rows += [_value_row(f"{name}: {key}", pair) for key, pair in classes[name].items()]
    return rows


def _value_row(name: str, pair: tuple[float | None, float | None]) -> tuple[str, ...]:
    before, after = pair
    difference = "-" if before is None or after is None else f"{after - before:+.4g}"
    texts = ["-" if value is None else f"{value:.6g}" for value in pair]
    return f"  {name}", *texts, difference


@click.command(cls=LocalRankZeroCommand, examples=_OF_HISTORY)
@click.argument("file", metavar="FILE.jsonl")
def history(file: str) -> Iterator[str]:
    """Show the results that `compute --history` added to a file, by set and date.

    The last column compares each result with the one before it, by the error bars of both.
    """
    from fidtool.result.changes import read_history

    evaluations, problems = read_history(file)
    for problem in problems:
        note(f"warning: {problem}")
    groups: dict[str, list[Evaluation]] = {}
    for evaluation in evaluations:
        (result,) = evaluation.results
        basis = evaluation.basis(result.distance or result.values[0])
        heading = f"{result.fake.path} against {result.real.path}, {basis}:"
        groups.setdefault(heading, []).append(evaluation)
    for heading, group in groups.items():
        yield escape_text(heading)
        yield from map(escape_text, _history_lines(group))
    if not groups:
        yield escape_text(f"{file} has no results")


def _history_lines(evaluations: Sequence[Evaluation]) -> list[str]:
    """Return a heading, and a line per result of one FAKE."""
    from fidtool.report.tables import make_columns
    from fidtool.result.changes import compare_result

    results = tuple(evaluation.results[0] for evaluation in evaluations)
    dates = [evaluation.run.date.replace("T", " ").removesuffix("Z") for evaluation in evaluations]
    verdicts = ["", *(compare_result(*pair).verdict for pair in pairwise(evaluations))]
    for row, result in enumerate(results):
        if result.missed:
            verdicts[row] = f"{verdicts[row]}, missed a gate".removeprefix(", ")
    values = make_columns(replace(evaluations[-1], results=results))
    table = [
        ("  date (UTC)", *dates),
        ("images", *(str(result.fake.count or "?") for result in results)),
        *((column.heading, *column.values) for column in values),
        ("than before", *verdicts),
    ]
    return align_columns(list(zip(*table, strict=True)))


@click.command(cls=LocalRankZeroCommand, examples=_OF_REPORT)
@click.argument("result", metavar="RESULT.json")
@click.option(
    "--output",
    "-o",
    metavar="FILE.html",
    help="File to write the page to. [default: RESULT.html, unless it exists]",
)
def report(result: str, output: str | None) -> Iterator[str]:
    """Make an HTML page from a result, with the images that are still in their place.

    RESULT.json is a file that `compute -o` wrote. If the result was computed with --report as well,
    it lists random images and pairs of neighbours for the page.
    """
    from fidtool.reading.lookup import ImageLookup
    from fidtool.report.outputs import check_report_files, write_report_file
    from fidtool.result.evaluation import read_evaluation

    evaluation = read_evaluation(result)
    page = Path(result).with_suffix(".html")
    if output is None and page.exists():
        problem = f"{page} exists, and may show images that are gone:"
        raise InputError(problem, "pass --output FILE.html")
    page = parse_output_file("--output", str(page) if output is None else output, (".html",))
    check_report_files({"report": page})
    if all(comparison.exhibit is None for comparison in evaluation.results):
        note(f"{result} lists no images for the page, because it was computed without --report")
    publish(
        [],
        {
            page: partial(
                write_report_file, evaluation, ImageLookup(), "report", spelling=format_flag
            )
        },
    )
    yield str(page)


@click.command(cls=LocalRankZeroCommand, examples=_OF_TABLE)
@click.argument("results", metavar="RESULT.json...", nargs=-1, required=True)
@click.option(
    "--format",
    "form",
    type=click.Choice(("table", "csv", "markdown", "latex")),
    default="table",
    help="How to print the table.",
    show_default=True,
)
@click.option(
    "--columns",
    metavar="NAMES",
    help="Show only these values, in this order: names of metrics, or titles.",
)
@outputs_option(help="Also write the table: FILE.csv, .md or .tex. Can be repeated.")
def table(
    results: tuple[str, ...], form: str, columns: str | None, outputs: tuple[str, ...]
) -> None:
    """Print saved results as one table, with a row for each FAKE.

    RESULT.json is what `compute -o` or `compute --json` wrote, or - for stdin. Values from
    different networks have separate columns, and values from different protocols are refused. If
    the results differ in REAL, precision or crop, the table says so and marks no value as best. If
    they differ in the settings of a metric, it marks no value of that metric.
    """
    from fidtool.report.tables import find_incomparable, format_lines, join_files, select_columns
    from fidtool.result.evaluation import read_evaluation

    for name in outputs:
        parse_output_file("--output", name, (".csv", ".md", ".tex"))
    forms = dict(map(parse_result_file, outputs))
    saved = {name: read_evaluation(name) for name in results}
    if columns is not None:
        saved = select_columns(saved, columns.split(","))
    lines = format_lines(form, saved)
    warnings = [str(alert) for alert in join_files(saved).alerts if alert.severity == "high"]
    if form == "csv":  # the other formats have them
        warnings = [*find_incomparable(saved)[1], *warnings]
    for warning in warnings:
        note(f"warning: {warning}")
    files = {file: partial(write_lines, format_lines(forms[file], saved)) for file in forms}
    publish(lines, files)


@click.command(cls=LocalRankZeroCommand)
@click.argument("result", metavar="RESULT.json")
@click.option(
    "--preset",
    metavar="NAME",
    shell_complete=make_completer(PRESETS),
    help="Preset to check against. [default: the preset of the run, else that of its reference]",
)
@click.option(
    "--strict",
    is_flag=True,
    help="Exit status 3 also if it is not known whether a requirement is met.",
)
@JSON
def verify(result: str, preset: str | None, strict: bool, as_json: bool) -> int:
    """Check whether a result is comparable with published values: yes, no or not known for each
    requirement.

    RESULT.json is what `compute -o` or `compute --json` wrote, or - for stdin. Exit status: 0 no
    requirement is missed, 2 bad usage or input, 3 a requirement is missed.
    """
    from fidtool.result import verify as requirements

    verdicts = requirements.verify(result, preset)
    if as_json:
        print_lines([to_json_text(verdicts=verdicts)])
    else:
        for verdict in verdicts:
            print_lines([*_verdict_lines(verdict)])
    outcomes = {verdict.comparable for verdict in verdicts}
    if False in outcomes or (strict and None in outcomes):
        return 3  # like a missed gate
    return 0


def _verdict_lines(verdict: Verdict) -> Iterator[str]:
    from fidtool.result.verify import NOT_KNOWN, YES

    line = f"{verdict.fake}: {verdict.outcome}"
    if verdict.comparable is None:
        line += f" ({len(verdict.names_with(NOT_KNOWN))} of {len(verdict.items)} not known)"
    yield line
    for item in verdict.items:
        yield format_labelled(item.verdict, f"{item.name}: {item.found}", 10)
        if item.verdict != YES:
            yield format_labelled("", f"expected: {item.expected} ({item.source})", 10)
    if verdict.standing is not None:
        yield paragraph(f"{verdict.fake}: {verdict.standing.line}", "", "  ")
