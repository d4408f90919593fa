"""Several FAKEs as points of one chart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fidtool.distances.jackknife import Interval
from fidtool.redaction import redacted
from fidtool.report.names import legible, numbers_of, short_names, short_title, shortened
from fidtool.results import Comparison

_LONGEST = 24


@dataclass(frozen=True)
class Point:
    """One FAKE of a sweep.

    Attributes:
        x: where it stands.
        name: of the FAKE, short and fit to be printed.
        distance: as measured.
        corrected: the bias-corrected distance; None where it is not known.
    """

    x: float
    name: str
    distance: float
    corrected: Interval | None


@dataclass(frozen=True)
class Sweep:
    """The Fréchet distances of several FAKEs, by what their names count, or in the order in which they were given.

    Attributes:
        points: ascending in x.
        axis: what x is, such as ``step``; empty where it is no more than the order given: 1, 2, 3 …
        title: what the distance is called.
    """

    points: tuple[Point, ...]
    axis: str
    title: str


def sweep_of(results: Sequence[Comparison]) -> Sweep | None:
    """The sweep of a run's results; None where the Fréchet distance was not asked for."""
    distances = [distance for result in results if (distance := result.frechet_distance) is not None]
    if len(distances) < len(results):
        return None
    paths = [redacted(result.fake) for result in results]  # no number of theirs is one in a query
    counted = numbers_of(paths) if len(paths) > 1 else None
    numbers, axis = counted if counted is not None else ([float(place + 1) for place in range(len(paths))], "")
    points = [
        Point(
            number,
            legible(shortened(name, _LONGEST)),
            distance,
            None if result.uncertainty is None else result.uncertainty.corrected,
        )
        for number, name, distance, result in zip(numbers, short_names(paths), distances, results, strict=True)
    ]
    title = short_title(results[0].labels.title("fid"))
    return Sweep(tuple(sorted(points, key=lambda point: point.x)), legible(shortened(axis, _LONGEST)), title)
