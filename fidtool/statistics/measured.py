"""A set as the metrics find it: its statistics on rank zero, its kept features on every rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fidtool.distributed.world import World
from fidtool.features.protocol import FEATURES
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


def layer_of(statistics: Statistics, name: str) -> Statistics | None:
    """One layer of a set, the main one or a further one."""
    return statistics if name == FEATURES else statistics.further.get(name)


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
        layer = None if statistics is None else layer_of(statistics, name)
        found[name] = spread(None if layer is None else layer.features, world)
    return MeasuredSet(path, statistics, found)
