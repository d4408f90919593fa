"""A set as the metrics find it: its statistics on rank zero, its kept features on every rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
        features: each image's features on every rank, by layer, where they are needed and at hand: float32, shape
            (n, dims).
    """

    path: str
    statistics: Statistics | None
    features: Mapping[str, Features]


def spread_features(path: str, statistics: Statistics | None, layers: Iterable[str], world: World) -> MeasuredSet:
    """A set that rank zero has from a file, with its features on every rank. A collective.

    Args:
        path: as it was given.
        statistics: on rank zero.
        layers: those of which each image's features are wanted, as far as the file has them.
        world: the ranks.
    """
    found = {name: spread(None if statistics is None else statistics.layers[name].features, world) for name in layers}
    return MeasuredSet(path, statistics, {name: features for name, features in found.items() if features is not None})
