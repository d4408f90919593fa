"""The overview of several FAKEs on a page: the values of all metrics, and which FAKE is best by each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fidtool.report.names import legible, short_title, shortened, split_title
from fidtool.report.sections import MetricValue, metric_value, rounded
from fidtool.report.table import about_marks, best_of, common_features, corrected_values
from fidtool.results import Comparison, Evaluation


@dataclass(frozen=True)
class Column:
    """A column of the overview.

    Attributes:
        title: title of the metric, such as ``FID``.
        qualifier: the features that it is computed from, such as ``dinov2``; empty for Inception's 2048.
        better: ``lower`` or ``higher``.
        note: what the second lines of its cells show; empty for a metric.
    """

    title: str
    qualifier: str
    better: str
    note: str = ""


@dataclass(frozen=True)
class Cell:
    """A value of the overview, and whether it is the best of its column, see `best_of`."""

    value: MetricValue
    best: bool = False


@dataclass(frozen=True)
class Overview:
    """The values of all FAKEs.

    Attributes:
        columns: one per metric, and one for the bias-corrected distance if any FAKE has it.
        rows: one per FAKE, with one cell per column.
        remarks: sentences about the features and about which FAKEs are marked as the best.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    remarks: tuple[str, ...]


def overview_of(evaluation: Evaluation) -> Overview:
    """The overview of a run's results, at least one."""
    results, numbers = evaluation.results, evaluation.labels.numbers
    features = common_features(evaluation)
    columns: list[Column] = []
    cells: list[list[Cell]] = []

    def add(name: str, column: Column, values: Sequence[MetricValue], exact: Sequence[float | None]) -> None:
        best = best_of(results, exact, column.better, evaluation.differences if name == "fid" else ())
        columns.append(column)
        cells.append([Cell(value, row in best) for row, value in enumerate(values)])

    for name, title in results[0].titles.items():
        base, qualifier = split_title(short_title(title))
        column = Column(base, "" if features and name != "fid" else qualifier, numbers[name].better)
        add(name, column, [metric_value(name, each) for each in results], [each.value(name) for each in results])
        if name == "fid" and any(each.uncertainty is not None for each in results):
            column = Column(f"Bias-corrected {base}", "", "lower", "95 % interval")
            add(name, column, [_corrected(each) for each in results], corrected_values(results))
    remarks = [f"Features of all values: {legible(shortened(features))}."] if features else []
    return Overview(tuple(columns), tuple(zip(*cells, strict=True)), (*remarks, *about_marks(evaluation)))


def _corrected(result: Comparison) -> MetricValue:
    """The bias-corrected distance with its interval, or why there is none."""
    uncertainty = result.uncertainty
    if uncertainty is None or uncertainty.corrected is None:
        return MetricValue("–", "", "" if uncertainty is None else f"withheld: {uncertainty.withheld}")
    found = uncertainty.corrected
    interval = f"{rounded(found.low, found.error)} to {rounded(found.high, found.error)}"
    exact = f"{found.value!r}, 95 % interval {found.low!r} to {found.high!r}"
    return MetricValue(rounded(found.value, found.error), interval, exact)
