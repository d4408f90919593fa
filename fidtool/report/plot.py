"""``--plot``: the sweep's curve as a picture of its own. Needs matplotlib, which it imports late."""

from __future__ import annotations

from pathlib import Path

from fidtool.cache_dir import atomic_write
from fidtool.errors import InputError
from fidtool.report.charts import LIGHT, draw_sweep, plain_style, sweep_of
from fidtool.report.names import legible, shortened
from fidtool.results import Evaluation

_INCHES = (9.0, 4.5)
_DOTS_PER_INCH = 160
_LONGEST = 100


def write_plot(evaluation: Evaluation, file: Path) -> None:
    """Writes the Fréchet distance of each FAKE, with what is known of its error, as a picture.

    Args:
        evaluation: with at least one result.
        file: to be written; the end of its name says the format, ``.png`` or another that matplotlib knows.

    Raises:
        InputError: there is no Fréchet distance to be drawn.
        ValueError: a format that matplotlib does not know.
        OSError: the file cannot be written; an older one is as it was.
    """
    kind = file.suffix[1:].lower() or "png"
    sweep = sweep_of(evaluation.results)
    if sweep is None:
        raise InputError("--plot draws the metric fid, which is not among --metrics")
    with plain_style():
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine

        figure = Figure(figsize=_INCHES, layout=ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.15))
        axes = figure.subplots()
        draw_sweep(axes, LIGHT, sweep, wide=True)
        # A network's name may hold dollars, which are no formula.
        axes.set_ylabel(sweep.title, color=LIGHT.ink, parse_math=False)
        basis = legible(shortened(evaluation.basis("fid"), _LONGEST))
        figure.suptitle(basis, fontsize=11, color=LIGHT.muted, parse_math=False)
        # Dates would make each run's file another one.
        dates = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind)
        with atomic_write(file) as handle:
            figure.savefig(handle, format=kind, dpi=_DOTS_PER_INCH, metadata=dates)
