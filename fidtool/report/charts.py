"""Charts: what they show, how they are drawn, and their SVG for a page. Needs matplotlib."""

from __future__ import annotations

import base64
import io
import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fidtool.errors import InputError, option, redacted
from fidtool.explanations import Interval, Uncertainty
from fidtool.names import legible, numbers_of, short_names, short_title, shortened, split_title
from fidtool.results import Comparison, Evaluation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LONGEST_LINE = 100
_LONGEST_NAME = 24
_LONGEST_PATH = 48
_INCHES = (9.0, 4.5)
_DOTS_PER_INCH = 160
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fidtool",  # the same figure gives the same bytes
    "font.size": 13,
    "lines.linewidth": 2,
    "axes.formatter.useoffset": False,
    "axes.formatter.limits": (-4, 7),
}
_BINS = 16
_MOST_NAMES = 8
"""Maximum number of names under an axis."""
_MOST_TICKS = 6
_ROOM = 48
"""Total length of the names that fit under an axis, in characters."""
_BAND = 0.16
_BESIDE, _MOST_BESIDE = 0.025, 0.25
"""Distance of the error bars from points that are not joined: per FAKE, and its maximum. FAKEs are 1 apart."""
_CORRECTED = "bias-corrected, 95 % interval"
_INK, _MUTED, _LINE, _ACCENT, _SECOND = "#1b1f24", "#57606a", "#dfe3e8", "#1f5fbf", "#b3530a"
"""Colours of text, secondary text, grid lines, FAKE's data, and estimates, on white."""


def draw_sweep(axes: Axes, results: Sequence[Comparison]) -> None:
    """Draws the Fréchet distance of each FAKE with its error bars.

    A line joins the points if x is a quantity. Otherwise the error bars are beside the points, which they would hide.
    """
    points, axis = sweep_of(results)
    x, names, y, _ = zip(*points, strict=True)
    joined = bool(axis)
    label, line = distance_of(results), "-" if joined else "none"
    axes.plot(x, y, label=label, color=_ACCENT, marker="o", linestyle=line)
    beside = 0.0 if joined else min(_MOST_BESIDE, _BESIDE * len(x))
    known = [(point.x + beside, point.corrected) for point in points if point.corrected is not None]
    if known:
        _draw_corrected(axes, known, joined)
    if joined:
        # The ticks are at the points if these are few and not close together.
        if min(later - earlier for earlier, later in itertools.pairwise(x)) * _MOST_TICKS >= x[-1] - x[0]:
            axes.set_xticks(x)
        axes.xaxis.set_major_formatter("{x:,.10g}")
        axes.set_xlabel(axis)
    else:
        places = range(1, len(names) + 1)
        if len(names) <= _MOST_NAMES and sum(map(len, names)) <= _ROOM:
            axes.set_xticks(places, names, parse_math=False)
        else:
            axes.set_xticks(places)
            axes.set_xlabel("number of the set, in the order of the arguments")
        axes.set_xlim(0.4, len(names) + 0.6)
    _finish(axes, legend=bool(known))


def _draw_corrected(axes: Axes, known: Sequence[tuple[float, Interval]], joined: bool) -> None:
    x, intervals = zip(*known, strict=True)
    values, low, high = ([getattr(each, part) for each in intervals] for part in ("value", "low", "high"))
    reach = [np.subtract(values, low), np.subtract(high, values)]
    line = "--" if joined else "none"
    axes.errorbar(x, values, yerr=reach, label=_CORRECTED, color=_SECOND, marker="o", linestyle=line, capsize=4)
    if joined and len(known) > 1:
        axes.fill_between(x, low, high, color=_SECOND, alpha=_BAND, linewidth=0)


def draw_curve(axes: Axes, uncertainty: Uncertainty, title: str) -> None:
    """Draws the distance against the number of images, and the bias-corrected distance with its interval."""
    images = [number for number, _ in uncertainty.curve]
    distances = [distance for _, distance in uncertainty.curve]
    label, _ = split_title(title)  # the legend must be narrower than the chart, whose title names the network
    axes.plot(images, distances, label=label, color=_ACCENT, marker="o", clip_on=False)
    if uncertainty.corrected is not None:
        interval = uncertainty.corrected
        axes.axhspan(interval.low, interval.high, color=_SECOND, alpha=_BAND, linewidth=0)
        axes.axhline(interval.value, color=_SECOND, linestyle="--", label=_CORRECTED)
    axes.set_xlim(0, 1.06 * max(images))
    axes.set_xticks(images, [f"{number:,}" for number in images])
    axes.set_xlabel("number of images")
    _finish(axes, legend=uncertainty.corrected is not None)


def draw_histogram(axes: Axes, real: Sequence[float] | None, fake: Sequence[float] | None) -> None:
    """Draws the shares of pixel values in 16 ranges: REAL as an area, FAKE as a line."""
    edges = [256 / _BINS * number for number in range(_BINS + 1)]
    if real is not None:
        axes.stairs([100 * share for share in real], edges, fill=True, color=_MUTED, alpha=0.4, label="REAL")
    if fake is not None:
        axes.stairs([100 * share for share in fake], edges, color=_ACCENT, linewidth=2.4, label="FAKE")
    axes.set_xlim(0, 256)
    axes.set_ylim(bottom=0)
    axes.set_xticks([0, 64, 128, 192, 255])
    axes.set_xlabel("pixel value")
    axes.yaxis.set_major_formatter("{x:g} %")
    _finish(axes, legend=True)


