"""The overview of several FAKEs on a page: the values of all metrics, and which FAKE is best by each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fidtool.report.names import short_title
from fidtool.report.sections import MetricValue, metric_value, rounded
from fidtool.results import Comparison, best_of


@dataclass(frozen=True)
class Column:
    """A column of the overview.

    Attributes:
        title: of the metric, such as ``FID``.
        qualifier: the features that it is of, such as ``dinov2``; empty for Inception's 2048.
        better: ``lower`` or ``higher``; empty if no FAKE is marked as the best.
        note: what its second lines show; empty for a metric.
    """

    title: str
    qualifier: str
    better: str
    note: str = ""


@dataclass(frozen=True)
class Cell:
    """A value of the overview, and whether it is the best of its column."""

    value: MetricValue
    best: bool = False


@dataclass(frozen=True)
class Overview:
    """The values of all FAKEs.

    Attributes:
        columns: one per metric, and one for the bias-corrected distance if any FAKE has it.
        rows: one per FAKE, with one cell per column.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]


def overview_of(results: Sequence[Comparison]) -> Overview:
    """The overview of a run's results, of which there is at least one."""
    columns: list[Column] = []
    cells: list[list[Cell]] = []
    for name, title in results[0].titles.items():
        base, _, qualifier = short_title(title).partition(" (")
        better = results[0].labels.numbers[name].better
        columns.append(Column(base, qualifier.removesuffix(")"), better))
        best = best_of(results, [result.value(name) for result in results], better)
        cells.append([Cell(metric_value(name, result), place in best) for place, result in enumerate(results)])
        if name == "fid" and any(result.uncertainty is not None for result in results):
            columns.append(Column(f"Bias-corrected {base}", "", "", "95 % interval"))
            cells.append([Cell(_corrected(result)) for result in results])
    return Overview(tuple(columns), tuple(zip(*cells, strict=True)))


def _corrected(result: Comparison) -> MetricValue:
    """The bias-corrected distance with its interval, or why there is none."""
    uncertainty = result.uncertainty
    if uncertainty is None or uncertainty.corrected is None:
        return MetricValue("–", "", "" if uncertainty is None else f"withheld: {uncertainty.withheld}")
    found = uncertainty.corrected
    interval = f"{rounded(found.low, found.error)} to {rounded(found.high, found.error)}"
    exact = f"{found.value!r}, 95 % interval {found.low!r} to {found.high!r}"
    return MetricValue(rounded(found.value, found.error), interval, exact)
