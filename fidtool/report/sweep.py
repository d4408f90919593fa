"""Several FAKEs as points of one chart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fidtool.metrics.interval import Interval
from fidtool.report.names import legible, numbers_of, short_names, shortened
from fidtool.results import Comparison

_LONGEST = 24


@dataclass(frozen=True)
class Point:
    """One FAKE of a sweep.

    Attributes:
        x: where it stands.
        name: of the FAKE, short and fit to be printed.
        fid: as measured.
        corrected: the bias-corrected FID; None where it is not known.
    """

    x: float
    name: str
    fid: float
    corrected: Interval | None


@dataclass(frozen=True)
class Sweep:
    """The FIDs of several FAKEs, by what their names count, or in the order in which they were given.

    Attributes:
        points: ascending in x.
        axis: what x is, such as ``step``; empty where it is no more than the order given: 1, 2, 3 …
    """

    points: tuple[Point, ...]
    axis: str


def sweep_of(results: Sequence[Comparison]) -> Sweep | None:
    """The sweep of a run's results; None where the FID was not asked for."""
    if any("fid" not in result.metrics for result in results):
        return None
    paths = [result.fake for result in results]
    counted = numbers_of(paths) if len(paths) > 1 else None
    numbers, axis = counted if counted is not None else ([float(place + 1) for place in range(len(paths))], "")
    points = [
        Point(
            number,
            legible(shortened(name, _LONGEST)),
            result.metrics["fid"],
            None if result.uncertainty is None else result.uncertainty.corrected,
        )
        for number, name, result in zip(numbers, short_names(paths), results, strict=True)
    ]
    return Sweep(tuple(sorted(points, key=lambda point: point.x)), legible(shortened(axis, _LONGEST)))
