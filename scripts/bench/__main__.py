"""Benchmarks of fidtool's speed and memory: ``python scripts/bench --help``.

Needs the other tools of the ``test`` extra. End-to-end measurements run in subprocesses. This
process imports no torch for them and stays small: see `bench.process`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

# `python scripts/bench` puts scripts/bench first on the path; the modules import each other as
# bench.….
sys.path[0] = str(Path(__file__).resolve().parents[1])

from bench.end_to_end import end_to_end  # noqa: E402
from bench.gpu import gpu  # noqa: E402
from bench.growth import growth  # noqa: E402
from bench.joint import joint  # noqa: E402
from bench.pairs import pairs  # noqa: E402
from bench.pipeline import pipeline  # noqa: E402


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
def cli() -> None:
    """Measure fidtool's speed and memory, alone and against other tools.

    Run it on an idle machine. Every command prints a table and, with --json FILE, writes all
    measurements.
    """


for command in (end_to_end, growth, joint, pairs, pipeline, gpu):
    cli.add_command(command)

if __name__ == "__main__":
    cli(prog_name="python scripts/bench")
