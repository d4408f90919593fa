"""Charts of a run's FAKEs: one of each value for a page, and one as a file. Needs matplotlib."""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import TYPE_CHECKING, Any

import numpy as np

from fidtool.errors import redact
from fidtool.names import escape_text, find_sweep_numbers, format_image_counts, short_names, shorten
from fidtool.report.tables import common_features, make_heading, shown_decimals
from fidtool.report.text import format_number
from fidtool.result.evaluation import Comparison, Evaluation, SetResult
from fidtool.result.explanations import Interval, count_decimals
from fidtool.result.values import Value

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

_MAX_LINE = 100
_MAX_NAME = 24
_MAX_PATH = 48
# Maximum length of a name in a chart of the page.
_MAX_SHORT_NAME = 16
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "font.sans-serif": ["DejaVu Sans"],  # an SVG repeats the list with each text
    "svg.hashsalt": "fidtool",  # the same figure gives the same bytes
    "savefig.dpi": 160,
    "font.size": 13,
    "lines.linewidth": 2,
    "axes.formatter.useoffset": False,
    "axes.formatter.limits": (-4, 7),
    "axes.facecolor": "none",
}
# Size in pixels of a chart of the page: its width, and its height if it is a line. A row has the
# same height in each.
_WIDTH = 290
_HEIGHT = 180
_ROW = 26
# Height of a row of the page if there are more FAKEs than these.
_LOW_ROW = 17
_MAX_HIGH_ROWS = 12
# Space in pixels around the axes of a chart of the page, left, right, top and bottom, which is the
# same in all of them so that they are aligned. Values are on the right of it, and names of rows on
# the left, besides.
_AROUND_LINE = (52, 14, 18, 66)
_AROUND_ROWS = (12, 10, 4, 40)
# Width of a letter of these, in pixels.
_LETTER = 6.8
_SMALL: dict[str, Any] = {
    "font.size": 11,
    "axes.labelsize": 10,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "lines.markersize": 5,
}
# Maximum number of values along a line; of more, and on the page, only the best is given.
_MAX_VALUES = 12
# Distance of an error bar from its point, which it would hide, if points are not joined. FAKEs are
# 1 apart.
_BAR_OFFSET = 0.3
_BARS: dict[str, Any] = {
    "label": "bias-corrected, 95 % interval",
    "marker": "o",
    "capsize": 3,
    "clip_on": False,
}


def _colours(
    ground: str, ink: str, muted: str, line: str, distances: str, corrected: str
) -> dict[str, Any]:
    """Settings for the colours of what is behind a text, of text, labels of axes, grid lines, the
    distances, and their corrected estimates.
    """
    return {
        "patch.facecolor": ground,
        "patch.linewidth": 0.0,
        "text.color": ink,
        "axes.labelcolor": muted,
        "xtick.color": muted,
        "ytick.color": muted,
        "axes.titlecolor": muted,
        "grid.color": line,
        "axes.prop_cycle": f"cycler(color={[distances, corrected]})",
    }


_LIGHT = _colours("#ffffff", "#1b1f24", "#57606a", "#dfe3e8", "#1f5fbf", "#b3530a")
_DARK = _colours("#14171b", "#e6e9ed", "#a3acb7", "#343b44", "#8ab0ff", "#f2a65e")


@dataclass(frozen=True)
class Chart:
    """The chart of a value of all FAKEs.

    Attributes:
        value: the value.
        title: its title.
        light, dark: as ``data:image/svg+xml;…``, for light and for dark backgrounds.
        has_spread: whether it shows what is behind the ±.
        has_intervals: whether it shows bias-corrected distances as well.
    """

    value: Value
    title: str
    light: str
    dark: str
    has_spread: bool
    has_intervals: bool


