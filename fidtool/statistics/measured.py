"""A set as the metrics find it: its statistics on rank zero, its kept features on every rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fidtool.distributed.world import World
from fidtool.statistics.kept import Features, spread
from fidtool.statistics.store import Statistics


@dataclass(frozen=True)
class MeasuredSet:
    """What is known of a set.

    Attributes:
        path: as it was given.
        statistics: on rank zero; None on the others.
        features: each image's features on every rank, by layer, where metrics need them: float32, shape (n, dims).
    """

    path: str
    statistics: Statistics | None
    features: Mapping[str, Features]


def spread_features(path: str, statistics: Statistics | None, needed: Mapping[str, bool], world: World) -> MeasuredSet:
    """A set that rank zero has from a file, with its features on every rank. A collective.

    Args:
        path: as it was given.
        statistics: on rank zero.
        needed: see `fidtool.metrics.needs.layers_needed`.
        world: the ranks.
    """
    found = {}
    for name in (name for name, kept in needed.items() if kept):
        found[name] = spread(None if statistics is None else statistics.layers[name].features, world)
    return MeasuredSet(path, statistics, found)
