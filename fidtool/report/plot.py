"""``--plot``: the sweep's curve as a picture of its own. Needs matplotlib, which it imports late."""

from __future__ import annotations

from pathlib import Path

from fidtool.cache_dir import atomic_write
from fidtool.errors import InputError
from fidtool.report.charts import plain_style
from fidtool.report.drawing import LIGHT, draw_sweep
from fidtool.report.sweep import sweep_of
from fidtool.results import Evaluation

_INCHES = (9.0, 4.5)
_DOTS_PER_INCH = 160
_FORMATS = ("png", "pdf", "svg")


def plot_format(file: Path) -> str:
    """The format that a file's name asks for, such as ``png``; to be asked before any work.

    Raises:
        InputError: it is none that can be written.
    """
    kind = file.suffix[1:].lower()
    if kind not in _FORMATS:
        raise InputError(f"--plot {file} should end in {', '.join(f'.{each}' for each in _FORMATS)}")
    return kind


def write_plot(evaluation: Evaluation, file: Path) -> None:
    """Writes the FID of each FAKE, with what is known of its error, as a picture.

    Args:
        evaluation: with at least one result.
        file: to be written; the end of its name says the format.

    Raises:
        InputError: an unknown format, or there is no FID to be drawn.
        OSError: the file cannot be written; an older one is as it was.
    """
    kind = plot_format(file)
    sweep = sweep_of(evaluation.results)
    if sweep is None:
        raise InputError("--plot draws the FID, which is not among --metrics")
    with plain_style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=_INCHES, layout="constrained")
        axes = figure.subplots()
        draw_sweep(axes, LIGHT, sweep, wide=True)
        axes.set_ylabel("FID", color=LIGHT.ink)
        # What would make the next run's file another one: dates.
        dates = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind)
        with atomic_write(file) as handle:
            figure.savefig(handle, format=kind, dpi=_DOTS_PER_INCH, metadata=dates)