def page_charts(evaluation: Evaluation) -> list[Chart]:
    """Return a chart of each value, all of one size and with the FAKEs in one order; none of a
    single FAKE.
    """
    results = evaluation.results
    if len(results) == 1:
        return []
    sweeps = [make_sweep(results, value, _MAX_SHORT_NAME) for value in evaluation.values]
    frame = _make_frame(sweeps)
    features = common_features(evaluation)
    charts = []
    for sweep in sweeps:
        light, dark = (_image("svg", sweep, _SMALL | each, frame) for each in (_LIGHT, _DARK))
        has_spread = any(point.spread for point in sweep.points)
        has_intervals = any(point.corrected for point in sweep.points)
        chart = Chart(
            value=sweep.value,
            title=make_heading(sweep.value, features),
            light=_make_uri(light),
            dark=_make_uri(dark),
            has_spread=has_spread,
            has_intervals=has_intervals,
        )
        charts.append(chart)
    return charts


def _make_uri(svg: bytes) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"


def sweep_plot(evaluation: Evaluation, kind: str) -> bytes:
    """Return the chart of an evaluation's Fréchet distances, with a title, as the bytes of an image
    file.
    """
    results = evaluation.results
    distance = results[0].distance
    assert distance is not None  # nothing else is drawn
    lines = make_title(evaluation, distance, _MAX_PATH)
    title = "\n".join(shorten(escape_text(line), _MAX_LINE) for line in lines)
    sweep = make_sweep(results, distance)
    rows = 0.0 if sweep.label else (len(results) + 3) * _ROW / 72
    return _image(kind, sweep, _LIGHT, _Frame(9.0, max(4.5, rows), title=title))


@dataclass(frozen=True)
class _Frame:
    """What is around the axes of a chart.

    Attributes:
        width, height: size of the chart in inches.
        around: the space around the axes, left, right, top and bottom, as shares of width and
            height; None for a chart that makes room for its title and legend itself.
        title: its title; empty for a chart of the page, whose title and legend are text.
    """

    width: float
    height: float
    around: tuple[float, float, float, float] | None = None
    title: str = ""


def _make_frame(sweeps: Sequence[Sweep]) -> _Frame:
    """Return what is around the axes of each chart of the page."""
    points = [point for sweep in sweeps for point in sweep.points]
    left, right, top, bottom = map(float, _AROUND_LINE)
    height = float(_HEIGHT)
    if not sweeps[0].label:
        left, right, top, bottom = _AROUND_ROWS
        left += _LETTER * max(len(point.name) for point in points)
        rows = len(sweeps[0].points)
        height = top + rows * (_ROW if rows <= _MAX_HIGH_ROWS else _LOW_ROW) + bottom
    right += _LETTER * max(len(point.text) for point in points)
    shares = (left / _WIDTH, right / _WIDTH, top / height, bottom / height)
    return _Frame(_WIDTH / 72, height / 72, shares)  # a unit of the SVG is a pixel


def _image(kind: str, sweep: Sweep, colours: dict[str, Any], frame: _Frame) -> bytes:
    """The bytes of an image file, with matplotlib's defaults regardless of the user's
    matplotlibrc.
    """
    with warnings.catch_warnings():
        # matplotlib warns about characters missing in its font; the page's fonts may have them.
        warnings.simplefilter("ignore")
        from matplotlib import style
        from matplotlib.figure import Figure

        with style.context(["default", _STYLE, colours]):
            ground = "white" if frame.title else "none"
            figure = Figure(figsize=(frame.width, frame.height), facecolor=ground)
            axes = figure.subplots()
            _draw(axes, sweep, is_small=frame.around is not None)
            if frame.around is None:
                figure.set_layout_engine("constrained", w_pad=0.15, h_pad=0.15)
                # Names may contain dollar signs, which must not start a formula.
                figure.suptitle(frame.title, fontsize=12, parse_math=False)
                _add_legend(axes, bool(sweep.label))
            else:
                left, right, top, bottom = frame.around
                figure.subplots_adjust(left, bottom, 1 - right, 1 - top)
            buffer = io.BytesIO()
            # A date would make the files of equal runs differ.
            metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
            figure.savefig(buffer, format=kind, metadata=metadata if kind == "svg" else None)
    return buffer.getvalue()


