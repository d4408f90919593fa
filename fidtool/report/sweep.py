"""What a chart of all FAKEs shows: their Fréchet distances, and its title."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fidtool.distances.jackknife import Interval
from fidtool.redaction import redacted
from fidtool.report.names import legible, numbers_of, short_names, short_title, shortened
from fidtool.results import Comparison, Evaluation

_LONGEST_NAME = 24
_LONGEST_PATH = 48


@dataclass(frozen=True)
class SweepPoint:
    """One FAKE of a sweep."""

    x: float
    name: str
    distance: float
    corrected: Interval | None


@dataclass(frozen=True)
class Sweep:
    """The Fréchet distances of a run's FAKEs, by the numbers in their names or in the order of the arguments.

    Attributes:
        axis: label of x, such as ``step``; empty if x is the position among the arguments, 1, 2, 3 …
        title: title of the distance, such as ``FID``.
    """

    points: tuple[SweepPoint, ...]
    axis: str
    title: str


def sweep_of(results: Sequence[Comparison]) -> Sweep | None:
    """The sweep of a run's results; None if a result has no Fréchet distance."""
    distances = [distance for result in results if (distance := result.frechet_distance) is not None]
    if len(distances) < len(results):
        return None
    paths = [redacted(result.fake.name) for result in results]  # a URL's query may contain numbers
    counted = numbers_of(paths) if len(paths) > 1 else None
    numbers, axis = counted if counted is not None else ([float(place + 1) for place in range(len(paths))], "")
    points = [
        SweepPoint(number, legible(shortened(name, _LONGEST_NAME)), distance, result.corrected)
        for number, name, distance, result in zip(numbers, short_names(paths), distances, results, strict=True)
    ]
    title = short_title(results[0].labels.title("fid"))
    return Sweep(tuple(sorted(points, key=lambda point: point.x)), legible(shortened(axis, _LONGEST_NAME)), title)


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
