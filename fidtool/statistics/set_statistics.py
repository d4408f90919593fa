"""Statistics of a set of images, by layer, and where they come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fidtool.distributed.world import World
from fidtool.errors import InputError
from fidtool.features.definition import Definition
from fidtool.features.protocol import FEATURES
from fidtool.images.decode import ImageProperties
from fidtool.images.records import ImageRecords
from fidtool.sources.contents import BadFile
from fidtool.statistics.feature_buffer import Features, broadcast_features


@dataclass(frozen=True)
class LayerStatistics:
    """Mean and covariance of the features of one layer.

    Attributes:
        mu: float64 array of shape (dims,).
        sigma: float64 array of shape (dims, dims).
        definition: definition of the features; None in files of other tools.
        features: per-image features, float32 array of shape (count, dims); None if only their sums were needed.
    """

    mu: NDArray[np.float64]
    sigma: NDArray[np.float64]
    definition: Definition | None = None
    features: Features | None = field(default=None, repr=False, compare=False)

    @property
    def dims(self) -> int:
        return len(self.mu)


@dataclass(frozen=True)
class Statistics:
    """Statistics of a set of images by layer, and where they come from.

    Attributes:
        layers: statistics by name of the layer: ``features`` of the extractor and, if requested, ``spatial`` (for
            sFID), ``embedding`` (of CMMD's network) and those of the networks of other metrics.
        count: number of images; None in files of other tools.
        arithmetic: how they were computed (device, precision, batch size, versions); None in files of other tools.
        traits: properties of the images, see `ImageProperties`; None in files of other tools.
        skipped: files that were skipped because they could not be read.
        found: number of images in the source, of which ``num`` may have selected some; None if unknown.
        config: for a file, the settings it was made with that differ from their defaults and can change the result;
            None in files of other tools.
        pictures: records of the images; None if they were not made.
        origin: the tool that wrote the file and how it was recognised, such as ``ADM's evaluator (it has mu_s)``; empty
            for fidtool's own files, and where nothing tells them apart.
        order: number of each row of the features in the stored order of the file, in which another tool stored them:
            int64 array of shape (count,). None if unknown; all layers have the same order.

    Raises:
        InputError: if ``layers`` is not a mapping.
    """

    layers: Mapping[str, LayerStatistics]
    count: int | None = None
    arithmetic: dict[str, Any] | None = None
    traits: ImageProperties | None = None
    skipped: tuple[BadFile, ...] = ()
    found: int | None = None
    config: Mapping[str, Any] | None = None
    pictures: ImageRecords | None = field(default=None, repr=False, compare=False)
    origin: str = ""
    order: NDArray[np.int64] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.layers, Mapping):  # in version 0.1.0, the first argument was the mean
            raise InputError(
                f"Statistics takes a dictionary of layers, not {type(self.layers).__name__}:",
                "use Statistics.of(mu, sigma, count) for a mean and a covariance",
            )

    @classmethod
    def of(
        cls,
        mu: NDArray[np.float64],
        sigma: NDArray[np.float64],
        count: int | None = None,
        definition: Definition | None = None,
        features: Features | None = None,
    ) -> Statistics:
        """Returns statistics of the extractor's features alone.

        Args:
            mu, sigma, definition, features: see `LayerStatistics`.
            count: number of images; None if unknown.
        """
        return cls({FEATURES: LayerStatistics(mu, sigma, definition, features)}, count)

    @property
    def mu(self) -> NDArray[np.float64]:
        """Mean of the extractor's features."""
        return self.layers[FEATURES].mu

    @property
    def sigma(self) -> NDArray[np.float64]:
        """Covariance of the extractor's features."""
        return self.layers[FEATURES].sigma

    @property
    def dims(self) -> int:
        """Length of the extractor's feature vectors."""
        return self.layers[FEATURES].dims

    @property
    def definition(self) -> Definition | None:
        """Definition of the extractor's features; None in files of other tools."""
        return self.layers[FEATURES].definition

    @property
    def features(self) -> Features | None:
        """Per-image features of the extractor, see `LayerStatistics`."""
        return self.layers[FEATURES].features


@dataclass(frozen=True)
class MeasuredSet:
    """A set as passed to the metrics: statistics on rank zero, and per-image features on all ranks.

    Attributes:
        path: path of the set, as passed by the caller.
        statistics: statistics of the set on rank zero; None on the other ranks.
        features: per-image features by layer, if they are needed and available: float32 arrays of shape (n, dims).
    """

    path: str
    statistics: Statistics | None
    features: Mapping[str, Features]


def spread_features(path: str, statistics: Statistics | None, layers: Iterable[str], world: World) -> MeasuredSet:
    """Returns a set with the features that rank zero has, on all ranks. A collective.

    Args:
        path: path of the set, as passed by the caller.
        statistics: statistics of the set on rank zero; None on the other ranks.
        layers: layers whose per-image features are needed; those that the statistics lack are omitted.
        world: the ranks.

    Raises:
        RunError: if the disk of a rank is full; raised on all ranks.
    """
    features: dict[str, Features] = {}
    for name in layers:
        own = None if statistics is None else statistics.layers[name].features
        if (everyone := broadcast_features(own, world)) is not None:
            features[name] = everyone
    return MeasuredSet(path, statistics, features)
