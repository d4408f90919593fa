"""Commands on saved results: what changed from one to another, a history of them, the page of one,
and a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise, starmap
from math import inf
from pathlib import Path

import click

from fidtool.cli.options import OnceCommand, outputs_option
from fidtool.cli.output import (
    as_flag,
    columns,
    document,
    local_file,
    note,
    print_lines,
    publish,
    result_file,
    shown,
    write_lines,
)
from fidtool.errors import InputError
from fidtool.features.protocol import FEATURES
from fidtool.names import legible, short_names
from fidtool.report.tables import columns_of, doubts_about, joined, lines_in, narrowed
from fidtool.result.changes import Values, change_of, changes_of, lines_of, read_history
from fidtool.result.evaluation import Evaluation, read_evaluation
from fidtool.system.cache_dir import check_target

_MOST_CLASSES = 20
"""Maximum number of values of classes that `diff` prints; its JSON has all."""
_OF_DIFF = (
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
    ("As another file", "fidtool report fid.json -o page.html"),
)
_OF_TABLE = (
    ("Write a result", "fidtool compute real/ fake/ -o fid.json"),
    ("Print this result, or several, as a table", "fidtool table fid.json"),
    (
        "For a paper; fid.csv has all digits, for programs",
        "fidtool table fid.json --format latex -o fid.csv",
    ),
)


@click.command(cls=OnceCommand, examples=_OF_DIFF)
@click.argument("before", metavar="A.json")
@click.argument("after", metavar="B.json")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def diff(before: str, after: str, as_json: bool) -> None:
    """Show what changed from result A to result B: the values of each FAKE, then settings, sets and
    environment.

    A.json and B.json are what `compute -o` wrote. FAKEs of the same name are compared, or the only
    one of each. With the error bars of both (--uncertainty), a FAKE is worse or better if the 95 %
    interval of the difference excludes 0.
    """
    changes = changes_of(read_evaluation(before), read_evaluation(after))
    names = short_names([before, after])
    if as_json:
        rendered = [replace(each, reason=shown(each.reason)).to_dict() for each in changes]
        print_lines([document(changes=rendered)])
        return
    lines = list[str]()
    for each in changes:
        lines.append(f"{each.fake}: {each.verdict}: {each.reason}")
        of_classes = _class_rows(each.classes)
        rows = [
            ("", *names, "difference"),
            *starmap(_value_row, each.metrics.items()),
            *of_classes[:_MOST_CLASSES],
        ]
        lines += columns(rows)
        if len(of_classes) > _MOST_CLASSES:
            lines.append(f"  and {len(of_classes) - _MOST_CLASSES} more, see --json")
        if not each.besides:
            lines.append("  no difference in settings, protocol, sets and environment")
        lines += [f"  {line}" for line in lines_of(each.besides) if line not in each.reason]
    print_lines([legible(shown(line)).rstrip() for line in lines])


def _class_rows(classes: Mapping[str, Values]) -> list[tuple[str, ...]]:
    """Return the rows of the values of all classes: first those that only one result has, then the
    largest changes.
    """

    def change(name: str) -> float:
        one, other = next(iter(classes[name].values()))
        return inf if one is None or other is None else abs(other - one)

    ordered = sorted(classes, key=change, reverse=True)
    return [
        _value_row(f"{name}: {key}", pair)
        for name in ordered
        for key, pair in classes[name].items()
    ]


def _value_row(name: str, values: tuple[float | None, float | None]) -> tuple[str, ...]:
    one, other = values
    difference = "-" if one is None or other is None else f"{other - one:+.4g}"
    return (
        f"  {name}",
        *("-" if value is None else f"{value:.6g}" for value in values),
        difference,
    )


@click.command(cls=OnceCommand, examples=_OF_HISTORY)
@click.argument("file", metavar="FILE.jsonl")
def history(file: str) -> None:
    """Show the results that `compute --history` added to a file, by set and date.

    The last column compares each with the one before it, by the error bars of both.
    """
    results, problems = read_history(file)
    for problem in problems:
        note(f"warning: {problem}")
    groups: dict[str, list[Evaluation]] = {}
    for each in results:
        fake, real, known = each.results[0].fake, each.results[0].real, each.definitions
        layers = dict.fromkeys(
            value.features.layer for value in each.values if value.number.layer == FEATURES
        )
        marks = [
            found.fingerprint[:12] if (found := known[layer]) else "unknown" for layer in layers
        ]
        basis = each.basis(each.results[0].distance or each.values[0])
        features = f"{basis} ({', '.join(marks)})" if marks else basis
        groups.setdefault(f"{fake.path} against {real.path}, {features}:", []).append(each)
    lines = [line for name, group in groups.items() for line in (name, *_table(group))]
    print_lines([legible(line).rstrip() for line in lines or [f"{file} has no results"]])


def _table(results: Sequence[Evaluation]) -> list[str]:
    """Return a heading, and a line per result of one FAKE."""
    together = replace(results[-1], results=tuple(each.results[0] for each in results))
    verdicts = ["", *(change_of(*pair).verdict for pair in pairwise(results))]
    missed = ["missed a gate" if each.missed else "" for each in results]
    rows = [
        ("  date (UTC)", *(each.run.date.replace("T", " ").removesuffix("Z") for each in results)),
        ("images", *(str(each.fake.count or "?") for each in together.results)),
        *((each.heading, *each.values) for each in columns_of(together)),
        (
            "than before",
            *(", ".join(filter(None, pair)) for pair in zip(verdicts, missed, strict=True)),
        ),
    ]
    return columns(list(zip(*rows, strict=True)))


@click.command(cls=OnceCommand, examples=_OF_REPORT)
@click.argument("result", metavar="RESULT.json")
@click.option(
    "--output", "-o", metavar="FILE.html", help="The page. [default: RESULT.html, unless it exists]"
)
def report(result: str, output: str | None) -> None:
    """Make the HTML page of a result, with the images that are still where they were.

    RESULT.json is what `compute -o` wrote. If it was computed with --report as well, it has random
    images and pairs of neighbours for the page.
    """
    evaluation = read_evaluation(result)
    page = (
        Path(result).with_suffix(".html")
        if output is None
        else local_file("--output", output, (".html",))
    )
    if output is None and page.exists():
        raise InputError(
            f"{page} exists, and may show images that are gone:", "pass --output FILE.html"
        )
    from fidtool.reading.loader import ImageLookup
    from fidtool.report.outputs import check_shown, write_shown

    check_target(f"--output {page}", page)
    check_shown({"report": page})
    if all(each.exhibit is None for each in evaluation.results):
        note(f"{result} is without the images of a page: it was computed without --report")
    publish([], {page: partial(write_shown, evaluation, ImageLookup(), "report", spelling=as_flag)})
    print_lines([str(page)], "the name of the page")


@click.command(cls=OnceCommand, examples=_OF_TABLE)
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
    "--columns", metavar="NAMES", help="Only these values, in this order: metrics or titles."
)
@outputs_option(help="Also write the table: FILE.csv, .md or .tex. Can be repeated.")
def table(
    results: tuple[str, ...], form: str, columns: str | None, outputs: tuple[str, ...]
) -> None:
    """Print saved results as one table, with a row for each FAKE.

    RESULT.json is what `compute -o` or `compute --json` wrote, or - for stdin. Values of different
    networks have columns of their own, and values of different protocols are refused. If the
    results have other REALs, precisions or crops, the table says so and marks none as best; with
    other settings of a metric, none of that metric.
    """
    for name in outputs:
        check_target(f"--output {name}", local_file("--output", name, (".csv", ".md", ".tex")))
    tables = dict(map(result_file, outputs))
    saved = {name: read_evaluation(name) for name in results}
    if columns is not None:
        saved = narrowed(saved, columns.split(","))
    warnings: list[str] = [str(alert) for alert in joined(saved).alerts if alert.severity == "high"]
    if form == "csv":  # the other formats have them
        warnings = [*doubts_about(saved)[1], *warnings]
    lines = lines_in(form, saved)
    for line in warnings:
        note(f"warning: {line}")
    publish(
        lines,
        {file: partial(write_lines, lines_in(written, saved)) for file, written in tables.items()},
    )
