"""The chart of a run's FAKEs, for a page and as a file. Needs matplotlib."""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fidtool.errors import redact
from fidtool.names import escape_text, find_sweep_numbers, format_image_counts, short_names, shorten
from fidtool.report.tables import rounded_text
from fidtool.result.evaluation import Comparison, Evaluation, SetResult
from fidtool.result.explanations import Interval, count_decimals
from fidtool.result.values import Value

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

_MAX_LINE = 100
_MAX_NAME = 24
_MAX_PATH = 48
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fidtool",  # the same figure gives the same bytes
    "savefig.dpi": 160,
    "font.size": 13,
    "lines.linewidth": 2,
    "axes.formatter.useoffset": False,
    "axes.formatter.limits": (-4, 7),
    "axes.facecolor": "none",
}
# Size of the page's chart in pixels, and height of a row if each FAKE has one.
_WIDTH = 480
_HEIGHT = 280
_ROW = 26
# Maximum number of values along a line; of more, only the lowest is given.
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


def _colours(ink: str, muted: str, line: str, distances: str, corrected: str) -> dict[str, Any]:
    """Settings for the colours of text, labels of axes, grid lines, the distances, and their
    corrected estimates.
    """
    return {
        "text.color": ink,
        "axes.labelcolor": muted,
        "xtick.color": muted,
        "ytick.color": muted,
        "grid.color": line,
        "axes.prop_cycle": f"cycler(color={[distances, corrected]})",
    }


_LIGHT = _colours("#1b1f24", "#57606a", "#dfe3e8", "#1f5fbf", "#b3530a")
_DARK = _colours("#e6e9ed", "#a3acb7", "#343b44", "#8ab0ff", "#f2a65e")


def page_charts(evaluation: Evaluation) -> list[str]:
    """Return the chart of the Fréchet distances as ``data:image/svg+xml;…``, for light and for dark
    backgrounds.

    There is none of a single FAKE, nor if one has no such distance.
    """
    results = evaluation.results
    if len(results) == 1 or any(result.frechet_distance is None for result in results):
        return []
    inches = (_WIDTH / 72, _height(results) or _HEIGHT / 72)  # a unit of the SVG is a pixel
    charts = []
    for colours in (_LIGHT, _DARK):
        content = base64.b64encode(_image("svg", inches, results, colours)).decode()
        charts.append(f"data:image/svg+xml;base64,{content}")
    return charts


def sweep_plot(evaluation: Evaluation, kind: str) -> bytes:
    """Return the chart of an evaluation, with a title, as the bytes of an image file."""
    lines = make_title(evaluation, _get_distance(evaluation.results[0]), _MAX_PATH)
    title = "\n".join(shorten(escape_text(line), _MAX_LINE) for line in lines)
    inches = (9.0, max(4.5, _height(evaluation.results)))
    return _image(kind, inches, evaluation.results, _LIGHT, title)


def _height(results: Sequence[Comparison]) -> float:
    """Height in inches that rows need; 0 for a line."""
    _, label = make_sweep(results)
    return 0.0 if label else (len(results) + 3) * _ROW / 72


