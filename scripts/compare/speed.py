"""Compares the speed of the two versions. Times are printed, and never cause a failure."""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from compare.case import JSON, SMALL, I, fidtool, torchrun
from compare.sides import Side, Step, run_quietly

COUNT = 64


def contests() -> dict[str, Step]:
    """Return the runs by name: with the real network, and with one that takes almost no time, to measure decoding."""
    real, decoding = f"compute {I}/photos {I}/samples {JSON}", f"compute {I}/crowd {I}/throng {SMALL} {JSON}"
    return {
        "2048 dimensions, 1 rank": fidtool(real, fresh=True),
        "2048 dimensions, 2 ranks": torchrun(2, real),
        "decoding, 1 rank": fidtool(decoding, fresh=True),
        "decoding, 2 ranks": torchrun(2, decoding),
    }


def race(sides: Sequence[Side], place: Path, repeats: int) -> None:
    """Run both versions alternately, and print the ratios of their speeds.

    Args:
        sides: the frozen version and the other version.
        place: see `Side`.
        repeats: number of pairs of runs.
    """
    run_quietly([sys.executable, Path(__file__).with_name("inputs.py"), place / "inputs", str(COUNT)])
    click.echo("speed ratios tree / frozen: minimum, median, maximum; above 1 the tree is faster")
    for name, step in contests().items():
        once(sides[0], step, place)  # loads weights and files into the page cache
        pairs = []
        for _ in range(repeats):
            pairs.append([once(side, step, place) for side in sides])
        for number, what in enumerate(("images/s in the network phase", "runs per second")):
            ratios = sorted(other[number] / one[number] for one, other in pairs)
            spread = f"{ratios[0]:.3f} {statistics.median(ratios):.3f} {ratios[-1]:.3f}"
            rates = [statistics.median(pair[side][number] for pair in pairs) for side in (0, 1)]
            click.echo(f"{name}, {what}: {spread} (medians {rates[0]:.3g} and {rates[1]:.3g})")


def once(side: Side, step: Step, place: Path) -> tuple[float, float]:
    """Run a step and return its images/s, from the JSON, and its runs per second."""
    shutil.rmtree(place / "work", ignore_errors=True)
    (place / "work").mkdir()
    output = place / "race"
    started = time.perf_counter()
    statuses = side.run(step, output)
    seconds = time.perf_counter() - started
    if any(statuses):
        raise click.ClickException(f"{step.text}: exit status {statuses}: {Path(f'{output}-0.err').read_text()}")
    record = json.loads(Path(f"{output}-0.out").read_text())
    return float(record["run"]["images_per_second"]), 1.0 / seconds
