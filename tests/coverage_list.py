"""Lists the code that the tests do not cover, by function and source text, and compares two such lists.

    python -m coverage run -m pytest -n 2 -m "slow or not slow"
    python -m coverage combine && python -m coverage json
    python tests/coverage_list.py list coverage.json --output after.txt
    python tests/coverage_list.py compare tests/uncovered.txt after.txt

Subprocesses, forks and processes that exit by ``os._exit`` are measured as well (``[tool.coverage.run]`` in
pyproject.toml). Killed processes write no data, so code that runs only in them counts as not covered.
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
class Position:
    """A line, or a jump between two lines, in a function.

    Attributes:
        file: path relative to the folder in which coverage ran, which must be the current folder.
        function: qualified name; empty for code outside functions.
        line: line number, from 1.
        target: number of the line to which the code jumps; negative for the end of the function; 0 if it is no jump.
    """

    file: str
    function: str
    line: int
    target: int = 0


def missing(report: dict[str, Any]) -> Iterator[Position]:
    """Yield the lines and branches that did not run, from coverage's JSON report."""
    for file, measured in report["files"].items():
        for function, region in measured["functions"].items():
            lines = set(region["missing_lines"])
            yield from (Position(file, function, line) for line in lines)
            for line, target in region["missing_branches"]:
                if line not in lines:  # the branches of a missing line are missing as well
                    yield Position(file, function, line, target)


def described(position: Position, source: list[str]) -> str:
    """Return ``file  function  text``, with ``text -> text`` for a jump. Line numbers would change with every edit."""
    text = source[position.line - 1].strip()
    if position.target:
        text += " -> " + (source[position.target - 1].strip() if position.target > 0 else "end of the function")
    return f"{position.file}  {position.function or '(module)'}  {text}"


def totals(report: dict[str, Any]) -> str:
    """Return the numbers of covered and of all lines and branches, as text."""
    counts = report["totals"]
    return (
        f"lines {counts['covered_lines']} of {counts['num_statements']}, "
        f"branches {counts['covered_branches']} of {counts['num_branches']} ({counts['percent_covered']:.2f} %)"
    )


def listed(report: dict[str, Any]) -> list[str]:
    """Return what is not covered, in the order of the sources."""
    sources = {file: Path(file).read_text().splitlines() for file in report["files"]}
    return [described(position, sources[position.file]) for position in sorted(missing(report))]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """List the code that the tests do not cover."""


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
    """Report what is in the list AFTER but not in BEFORE; the exit status is then 1.

    Code that only moved to another file or function, according to its text, is reported as moved and does not affect
    the exit status.
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
    """Return the source text in a line of the list."""
    return line.split("  ", 2)[2]


if __name__ == "__main__":
    main()
