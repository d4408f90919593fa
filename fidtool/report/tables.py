"""An evaluation as a table, with one row per FAKE and one column per value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple
from math import floor, log10
from typing import NamedTuple

from fidtool.diagnose.duplicates import NOTABLE_SHARE
from fidtool.explanations import Difference, Interval
from fidtool.features.protocol import SPATIAL, SPATIAL_DIMS
from fidtool.metrics.registry import BUILT_IN
from fidtool.names import legible, short_names, short_title, shortened, split_title
from fidtool.report.text import framing_lines, verdict_lines
from fidtool.results import Comparison, Evaluation

_FRECHET = frozenset(number.name for kind in BUILT_IN.values() if kind.frechet for number in kind.numbers)
_SPREADS = {"std": " ± s.d.", "error": " ± s.e."}
"""What is behind the ± (standard deviation, standard error), by the last word of the value's name."""


class Column(NamedTuple):
    """A column, with one value per FAKE.

    Attributes:
        better: ``lower`` or ``higher``; empty if neither is better.
    """

    heading: str
    values: Sequence[str]
    better: str = ""
    best: frozenset[int] = frozenset()


def rounded(name: str, result: Comparison) -> str:
    """Return the text of a value, by its plain name, in the digits that can be relied on, with its spread if known.

    These are the digits to the second one of the spread or of the standard error. A Fréchet distance without one has
    two decimals and at least three digits, as in papers; three digits if there are at most as many images as
    dimensions, as it is far too high then. Other values have the digits of their `Number`.
    """
    shown, key = result.labels.numbers[name], result.labels.key
    value, spread = result.metrics[key(name)], result.metrics.get(key(shown.spread)) if shown.spread else None
    error = result.corrected.error if name == "fid" and result.corrected is not None else spread
    decimals = shown.digits
    if error:
        decimals = min(decimals, decimals_of(error, 2))
    elif name in _FRECHET:
        dims = SPATIAL_DIMS if shown.layer == SPATIAL else result.labels.dims
        counts = [each.count for each in (result.real, result.fake) if each.count is not None]
        decimals = min(decimals, max(decimals_of(value, 3), 0 if min(counts, default=dims + 1) <= dims else 2))
    text = f"{value:.{decimals}f}"
    return text if spread is None else f"{text} ± {spread:.{decimals}f}"


def decimals_of(value: float, digits: int) -> int:
    """Return how many decimals show the first ``digits`` digits of a value; 0 if it has as many before the point."""
    return max(0, digits - 1 - floor(log10(abs(value)))) if value else digits


def columns_of(evaluation: Evaluation) -> list[Column]:
    """Return the columns of all values, and those of bias-corrected distances if any FAKE has them."""
    results, features = evaluation.results, common_features(evaluation)
    columns, corrected = [], []
    for title, name in _names_by_title(evaluation).items():
        having = [result if result.titles.get(name) == title else None for result in results]
        shown = next(result.labels.numbers[name] for result in having if result is not None)
        values = [None if result is None else result.value(name) for result in having]
        texts = ["-" if result is None else rounded(name, result) for result in having]
        differences = evaluation.differences if name == "fid" else ()
        heading = short_title(title if name == "fid" else title.removesuffix(f" ({features})"))
        heading += _SPREADS.get(shown.spread.rpartition("_")[2], "") * any("±" in text for text in texts)
        columns.append(Column(heading, texts, shown.better, best_of(results, values, shown.better, differences, texts)))
        bars = [None if result is None or name != "fid" else result.corrected for result in having]
        if any(bars):
            spans = [_interval(bar) for bar in bars]
            texts, intervals = [each for each, _ in spans], [each for _, each in spans]
            best = best_of(results, [None if bar is None else bar.value for bar in bars], "lower", differences, texts)
            base, _ = split_title(title)  # the column of the distance says of which features
            corrected.append(Column(f"bias-corrected {base} ± s.e.", texts, "lower", best))
            corrected.append(Column("95 % interval", intervals))
    return [*columns, *corrected]


def _interval(bar: Interval | None) -> tuple[str, str]:
    """Return a bias-corrected value with its standard error, and its interval."""
    if bar is None:
        return "-", "-"
    value, error, low, high = (f"{each:.{min(4, decimals_of(bar.error, 2))}f}" for each in astuple(bar))
    return f"{value} ± {error}", f"{low} to {high}"


