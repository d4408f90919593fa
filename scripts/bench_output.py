"""How the benchmarks print and keep what they found. Imports no torch."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from bench_machine import Machine, machine_facts

MIB = 2**20

Command = TypeVar("Command", bound=Callable[..., Any])


def json_option(function: Command) -> Command:
    """The option ``--json FILE``."""
    named = "Also write everything as JSON."
    return click.option("--json", "json_file", type=TargetFile(), help=named)(function)


class TargetFile(click.Path):
    """A file to be written: refused at once where its folder is missing, and not after an hour of measuring."""

    name = "file"

    def __init__(self) -> None:
        super().__init__(dir_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if not os.access(path.absolute().parent, os.W_OK):
            self.fail(f"{path.absolute().parent} is no folder that you may write to", param, ctx)
        return path


def header(device: str | None, title: str) -> Machine:
    """Prints what machine this is and what is measured."""
    machine = machine_facts(device)
    click.echo("\n".join([*machine.lines(), "", title, ""]))
    return machine


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints columns, the first flush left and the others flush right."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for first, *others in (heads, *rows):
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        click.echo("  ".join([first.ljust(widths[0]), *cells]))
    click.echo()


def publish(file: Path | None, machine: Machine, benchmark: str, settings: dict[str, Any], results: Any) -> None:
    """Writes everything as JSON, if ``file`` was named."""
    if file is not None:
        document = {"schema": 1, "benchmark": benchmark, "machine": machine.to_dict(), "settings": settings}
        document["results"] = results
        file.write_text(json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def mib(size: float | None) -> str:
    """A size in MiB."""
    return "?" if size is None else f"{size / MIB:,.0f}"


def relative_difference(value: float, reference: float) -> float:
    """Relative difference; 0 of two zeros."""
    return abs(value - reference) / (abs(reference) or 1.0)
