"""Results of several FAKEs or metrics as a table: one row per FAKE, one column per value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fidtool.diagnose.duplicates import NOTABLE_SHARE
from fidtool.report.names import legible, short_names, short_title, shortened, split_title
from fidtool.report.text import framing_lines, number, verdict_lines
from fidtool.results import Comparison, Difference, Evaluation

_GAP = "  "


class Column(NamedTuple):
    """A column, with one value per FAKE.

    Attributes:
        better: ``lower`` or ``higher``; empty if neither is better.
    """

    heading: str
    values: Sequence[str]
    better: str = ""
    best: frozenset[int] = frozenset()


def columns_of(evaluation: Evaluation) -> list[Column]:
    """Return the columns of all values, and those of the bias-corrected distance if any FAKE has it."""
    results, features = evaluation.results, common_features(evaluation)
    numbers, columns = evaluation.labels.numbers, []
    for name, title in results[0].titles.items():
        values = [result.value(name) for result in results]
        best = best_of(results, values, numbers[name].better, evaluation.differences if name == "fid" else ())
        heading = short_title(title if name == "fid" else title.removesuffix(f" ({features})"))
        columns.append(Column(heading, [number(name, result) for result in results], numbers[name].better, best))
    return columns + (_error_bars(evaluation) if any(result.corrected for result in results) else [])


def _error_bars(evaluation: Evaluation) -> list[Column]:
    bars = [result.corrected for result in evaluation.results]
    best = best_of(evaluation.results, corrected_values(evaluation.results), "lower", evaluation.differences)
    corrected = ["-" if bar is None else f"{bar.value:.4f} ± {bar.error:.4f}" for bar in bars]
    intervals = ["-" if bar is None else f"{bar.low:.4f} to {bar.high:.4f}" for bar in bars]
    title, _ = split_title(evaluation.labels.title("fid"))  # the column of the distance says of which features
    return [Column(f"bias-corrected {title}", corrected, "lower", best), Column("95 % interval", intervals)]


def table_lines(evaluation: Evaluation) -> list[str]:
    """Return the table, followed by its legend, the framings of the sets and the comparisons of FAKEs.

    The best values of each column are marked if there are at least two FAKEs that are not REAL itself.
    """
    columns, features = columns_of(evaluation), common_features(evaluation)
    names = short_names([result.fake.name for result in evaluation.results])
    cells = [["FAKE", *(legible(shortened(name)) for name in names)], *map(_marked, columns)]
    widths = [max(map(len, column)) for column in cells]
    lines = [f"Features of all values: {legible(features)}"] if features else []
    for first, *others in zip(*cells, strict=True):
        aligned = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append(_GAP.join([first.ljust(widths[0]), *aligned]).rstrip())
    legend = ["* best of its column"] if any(column.best for column in columns) else []
    lines += [*map(legible, evaluation.not_computed_lines), *legend, *about_marks(evaluation)]
    lines += framing_lines(evaluation)
    return lines + verdict_lines(evaluation, names)


def _marked(column: Column) -> list[str]:
    """Return the heading and the values, with a mark behind the best ones."""
    marks = ["*" if row in column.best else " " * bool(column.best) for row in range(-1, len(column.values))]
    return [text + mark for text, mark in zip([column.heading, *column.values], marks, strict=True)]


def about_marks(evaluation: Evaluation) -> Iterator[str]:
    """Yield sentences about which FAKEs are marked besides the best, and which are never marked."""
    results, differences = evaluation.results, evaluation.differences
    distances = [result.value("fid") for result in results], corrected_values(results)
    if any(best_of(results, each, "lower", differences) > best_of(results, each, "lower") for each in distances):
        base, _ = split_title(evaluation.labels.title("fid"))
        columns = f"{base} and bias-corrected {base}"
        yield f"In the columns {columns}, sets that cannot be distinguished from the best one are marked as well."
    others = sum(not is_real(each) for each in results)
    if others == len(results) or len(results) < 2:
        return
    if others < 2:
        left = "only one other set remains" if others else "no other set remains"
        yield f"No set is marked as best: sets that contain images of REAL are excluded, and {left}."
    else:
        yield "Sets that contain images of REAL are never marked as best."


def corrected_values(results: Sequence[Comparison]) -> list[float | None]:
    """Return the bias-corrected distances; None if unknown."""
    return [None if result.corrected is None else result.corrected.value for result in results]


def is_real(result: Comparison) -> bool:
    """Whether FAKE is REAL, or contains so many of its images that the distance is meaningless."""
    shared = None if result.diagnosis is None else result.diagnosis.shared
    return result.fake.name == result.real.name or (
        shared is not None and shared.count >= NOTABLE_SHARE * (result.fake.count or 1)
    )


def best_of(
    results: Sequence[Comparison], values: Sequence[float | None], better: str, differences: Sequence[Difference] = ()
) -> frozenset[int]:
    """Return the indices of the best of ``values``, one per FAKE; several in a tie.

    None is the best if fewer than two FAKEs can be compared, or if all are equal. A FAKE that is REAL is excluded.

    Args:
        values: one per FAKE; None if unknown.
        differences: differences of the values. A FAKE that they do not distinguish from the best is as good.
    """
    known = {
        place: value
        for place, (result, value) in enumerate(zip(results, values, strict=True))
        if value is not None and not is_real(result)
    }
    if len({*known.values()}) < 2:
        return frozenset()
    best = min(known.values()) if better == "lower" else max(known.values())
    leading = {results[place].fake.name for place, value in known.items() if value == best}
    ties = [{each.first, each.second} for each in differences if not each.distinguished]
    leading |= {fake for pair in ties if pair & leading for fake in pair}
    found = frozenset(place for place in known if results[place].fake.name in leading)
    return frozenset() if len(found) == len(known) else found


def common_features(evaluation: Evaluation) -> str:
    """Return the features that the titles of several values name, such as ``64 dimensions``; empty if they differ.

    They are named once above the table. Only a Fréchet distance keeps them in its heading: nothing else is an FID.
    """
    titles = evaluation.results[0].titles
    if len(titles) == 1:
        return ""
    found = {split_title(title)[1] for title in titles.values()}
    return found.pop() if len(found) == 1 else ""
