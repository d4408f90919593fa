"""What the charts look like, on the page and in a file of their own."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fidtool.annexes import Uncertainty
from fidtool.distances.jackknife import Interval
from fidtool.report.charts import Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BINS = 16
_MOST_NAMES = 8
"""More names do not fit under an axis."""
_MOST_TICKS = 6
_ROOM = {True: 84, False: 36}
"""Characters of all names together that fit, by whether the chart is wide."""
_BAND = 0.16


@dataclass(frozen=True)
class Palette:
    """Colours: of texts, of lesser texts, of lines behind the data, of FAKE, and of estimates."""

    ink: str
    muted: str
    line: str
    accent: str
    second: str


LIGHT = Palette("#1b1f24", "#57606a", "#dfe3e8", "#1f5fbf", "#b3530a")
"""For a file of its own, on white."""


def draw_sweep(axes: Axes, palette: Palette, sweep: Sweep, wide: bool) -> None:
    """The Fréchet distance over the FAKEs, with what is known of its error.

    A line joins the points where x counts something; sets in no order of their own stand apart.
    """
    x = [point.x for point in sweep.points]
    joined = bool(sweep.axis)
    axes.plot(
        x,
        [point.distance for point in sweep.points],
        label=sweep.title,
        color=palette.accent,
        marker="o",
        linestyle=_style(joined),
    )
    known = [(point.x, point.corrected) for point in sweep.points if point.corrected is not None]
    if known:
        _draw_corrected(axes, palette, known, joined)
    if joined:
        _number_axis(axes, x, sweep.axis)
    else:
        _name_axis(axes, [point.name for point in sweep.points], wide)
    _finish(axes, palette)


def _number_axis(axes: Axes, x: Sequence[float], title: str) -> None:
    """Ticks at the points where there are few and they are not close together."""
    apart = min(later - earlier for earlier, later in itertools.pairwise(x))
    if apart * _MOST_TICKS >= x[-1] - x[0]:
        axes.set_xticks(x)
    axes.xaxis.set_major_formatter("{x:,.10g}")
    axes.set_xlabel(title)


def _name_axis(axes: Axes, names: Sequence[str], wide: bool) -> None:
    """Names where there is room for them, else 1, 2, 3 …"""
    places = range(1, len(names) + 1)
    if len(names) <= _MOST_NAMES and sum(map(len, names)) <= _ROOM[wide]:
        axes.set_xticks(places, names, parse_math=False)
    else:
        axes.set_xticks(places)
        axes.set_xlabel("set, in the order given")
    axes.set_xlim(0.4, len(names) + 0.6)


def _draw_corrected(axes: Axes, palette: Palette, known: Sequence[tuple[float, Interval]], joined: bool) -> None:
    x = [place for place, _ in known]
    values = [interval.value for _, interval in known]
    reach = [
        [interval.value - interval.low for _, interval in known],
        [interval.high - interval.value for _, interval in known],
    ]
    label = "bias-corrected, 95 % interval"
    axes.errorbar(
        x, values, yerr=reach, label=label, color=palette.second, marker="o", linestyle=_style(joined, "--"), capsize=4
    )
    if joined and len(known) > 1:
        low, high = ([getattr(interval, end) for _, interval in known] for end in ("low", "high"))
        axes.fill_between(x, low, high, color=palette.second, alpha=_BAND, linewidth=0)


def draw_curve(axes: Axes, palette: Palette, uncertainty: Uncertainty, title: str) -> None:
    """The distance against the number of images, and the one that infinitely many would have with its interval."""
    images = [number for number, _ in uncertainty.curve]
    distances = [distance for _, distance in uncertainty.curve]
    axes.plot(images, distances, label=title, color=palette.accent, marker="o", clip_on=False)
    if uncertainty.corrected is not None:
        interval = uncertainty.corrected
        axes.axhspan(interval.low, interval.high, color=palette.second, alpha=_BAND, linewidth=0)
        axes.axhline(interval.value, color=palette.second, linestyle="--", label="bias-corrected, 95 % interval")
    axes.set_xlim(0, 1.06 * max(images))
    axes.set_xticks(images, [f"{number:,}" for number in images])
    axes.set_xlabel("images")
    _finish(axes, palette)


def draw_histogram(axes: Axes, palette: Palette, real: Sequence[float] | None, fake: Sequence[float] | None) -> None:
    """How often the pixel values are, in 16 ranges: REAL as an area, FAKE as a line upon it."""
    edges = [256 / _BINS * number for number in range(_BINS + 1)]
    if real is not None:
        axes.stairs([100 * share for share in real], edges, fill=True, color=palette.muted, alpha=0.4, label="REAL")
    if fake is not None:
        axes.stairs([100 * share for share in fake], edges, color=palette.accent, linewidth=2.4, label="FAKE")
    axes.set_xlim(0, 256)
    axes.set_ylim(bottom=0)
    axes.set_xticks([0, 64, 128, 192, 255])
    axes.set_xlabel("pixel value")
    axes.yaxis.set_major_formatter("{x:g} %")
    _finish(axes, palette)


def _style(joined: bool, line: Literal["-", "--"] = "-") -> Literal["-", "--", "none"]:
    return line if joined else "none"


def _finish(axes: Axes, palette: Palette) -> None:
    """Light lines behind the data, no frame, the legend above."""
    axes.set_axisbelow(True)
    axes.grid(axis="y", color=palette.line, linewidth=1)
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(palette.line)
    axes.tick_params(colors=palette.muted, length=0, pad=7)
    axes.xaxis.label.set_color(palette.muted)
    legend = axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=2,
        frameon=False,
        labelcolor=palette.ink,
        borderaxespad=0.4,
        handlelength=1.6,
        columnspacing=1.2,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)  # a network's name may hold dollars
