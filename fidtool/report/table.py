"""Results of several FAKEs or metrics as a table: one row per FAKE, one column per value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from textwrap import wrap
from typing import NamedTuple

import click

from fidtool.diagnose.duplicates import NOTABLE_SHARE
from fidtool.report.names import legible, short_names, shortened, split_title
from fidtool.report.text import framing_lines, number, verdict_lines
from fidtool.results import Comparison, Difference, Evaluation

_GAP = "  "
_LONGEST_HEADING = 28
_NARROWEST = 24
"""Least width of text below the table, in characters."""
_NARROWEST_NAMES, _NARROW_NAMES = 8, 24
"""Widths of the column of names: the least, and the one below which the other columns are split into blocks instead."""


class _Column(NamedTuple):
    """A column, with cells of equal width.

    Attributes:
        heading: first line.
        cells: one cell per FAKE.
        best: rows of the best values.
    """

    heading: str
    cells: list[str]
    best: frozenset[int] = frozenset()

    @classmethod
    def of(cls, heading: str, values: Sequence[str], best: frozenset[int] = frozenset()) -> _Column:
        """Return a column of ``values``, aligned to the right, with a mark behind those in the rows ``best``."""
        marks = ["*" if row in best else " " * bool(best) for row in range(len(values))]
        lines = [f"{heading}{' ' * bool(best)}", *(value + mark for value, mark in zip(values, marks, strict=True))]
        width = max(map(len, lines))
        return cls(lines[0].rjust(width), [line.rjust(width) for line in lines[1:]], best)

    @property
    def width(self) -> int:
        """Its width with the gap before it, in characters."""
        return len(_GAP) + len(self.heading)


def table_lines(evaluation: Evaluation, width: int, styled: bool = False) -> list[str]:
    """Return the table, followed by its legend, the framings of the sets and the comparisons of FAKEs.

    The best values of each column are marked if there are at least two FAKEs that are not REAL itself.

    Args:
        evaluation: the results.
        width: width of the terminal in characters. A wider table is split into blocks of columns.
        styled: emphasise headings and best values with escape sequences of terminals.
    """
    columns = _columns(evaluation)
    names = _names([result.fake.name for result in evaluation.results], columns, width)
    features = common_features(evaluation)
    lines = [shortened(f"Features of all values: {legible(features)}", width)] if features else []
    for position, block in enumerate(_blocks(columns, width - len(names.heading))):
        lines += [*([""] if position else []), *_rows([names, *block], styled)]
    legend = ["* best of its column"] if any(column.best for column in columns) else []
    verdicts = verdict_lines(evaluation, short_names([result.fake.name for result in evaluation.results]))
    for text in [*legend, *about_marks(evaluation), *framing_lines(evaluation), *verdicts]:
        lines += wrap(text, max(width, _NARROWEST), subsequent_indent=_GAP, break_on_hyphens=False)
    return lines


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
    results: Sequence[Comparison],
    values: Sequence[float | None],
    better: str,
    differences: Sequence[Difference] = (),
) -> frozenset[int]:
    """Return the indices of the best of ``values``, one per FAKE; several in a tie.

    None is the best if fewer than two FAKEs can be compared, or if all are equal. A FAKE that is REAL is excluded.

    Args:
        results: the FAKEs.
        values: one per FAKE; None if unknown.
        better: ``lower`` or ``higher``.
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


def _columns(evaluation: Evaluation) -> list[_Column]:
    results, features = evaluation.results, common_features(evaluation)
    numbers, columns = evaluation.labels.numbers, []
    for name, title in results[0].titles.items():
        values = [result.value(name) for result in results]
        best = best_of(results, values, numbers[name].better, evaluation.differences if name == "fid" else ())
        heading = _heading(title if name == "fid" else title.removesuffix(f" ({features})"))
        columns.append(_Column.of(heading, [number(name, result) for result in results], best))
    return columns + (_error_bars(evaluation) if any(result.corrected for result in results) else [])


def _error_bars(evaluation: Evaluation) -> list[_Column]:
    bars = [result.corrected for result in evaluation.results]
    best = best_of(evaluation.results, corrected_values(evaluation.results), "lower", evaluation.differences)
    corrected = ["-" if bar is None else f"{bar.value:.4f} ± {bar.error:.4f}" for bar in bars]
    intervals = ["-" if bar is None else f"{bar.low:.4f} to {bar.high:.4f}" for bar in bars]
    title, _ = split_title(evaluation.labels.title("fid"))  # the column of the distance says of which features
    return [_Column.of(f"bias-corrected {title}", corrected, best), _Column.of("95 % interval", intervals)]


def common_features(evaluation: Evaluation) -> str:
    """Return the features that the titles of several values name, such as ``64 dimensions``; empty if they differ.

    They are named once above the table. Only a Fréchet distance keeps them in its heading: nothing else is an FID.
    """
    titles = evaluation.results[0].titles
    if len(titles) == 1:
        return ""
    found = {split_title(title)[1] for title in titles.values()}
    return found.pop() if len(found) == 1 else ""


def _heading(title: str) -> str:
    return shortened(legible(title), _LONGEST_HEADING)


def _names(paths: Sequence[str], columns: Sequence[_Column], width: int) -> _Column:
    """Return the first column, with names that are shortened to the room that is left, but stay distinct."""
    names = [legible(name) for name in short_names(paths)]
    longest = max(map(len, names))
    least = max(_NARROWEST_NAMES, min(_NARROW_NAMES, width - max(column.width for column in columns)))
    room = min(longest, max(least, width - sum(column.width for column in columns)))
    for length in range(room, longest + 1):
        fitted = [shortened(name, length) for name in names]
        if len(set(fitted)) == len(set(names)):
            break
    size = max(len("FAKE"), *map(len, fitted))
    return _Column("FAKE".ljust(size), [name.ljust(size) for name in fitted])


def _blocks(columns: Iterable[_Column], room: int) -> Iterator[list[_Column]]:
    """Yield the columns in groups that fit into ``room`` characters, with at least one column each."""
    block: list[_Column] = []
    for column in columns:
        if block and sum(each.width for each in [*block, column]) > room:
            yield block
            block = []
        block.append(column)
    yield block


def _rows(columns: Sequence[_Column], styled: bool) -> Iterator[str]:
    yield _GAP.join(click.style(each.heading, bold=True) if styled else each.heading for each in columns).rstrip()
    for row in range(len(columns[0].cells)):
        cells = [
            click.style(each.cells[row], fg="green", bold=True) if styled and row in each.best else each.cells[row]
            for each in columns
        ]
        yield _GAP.join(cells).rstrip()
