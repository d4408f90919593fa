"""Statistics of a set of images, by layer, and where they come from."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fidtool.distributed.world import World
from fidtool.errors import InputError
from fidtool.features.choice import NetworkChoice, match_layers
from fidtool.features.protocol import FEATURES, Definition
from fidtool.reading.decode import ImageProperties
from fidtool.reading.records import ImageRecords
from fidtool.sources.contents import BadFile
from fidtool.sources.crops import Crop
from fidtool.sources.image_set import SetPart
from fidtool.statistics.rows import CHUNK_BYTES, empty_rows

SUMS = ("count", "largest", "sizes", "sum", "low", "high")
"""Names of the arrays of exact sums, see `ExactMoments.totals`."""

Features = NDArray[np.float32]
"""Feature vectors of images, of shape (images, dims)."""
Totals = Mapping[str, NDArray[Any]]
"""Exact sums by the names in `SUMS`, see `ExactMoments.totals`."""
Moments = tuple[NDArray[np.float64], NDArray[np.float64]]
"""A mean, of shape (dims,), and a covariance, of shape (dims, dims)."""


@dataclass(frozen=True)
class Gaussian:
    """Mean and covariance of the features of a set of images.

    Attributes:
        mu: float64 array of shape (dims,).
        sigma: float64 array of shape (dims, dims), symmetric.
        count: number of images; None if unknown.
    """

    mu: NDArray[np.float64]
    sigma: NDArray[np.float64]
    count: int | None


NO_IMAGES = Gaussian(np.zeros(0), np.zeros((0, 0)), 0)
"""That of a part without a readable image, or of which the exact sums suffice."""


def check_moments(
    mean: NDArray[Any], covariance: NDArray[Any], mu: str = "mu", sigma: str = "sigma"
) -> Moments:
    """Return a mean and a covariance as float64; a ValueError, with the names given for them, if
    they are none.
    """
    for name, value in ((mu, mean), (sigma, covariance)):
        if value.dtype.kind not in "fiu":
            raise ValueError(f"{name} has dtype {value.dtype}; it should be float64")
    mean = mean.astype(np.float64, copy=False)
    covariance = covariance.astype(np.float64, copy=False)
    if mean.ndim != 1 or covariance.shape != (len(mean), len(mean)) or len(mean) == 0:
        raise ValueError(
            f"it has {mu} of shape {mean.shape} and {sigma} of shape {covariance.shape}; they "
            "should be (D,) and (D, D)"
        )
    if not (np.isfinite(mean).all() and np.isfinite(covariance).all()):
        raise ValueError("it contains NaN or infinite values")
    rounding = 1e-6 * np.abs(covariance).max()
    asymmetry = np.abs(covariance - covariance.T).max()
    if asymmetry > rounding or covariance.diagonal().min() < -rounding:
        raise ValueError(
            f"{sigma} is not a covariance (not symmetric, or with a negative variance)"
        )
    return mean, covariance


@dataclass(frozen=True)
class LayerStatistics:
    """Mean and covariance of the features of one layer.

    In a chunk of a checkpoint, and in a part without a readable image, there are only sums, and the
    mean and the covariance are empty.

    Attributes:
        mu: float64 array of shape (dims,).
        sigma: float64 array of shape (dims, dims).
        definition: definition of the features; None in files of other tools.
        features: per-image features, float32 array of shape (count, dims); None if only their sums
            were needed.
        sums: the exact sums from which mean and covariance are computed, see
            `ExactMoments.totals`; None if unknown, as in files of other tools.
    """

    mu: NDArray[np.float64] = field(repr=False)
    sigma: NDArray[np.float64] = field(repr=False)
    definition: Definition | None = None
    features: Features | None = field(default=None, repr=False, compare=False)
    sums: Totals | None = field(default=None, repr=False, compare=False)

    @property
    def dims(self) -> int:
        if len(self.mu) or self.definition is None:
            return len(self.mu)
        return self.definition.dims


@dataclass(frozen=True)
class Statistics:
    """Statistics of a set of images by layer, and where they come from.

    They are false on ranks that do not have them, see `AbsentStatistics`.

    Attributes:
        layers: statistics by name of the layer: ``features`` of the extractor and, if requested,
            ``spatial`` (for sFID), ``embedding`` (of CMMD's network) and those of the networks of
            other metrics.
        count: number of images; None in files of other tools.
        arithmetic: how they were computed (device, precision, batch size, versions); None in files
            of other tools.
        traits: properties of the images, see `ImageProperties`; None in files of other tools.
        skipped: files that were skipped because they could not be read.
        found: number of images in the source, of which ``num`` may have selected some; None if
            unknown.
        config: for a file, the settings it was made with that differ from their defaults and can
            change the result; None in files of other tools.
        pictures: records of the images; None if they were not made.
        order: number in stored order of each row of the per-image features, int64 array of shape
            (count,); None if it is unknown, or if there are no such features.
        framing: how the images were cropped and resized; None if they were not, or
            in files of other tools.
        origin: the tool that wrote the file and how it was recognised, such as ``ADM's evaluator
            (it has mu_s)``; empty for fidtool's own files, for images, and where nothing tells them
            apart.
        part: which part of a set the images are; None if they are not a part.
    """

    layers: Mapping[str, LayerStatistics]
    count: int | None = None
    arithmetic: dict[str, Any] | None = None
    traits: ImageProperties | None = None
    skipped: tuple[BadFile, ...] = ()
    found: int | None = None
    config: Mapping[str, Any] | None = None
    origin: str = ""
    pictures: ImageRecords | None = field(default=None, repr=False, compare=False)
    order: NDArray[np.int64] | None = field(default=None, repr=False, compare=False)
    framing: Crop | None = None
    part: SetPart | None = None

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        layers = [f"{name}: {layer.dims} dimensions" for name, layer in self.layers.items()]
        count = self.count or "an unknown number of"
        return f"<Statistics of {count} images; {', '.join(layers)}>"

    @classmethod
    def of(
        cls,
        mu: NDArray[np.float64],
        sigma: NDArray[np.float64],
        count: int | None = None,
        definition: Definition | None = None,
        features: Features | None = None,
    ) -> Statistics:
        """Return statistics of the extractor's features alone."""
        return cls({FEATURES: LayerStatistics(mu, sigma, definition, features)}, count)

    def layers_of(self, networks: Mapping[str, NetworkChoice]) -> dict[str, LayerStatistics]:
        """Return the layers under the names that a run with these networks has for them, see
        `match_layers`.
        """
        definitions = {name: layer.definition for name, layer in self.layers.items()}
        names = match_layers(definitions, networks)
        return {layer: self.layers[name] for layer, name in names.items()}

    def whole(self, path: str) -> Statistics:
        """Return the statistics. Raises `InputError` if they belong to a part of a set."""
        if self.part is not None:
            raise InputError(
                f"{path} has statistics of a part of a set, {self.part.name}:",
                "merge all parts with `fidtool merge`",
            )
        return self

    def same_images(self, other: Statistics) -> bool:
        """Whether both come from the same pixels in the same order, as far as is known."""
        if self.count != other.count:
            return False
        if not self.pictures or not other.pictures:
            return True
        return np.array_equal(self.pictures.records["digest"], other.pictures.records["digest"])

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
        """Definition of the extractor's features; None in files of other tools, and without
        features.
        """
        return self.layers[FEATURES].definition if FEATURES in self.layers else None

    @property
    def features(self) -> Features | None:
        """Per-image features of the extractor, see `LayerStatistics`."""
        return self.layers[FEATURES].features


_FACTS = {"mu", "sigma", "dims", "definition", "features"}
_FACTS |= {fact.name for fact in fields(Statistics)}


class AbsentStatistics(Statistics):
    """Statistics that rank 0 has, on another rank: they are false, and reading them is an error
    that says so.
    """

    def __init__(self) -> None:
        super().__init__({})

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "<Statistics on rank 0>"

    def __getattribute__(self, name: str) -> Any:
        if name in _FACTS:
            raise InputError(
                f"only rank 0 has these statistics, and {name} was read on another rank:",
                "read them under `if statistics:`",
                "write them to a file, which all ranks can read",
            )
        return super().__getattribute__(name)


@dataclass(frozen=True)
class MeasuredSet:
    """All layers of a set: statistics on rank 0, and per-image features on all ranks.

    A metric gets one layer of it, as a `fidtool.FeatureSet`.

    Attributes:
        statistics: statistics of the set on rank 0; without layers on the other ranks.
        features: per-image features by layer, if they are needed and available: float32 arrays of
            shape (n, dims).
        apart: whether the mean and covariance are those of a file that also has images, and not of
            these features.
        pairs: of a FAKE, the value of each pair of images by the name of the metric, see
            `FeatureSet`; on all ranks.
    """

    path: str
    statistics: Statistics
    features: Mapping[str, Features]
    has_file_statistics: bool = False
    pairs: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)

    def gaussian(self, layer: str = FEATURES) -> Gaussian:
        """Mean, covariance and number of its images, on rank 0."""
        of_layer = self.statistics.layers[layer]
        return Gaussian(of_layer.mu, of_layer.sigma, self.statistics.count)


def broadcast_features(
    path: str, statistics: Statistics, layers: Collection[str], world: World
) -> MeasuredSet:
    """Return a set with the features that rank 0 has, on all ranks. A collective."""
    own = {
        name: layer.features
        for name, layer in statistics.layers.items()
        if name in layers and layer.features is not None
    }
    shapes = world.broadcast({name: rows.shape for name, rows in own.items()})
    features = {
        name: _broadcast_rows(own.get(name), count, dims, world)
        for name, (count, dims) in shapes.items()
    }
    return MeasuredSet(path, statistics, features)


def _broadcast_rows(own: Features | None, count: int, dims: int, world: World) -> Features:
    """Return the rows that rank 0 has, on all ranks. A collective."""
    with world.together():
        rows = empty_rows(count, dims) if own is None else own
    if world.size == 1:
        return rows
    # The same on all ranks: a program's array may have any strides.
    at_once = max(1, CHUNK_BYTES // (4 * dims))
    for start in range(0, len(rows), at_once):
        part = slice(start, start + at_once)
        received = world.broadcast(None if own is None else np.array(own[part]))
        if own is None:
            rows[part] = received
    return rows