def _names_by_title(evaluation: Evaluation) -> dict[str, str]:
    """Return the plain names of the values by their titles: results that were saved may have different networks."""
    return {title: name for result in evaluation.results for name, title in result.titles.items()}


def table_lines(evaluation: Evaluation) -> list[str]:
    """Return the table, followed by its legend, the framings of the sets and the comparisons of FAKEs.

    The best values of each column are marked if there are at least two FAKEs that are not REAL itself.
    """
    columns, features = columns_of(evaluation), common_features(evaluation)
    names = short_names([result.fake.name for result in evaluation.results])
    cells = [["FAKE", *(legible(shortened(name)) for name in names)]]
    for column in columns:  # with a mark behind the best ones
        marks = ["*" if row in column.best else " " * bool(column.best) for row in range(-1, len(names))]
        cells.append([text + mark for text, mark in zip([column.heading, *column.values], marks, strict=True)])
    widths = [max(map(len, column)) for column in cells]
    lines = [f"Features of all values: {legible(features)}"] if features else []
    for first, *others in zip(*cells, strict=True):
        aligned = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *aligned]).rstrip())
    legend = ["* best of its column"] if any(column.best for column in columns) else []
    lines += [*map(legible, evaluation.not_computed_lines), *legend, *about_marks(evaluation)]
    lines += framing_lines(evaluation)
    return lines + verdict_lines(evaluation, names)


def about_marks(evaluation: Evaluation) -> Iterator[str]:
    """Yield sentences about which FAKEs are marked besides the best, and which are never marked."""
    results, differences = evaluation.results, evaluation.differences
    bars = [result.corrected for result in results]
    distances = [result.value("fid") for result in results], [None if bar is None else bar.value for bar in bars]
    if any(best_of(results, each, "lower", differences) > best_of(results, each, "lower") for each in distances):
        base, _ = split_title(evaluation.labels.title("fid"))
        columns = f"{base} and bias-corrected {base}"
        yield f"In the columns {columns}, sets that cannot be distinguished from the best one are marked as well."
    if len(results) > 1 and any(map(is_real, results)):
        yield "Sets that contain images of REAL are never marked as best, nor is a set that is the only other one."


def is_real(result: Comparison) -> bool:
    """Whether FAKE is REAL, or contains so many of its images that the distance is meaningless."""
    shared = None if result.diagnosis is None else result.diagnosis.shared
    return result.fake.name == result.real.name or (
        shared is not None and shared.count >= NOTABLE_SHARE * (result.fake.count or 1)
    )


def best_of(
    results: Sequence[Comparison],
    values: Sequence[float | None],
    better: str,
    differences: Sequence[Difference] = (),
    texts: Sequence[str] = (),
) -> frozenset[int]:
    """Return the indices of the best of ``values``, one per FAKE; several in a tie.

    None is the best if fewer than two FAKEs can be compared, or if all are equal. A FAKE that is REAL is excluded.

    Args:
        values: one per FAKE; None if unknown.
        differences: differences of the values. A FAKE that they do not distinguish from the best is as good.
        texts: the values as they are shown. A FAKE whose text is that of the best is as good.
    """
    known = {
        place: value
        for place, (result, value) in enumerate(zip(results, values, strict=True))
        if value is not None and not is_real(result)
    }
    if len({*known.values()}) < 2:
        return frozenset()
    best = min(known.values()) if better == "lower" else max(known.values())
    found = {place for place, value in known.items() if value == best}
    leading = {results[place].fake.name for place in found}
    ties = [{each.first, each.second} for each in differences if not each.distinguished]
    tied = {fake for pair in ties if pair & leading for fake in pair}
    alike = {texts[place] for place in found if texts}
    found |= {place for place in known if results[place].fake.name in tied or (texts and texts[place] in alike)}
    return frozenset() if len(found) == len(known) else frozenset(found)


def common_features(evaluation: Evaluation) -> str:
    """Return the features that the titles of several values name, such as ``64 dimensions``; empty if they differ.

    They are named once above the table. Only a Fréchet distance keeps them in its heading: nothing else is an FID.
    """
    titles = _names_by_title(evaluation)
    found = {split_title(title)[1] for title in titles}
    return found.pop() if len(titles) > 1 and len(found) == 1 else ""
