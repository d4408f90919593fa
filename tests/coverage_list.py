#!/usr/bin/env python3
"""Lists what the tests do not cover, by function and source text, and compares two such lists.

python -m coverage run -m pytest -n 2 -m "slow or not slow"
python -m coverage combine && python -m coverage json
scripts/coverage_list.py list coverage.json --output after.txt
scripts/coverage_list.py compare tests/uncovered.txt after.txt

Subprocesses, forks and processes that end by ``os._exit`` are measured, too (``[tool.coverage.run]`` in
pyproject.toml). Processes that are killed leave nothing, so what runs only in those counts as not covered.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click


@dataclass(frozen=True, order=True)
class Place:
    """A line, or a jump between two lines, of one function.

    Attributes:
        file: path from the folder in which coverage was run, which must be the current one.
        function: qualified name; empty for code outside functions.
        line: number of the line, from 1.
        target: number of the line that it jumps to; negative for the end of the function; 0 if no jump.
    """

    file: str
    function: str
    line: int
    target: int = 0


def missing(report: dict[str, Any]) -> Iterator[Place]:
    """Lines and branches that did not run, by coverage's JSON report."""
    for file, measured in report["files"].items():
        for function, region in measured["functions"].items():
            lines = set(region["missing_lines"])
            yield from (Place(file, function, line) for line in lines)
            for line, target in region["missing_branches"]:
                if line not in lines:  # a line that never ran has lost its branches with it
                    yield Place(file, function, line, target)


def described(place: Place, source: list[str]) -> str:
    """``file  function  text``, or ``text -> text`` for a jump: line numbers would change with every edit."""
    words = source[place.line - 1].strip()
    if place.target:
        words += " -> " + (source[place.target - 1].strip() if place.target > 0 else "end of the function")
    return f"{place.file}  {place.function or '(module)'}  {words}"


def totals(report: dict[str, Any]) -> str:
    """Lines and branches that are covered, of how many."""
    sums = report["totals"]
    return (
        f"lines {sums['covered_lines']} of {sums['num_statements']}, "
        f"branches {sums['covered_branches']} of {sums['num_branches']} ({sums['percent_covered']:.2f} %)"
    )


def listed(report: dict[str, Any]) -> list[str]:
    """What is not covered, in the order of the sources."""
    sources = {file: Path(file).read_text().splitlines() for file in report["files"]}
    return [described(place, sources[place.file]) for place in sorted(missing(report))]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """What the tests do not cover."""


@main.command("list")
@click.argument("report", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="File to write; default: stdout.")
def list_command(report: Path, output: Path | None) -> None:
    """Write the list of lines and branches that are not covered."""
    measured = json.loads(report.read_text())
    text = "\n".join([f"# {totals(measured)}", *listed(measured)]) + "\n"
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(text)


@main.command()
@click.argument("before", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("after", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def compare(before: Path, after: Path) -> None:
    """Name what the list AFTER has and BEFORE has not; status 1 if anything.

    What has only moved to another file or function, by its text, is named as such and changes no status.
    """
    (first, *known), (second, *listed) = (file.read_text().splitlines() for file in (before, after))
    click.echo(f"before: {first[2:]}\nafter:  {second[2:]}")
    gone = list((Counter(known) - Counter(listed)).elements())
    new = list((Counter(listed) - Counter(known)).elements())
    lost = []
    for line in new:
        origin = next((old for old in gone if _text(old) == _text(line)), None)
        if origin is None:
            lost.append(line)
        else:
            gone.remove(origin)
            click.echo(f"moved: {line}  (was in {' '.join(origin.split('  ', 2)[:2])})")
    for line in lost:
        click.echo(f"lost: {line}")
    sys.exit(1 if lost else 0)


def _text(line: str) -> str:
    """The source text of a line of the list."""
    return line.split("  ", 2)[2]


if __name__ == "__main__":
    main()