def _draw(axes: Axes, sweep: Sweep, is_small: bool) -> None:
    """Draw a line if the names of the FAKEs have numbers, else a row for each FAKE, with the values
    along x.
    """
    if sweep.label:
        axis: Axis = axes.yaxis
        axes.set_xlabel(sweep.label)
        _draw_line(axes, sweep, 0 if is_small else _MAX_VALUES)
    else:
        axis = axes.xaxis
        _draw_rows(axes, sweep)
    if is_small:
        axes.locator_params(axis="y" if sweep.label else "x", nbins=4 if sweep.label else 3)
    least, most = sorted(axis.get_data_interval())
    low, high = axis.get_view_interval()
    if 0 <= 2 * least <= most:  # unless the values are less than a factor of 2 apart
        low = 0.0
    axis.set_view_interval(low, high, ignore=True)
    if low > 0:
        start = f"starts at {low:.{count_decimals(high - low, 2)}f}, not at 0"
        if is_small and sweep.label:  # a small chart is not high enough for it beside the axis
            axes.set_xlabel(f"{sweep.label}\nthe vertical axis {start}")
        else:
            axis.set_label_text(f"the axis {start}")
    axes.grid(axis="y" if sweep.label else "both", linewidth=1)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, pad=7)
    if is_small and sweep.label and sweep.value.number.better != "higher":
        axes.tick_params(axis="x", pad=19)  # the best value is between the line and these
    axes.spines[:].set_visible(False)


def _add_legend(axes: Axes, is_line: bool) -> None:
    axes.legend(
        loc="lower left" if is_line else "lower right",
        # Long names leave it no room on the right of their rows.
        bbox_to_anchor=(0 if is_line else 1, 1),
        ncols=2,
        frameon=False,
        borderaxespad=0.4,
        handlelength=1.6,
        columnspacing=1.2,
    )


def _error_bars(points: Sequence[Point]) -> tuple[list[float], list[float], list[list[float]]]:
    """Return the places of the bias-corrected estimates, the estimates, and how far their intervals
    reach below and above them.
    """
    bars = {point.x: point.corrected for point in points if point.corrected}
    below = [bar.value - bar.low for bar in bars.values()]
    above = [bar.high - bar.value for bar in bars.values()]
    return list(bars), [bar.value for bar in bars.values()], [below, above]


def _draw_line(axes: Axes, sweep: Sweep, most: int) -> None:
    """The values are above their points, or on the right of them if there are error bars; of more
    than ``most``, only the best is given, where the line is not.
    """
    points = sweep.points
    x = [point.x for point in points]
    numbers = [point.number for point in points]
    axes.plot(x, numbers, label=sweep.value.base, marker="o", linestyle="-", clip_on=False)
    spreads = [point.spread for point in points]
    places, estimates, reach = _error_bars(points)
    apart = (0, 7)
    side = "center"
    if any(spreads):
        axes.errorbar(x, numbers, yerr=spreads, linestyle="none", color="C0", capsize=3)
    if places:
        axes.errorbar(places, estimates, yerr=reach, linestyle="--", color="C1", **_BARS)
    if places or any(spreads):
        apart = (6, 5)
        side = "left"
    named = [point for point in points if not isnan(point.number)]
    if len(named) > most:
        is_higher = sweep.value.number.better == "higher"
        best = np.nanmax(numbers) if is_higher else np.nanmin(numbers)
        named = [point for point in named if point.number == best][-1:]
        if not is_higher and not places:  # bias-corrected estimates are below it
            apart = (apart[0], -17)
    for point in named:
        axes.annotate(
            point.text,
            (point.x, point.number),
            apart,
            textcoords="offset points",
            ha=side,
            bbox={"pad": 1},
        )
    # The ticks are at the points if these are few and not close together.
    if min(np.diff(x)) * 6 >= x[-1] - x[0]:
        axes.set_xticks(x)
    axes.xaxis.set_major_formatter("{x:,.10g}")
    axes.margins(y=0.12)