def _image(
    kind: str,
    inches: tuple[float, float],
    results: Sequence[Comparison],
    colours: dict[str, Any],
    title: str = "",
) -> bytes:
    """The bytes of an image file, with matplotlib's defaults regardless of the user's
    matplotlibrc.
    """
    with warnings.catch_warnings():
        # matplotlib warns about characters missing in its font; the page's fonts may have them.
        warnings.simplefilter("ignore")
        from matplotlib import style
        from matplotlib.figure import Figure

        with style.context(["default", _STYLE, colours]):
            figure = Figure(
                figsize=inches, layout="constrained", facecolor="white" if title else "none"
            )
            _draw(figure.subplots(), results)
            if title:
                figure.set_layout_engine("constrained", w_pad=0.15, h_pad=0.15)
                # Names may contain dollar signs, which must not start a formula.
                figure.suptitle(title, fontsize=12, parse_math=False)
            buffer = io.BytesIO()
            # A date would make the files of equal runs differ.
            figure.savefig(buffer, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return buffer.getvalue()


def _draw(axes: Axes, results: Sequence[Comparison]) -> None:
    """Draw a line if the names of the FAKEs have numbers, else a row for each FAKE, with the
    distances along x.
    """
    points, label = make_sweep(results)
    title = _get_distance(results[0]).base
    if label:
        axis: Axis = axes.yaxis
        axes.set_xlabel(label)
        _draw_line(axes, points, title)
    else:
        axis = axes.xaxis
        _draw_rows(axes, points, title)
    least, most = sorted(axis.get_data_interval())
    low, high = axis.get_view_interval()
    if 0 <= 2 * least < most:  # unless the values are less than a factor of 2 apart
        low = 0.0
    axis.set_view_interval(low, high, ignore=True)
    if low > 0:
        axis.set_label_text(f"the axis starts at {low:.{count_decimals(high - low, 2)}f}, not at 0")
    axes.grid(axis="y" if label else "both", linewidth=1)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, pad=7)
    axes.spines[:].set_visible(False)
    axes.legend(
        loc="lower left" if label else "lower right",
        # Long names leave it no room on the right of their rows.
        bbox_to_anchor=(0 if label else 1, 1),
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


def _draw_line(axes: Axes, points: Sequence[Point], title: str) -> None:
    """The values are above their points, or beside the error bars."""
    x = [point.x for point in points]
    distances = [point.distance for point in points]
    axes.plot(x, distances, label=title, marker="o", linestyle="-", clip_on=False)
    places, estimates, reach = _error_bars(points)
    apart = (0, 7)
    side = "center"
    if places:
        apart = (6, 5)
        side = "left"
        axes.errorbar(places, estimates, yerr=reach, linestyle="--", **_BARS)
    for point in points:
        if len(points) <= _MAX_VALUES or point.distance == min(distances):
            axes.annotate(
                point.value,
                (point.x, point.distance),
                apart,
                textcoords="offset points",
                ha=side,
                fontsize=12,
            )
    # The ticks are at the points if these are few and not close together.
    if min(np.diff(x)) * 6 >= x[-1] - x[0]:
        axes.set_xticks(x)
    axes.xaxis.set_major_formatter("{x:,.10g}")
    axes.margins(y=0.12)


def _draw_rows(axes: Axes, points: Sequence[Point], title: str) -> None:
    """The value of each FAKE is at the end of its row, and its error bar below its point, which it
    would hide.
    """
    y = [point.x for point in points]
    distances = [point.distance for point in points]
    axes.plot(distances, y, label=title, marker="o", linestyle="none", clip_on=False)
    places, estimates, reach = _error_bars(points)
    if places:
        beside = [place + _BAR_OFFSET for place in places]
        axes.errorbar(estimates, beside, xerr=reach, linestyle="none", **_BARS)
    axes.set_yticks(y, [point.name for point in points], parse_math=False)
    for point in points:
        axes.text(
            1.02,
            point.x,
            point.value,
            transform=axes.get_yaxis_transform(),
            va="center",
            fontsize=12,
        )
    axes.set_ylim(len(points) + 0.6, 0.4)
    axes.locator_params(axis="x", nbins=5)


@dataclass(frozen=True)
class Point:
    """One FAKE of a sweep; ``value`` is its distance as it is shown."""

    x: float
    name: str
    distance: float
    value: str
    corrected: Interval | None


def make_sweep(results: Sequence[Comparison]) -> tuple[list[Point], str]:
    """The Fréchet distances of a run's FAKEs, by the numbers in their names or in the order of the
    arguments.

    Returns:
        The points in the order of x, and the label of x, such as ``step``; it is empty if x is the
        position among the arguments, 1, 2, 3 …
    """
    paths = [redact(result.fake.name) for result in results]  # a URL's query may contain numbers
    numbers = [place + 1.0 for place in range(len(paths))]
    label = ""
    swept = find_sweep_numbers(paths)
    if swept is not None and len(paths) > 2:  # two points are no line
        numbers, label = swept
    points = []
    for number, name, result in zip(numbers, short_names(paths), results, strict=True):
        value = _get_distance(result)
        points.append(
            Point(
                x=number,
                name=escape_text(shorten(name, _MAX_NAME)),
                distance=result.metrics[value.key],
                value=rounded_text(value, result),
                corrected=result.corrected,
            )
        )
    return sorted(points, key=lambda point: point.x), escape_text(shorten(label, _MAX_NAME))


def _get_distance(result: Comparison) -> Value:
    assert result.distance is not None  # nothing else is drawn
    return result.distance


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
    framed = f", framed by {images.framing}" if images.framing else ""
    return f"{shorten(images.name, longest)} ({count}{framed})"