def _finish(axes: Axes, *, legend: bool) -> None:
    """Grid lines behind the data, no frame, the legend above unless the chart's title describes its only series."""
    axes.set_axisbelow(True)
    axes.grid(axis="y", color=_LINE, linewidth=1)
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_LINE)
    axes.tick_params(colors=_MUTED, length=0, pad=7)
    axes.xaxis.label.set_color(_MUTED)
    if legend:
        space = {"borderaxespad": 0.4, "handlelength": 1.6, "columnspacing": 1.2}
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, labelcolor=_INK, **space)


class Chart(NamedTuple):
    """A chart of a page: ``uri`` is ``data:image/svg+xml;…``, with a background of its own."""

    uri: str
    alt: str
    width: int


def chart(alt: str, size: tuple[int, int], draw: Callable[..., None], *drawn: object) -> Chart:
    """The chart that one of the functions above draws, in pixels."""
    inches = size[0] / 72, size[1] / 72  # one unit of the SVG is one pixel
    content = _image("svg", inches, lambda figure: draw(figure.subplots(), *drawn))
    return Chart(f"data:image/svg+xml;base64,{base64.b64encode(content).decode()}", legible(alt), size[0])


def sweep_plot(evaluation: Evaluation, kind: str) -> bytes:
    """The Fréchet distances of an evaluation as the bytes of an image file."""
    results = evaluation.results
    if results[0].frechet_distance is None:
        problem = f"{option('plot')} draws the metric fid, which is not among {option('metrics')}"
        raise InputError(problem, setting="plot")

    def draw(figure: Figure) -> None:
        figure.set_layout_engine("constrained", w_pad=0.15, h_pad=0.15)
        axes = figure.subplots()
        draw_sweep(axes, results)
        axes.set_ylabel(distance_of(results), color=_INK)
        lines = [shortened(line, _LONGEST_LINE) for line in title_of(evaluation)]
        # Names may contain dollar signs, which must not start a formula.
        figure.suptitle("\n".join(lines), fontsize=12, color=_INK, parse_math=False)

    return _image(kind, _INCHES, draw)


def _image(kind: str, inches: tuple[float, float], draw: Callable[[Figure], None]) -> bytes:
    """The bytes of an image file, with matplotlib's defaults regardless of the user's matplotlibrc."""
    with warnings.catch_warnings():
        # matplotlib warns about characters missing in its font; the page's fonts may have them.
        warnings.simplefilter("ignore")
        from matplotlib import style
        from matplotlib.figure import Figure

        with style.context(["default", _STYLE]):
            figure = Figure(figsize=inches, layout="constrained")
            draw(figure)
            buffer = io.BytesIO()
            # A date would make the files of equal runs differ.
            figure.savefig(buffer, format=kind, dpi=_DOTS_PER_INCH, metadata={"Date": None} if kind == "svg" else None)
    return buffer.getvalue()


class SweepPoint(NamedTuple):
    """One FAKE of a sweep."""

    x: float
    name: str
    distance: float | None
    corrected: Interval | None


def sweep_of(results: Sequence[Comparison]) -> tuple[list[SweepPoint], str]:
    """The Fréchet distances of a run's FAKEs, by the numbers in their names or in the order of the arguments.

    Returns:
        The points in the order of x, and the label of x, such as ``step``; it is empty if x is the position among the
        arguments, 1, 2, 3 …
    """
    paths = [redacted(result.fake.name) for result in results]  # a URL's query may contain numbers
    counted = numbers_of(paths) if len(paths) > 1 else None
    numbers, axis = counted if counted is not None else ([float(place + 1) for place in range(len(paths))], "")
    points = [
        SweepPoint(number, legible(shortened(name, _LONGEST_NAME)), result.frechet_distance, result.corrected)
        for number, name, result in zip(numbers, short_names(paths), results, strict=True)
    ]
    return sorted(points, key=lambda point: point.x), legible(shortened(axis, _LONGEST_NAME))


def distance_of(results: Sequence[Comparison]) -> str:
    """Title of the Fréchet distance without its features, such as ``FID``."""
    return split_title(short_title(results[0].labels.title("fid")))[0]


def title_of(evaluation: Evaluation) -> tuple[str, str]:
    """What the charts of all FAKEs show: metric and sets; then network, protocol, numbers of images."""
    results, basis = evaluation.results, legible(evaluation.basis("fid"))
    first, counts = results[0], _images([result.fake.count for result in results])
    start = f"{short_title(first.labels.title('fid'))} of "
    end = f" against {legible(shortened(first.real.name, _LONGEST_PATH))} ({_images([first.real.count])})"
    if len(results) == 1:
        return f"{start}{legible(shortened(first.fake.name, _LONGEST_PATH))} ({counts}){end}", basis
    return f"{start}{len(results)} sets{end}", f"{basis}; {counts} per set"


def _images(counts: Sequence[int | None]) -> str:
    known = [count for count in counts if count is not None]
    if len(known) < len(counts):
        return "unknown number of images"
    least, most = min(known), max(known)
    return f"{least:,} images" if least == most else f"{least:,} to {most:,} images"