def _draw_rows(axes: Axes, sweep: Sweep) -> None:
    """The value of each FAKE is at the end of its row, and its error bar below its point, which it
    would hide.
    """
    points = sweep.points
    y = [point.x for point in points]
    numbers = [point.number for point in points]
    axes.plot(numbers, y, label=sweep.value.base, marker="o", linestyle="none", clip_on=False)
    spreads = [point.spread for point in points]
    if any(spreads):
        axes.errorbar(numbers, y, xerr=spreads, linestyle="none", color="C0", capsize=3)
    places, estimates, reach = _error_bars(points)
    if places:
        beside = [place + _BAR_OFFSET for place in places]
        axes.errorbar(estimates, beside, xerr=reach, linestyle="none", color="C1", **_BARS)
    axes.set_yticks(y, [point.name for point in points], parse_math=False)
    for point in points:
        axes.text(
            1.02,
            point.x,
            point.text,
            transform=axes.get_yaxis_transform(),
            va="center",
        )
    axes.set_ylim(len(points) + 0.6, 0.4)
    axes.locator_params(axis="x", nbins=5)


@dataclass(frozen=True)
class Point:
    """One FAKE of a sweep.

    Attributes:
        x: its place along the sweep.
        name: its name.
        number: its value; NaN if it has none.
        text: the value as it is shown.
        spread: what is behind the ±; 0 if nothing is.
        corrected: its bias-corrected distance, if there is one.
    """

    x: float
    name: str
    number: float
    text: str
    spread: float = 0.0
    corrected: Interval | None = None


@dataclass(frozen=True)
class Sweep:
    """A value of a run's FAKEs, by the numbers in their names or in the order of the arguments.

    Attributes:
        value: what the numbers are.
        points: the FAKEs in the order of x.
        label: what x is, such as ``step``; empty if it is the position among the arguments, 1, 2,
            3 …
    """

    value: Value
    points: Sequence[Point]
    label: str


def make_sweep(results: Sequence[Comparison], value: Value, longest: int = _MAX_NAME) -> Sweep:
    """Return a value of all FAKEs, with names of at most ``longest`` characters."""
    paths = [redact(result.fake.name) for result in results]  # a URL's query may contain numbers
    numbers = [place + 1.0 for place in range(len(paths))]
    label = ""
    swept = find_sweep_numbers(paths)
    if swept is not None and len(paths) > 2:  # two points are no line
        numbers, label = swept
    points = []
    for number, path, result in zip(numbers, short_names(paths), results, strict=True):
        name = escape_text(shorten(path, longest))
        points.append(_make_point(number, name, result, value))
    points.sort(key=lambda point: point.x)
    return Sweep(value, points, escape_text(shorten(label, _MAX_NAME)))


def _make_point(x: float, name: str, result: Comparison, value: Value) -> Point:
    number = result.metrics.get(value.key)
    if number is None:
        return Point(x, name, nan, "-")
    # The spread is drawn.
    text = format_number(value, number, shown_decimals(value, result))
    spread = result.metrics.get(value.spread, 0.0)
    return Point(x, name, number, text, spread, result.corrected_of(value))


def make_title(evaluation: Evaluation, value: Value, longest: int = _MAX_LINE) -> tuple[str, str]:
    """Return what values are of: metric and sets; then network, protocol, numbers of images."""
    results = evaluation.results
    basis = evaluation.basis(value)
    title = value.short_title
    real = set_text(results[0].real, longest)
    if len(results) == 1:
        return f"{title} of {set_text(results[0].fake, longest)} against {real}", basis
    counts = format_image_counts([result.fake.count for result in results])
    return f"{title} of {len(results)} sets against {real}", f"{basis}; {counts} per set"


def set_text(images: SetResult, longest: int = _MAX_LINE) -> str:
    """Return the name of a set, the number of its images, and how they were framed."""
    count = format_image_counts([images.count])
    if images.count is not None and images.found not in (None, images.count):
        count = f"{images.count:,} of {format_image_counts([images.found])}"
    framed = f", cropped by {images.framing}" if images.framing else ""
    return f"{shorten(images.name, longest)} ({count}{framed})"
