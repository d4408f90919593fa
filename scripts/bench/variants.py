"""Runs of fidtool on the same images that differ in a few arguments, in turn."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from bench.end_to_end import Contender, fidtool_command
from bench.images import Recipe, make_sets
from bench.report import Command

Medians = dict[str, Any]
"""Medians of the runs of a variant: seconds, those of parts of the extraction, and bytes."""


def run_options(function: Command) -> Command:
    """The options ``--count``, ``--side`` and ``--repeats``."""
    positive = click.IntRange(1)
    options = (
        click.option("--count", type=click.IntRange(4), default=200, help="Images of both sets."),
        click.option("--side", type=click.IntRange(8), default=256, help="Height and width."),
        click.option("--repeats", type=positive, default=3, help="Runs of each, in turn."),
    )
    for option in reversed(options):
        function = option(function)
    return function


def run_variants(
    variants: Mapping[str, Sequence[str]], count: int, side: int, repeats: int
) -> dict[str, Medians]:
    """Run ``fidtool compute`` with each variant's arguments on ``count`` JPEGs, in turn."""
    with tempfile.TemporaryDirectory(prefix="fidtool-bench-") as folder:
        sets = make_sets(Path(folder), Recipe(count // 2, side, "jpg"))
        contenders = {}
        for name, arguments in variants.items():
            command = fidtool_command(sets, "--device", "cpu", *arguments)
            contenders[name] = Contender(name, command, _first_value)
        for _ in range(repeats):
            for contender in contenders.values():
                contender.run()
    return {name: _medians(contender) for name, contender in contenders.items()}


def _medians(contender: Contender) -> Medians:
    records = [json.loads(run.stdout)["run"] for run in contender.runs]
    medians: Medians = {}
    for part in ("decode", "network", "pairs"):
        seconds = [record["extraction"].get(part, 0.0) for record in records]
        medians[part] = statistics.median(seconds)
    medians["seconds"] = contender.seconds
    medians["extract"] = statistics.median(record["seconds"]["extract"] for record in records)
    medians["peak_bytes"] = statistics.median(run.peak_process_bytes for run in contender.runs)
    medians["fid"] = contender.fids[0]
    return medians


def _first_value(stdout: str) -> float:
    """Return the first value of the result."""
    return float(next(iter(json.loads(stdout)["results"][0]["metrics"].values())))
