"""Statistics of a set of images, by layer, and where they come from."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fidtool.distributed.world import World
from fidtool.errors import InputError, RunError
from fidtool.features.models.families import NetworkChoice, layers_in
from fidtool.features.protocol import FEATURES, Definition
from fidtool.reading.decode import ImageProperties
from fidtool.reading.records import ImageRecords
from fidtool.sources.contents import BadFile
from fidtool.sources.crops import Crop
from fidtool.sources.image_set import SetPart
from fidtool.system.cache_dir import byte_limit, cache_dir

SUMS = ("count", "largest", "sizes", "sum", "low", "high")
"""Names of the arrays of exact sums, see `ExactMoments.totals`."""
CHUNK_BYTES = 1 << 26
"""Bytes that are read, written or sent at once."""

Features = NDArray[np.float32]
"""Feature vectors of images, of shape (images, dims)."""


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


def checked_moments(
    mean: NDArray[Any], covariance: NDArray[Any], mu: str = "mu", sigma: str = "sigma"
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns a mean and a covariance as float64; a ValueError, with the names given for them, if
    they are none.
    """
    for name, value in ((mu, mean), (sigma, covariance)):
        if value.dtype.kind not in "fiu":
            raise ValueError(f"{name} has dtype {value.dtype}; it should be float64")
    mean = mean.astype(np.float64, copy=False)
    covariance = covariance.astype(np.float64, copy=False)
    if mean.ndim != 1 or covariance.shape != (len(mean), len(mean)) or len(mean) == 0:
        shapes = f"{mu} of shape {mean.shape} and {sigma} of shape {covariance.shape}"
        raise ValueError(f"it has {shapes}; they should be (D,) and (D, D)")
    if not (np.isfinite(mean).all() and np.isfinite(covariance).all()):
        raise ValueError("it contains NaN or infinite values")
    rounding = 1e-6 * np.abs(covariance).max()
    if (
        np.abs(covariance - covariance.T).max() > rounding
        or covariance.diagonal().min() < -rounding
    ):
        raise ValueError(
            f"{sigma} is not a covariance (not symmetric, or with a negative variance)"
        )
    return mean, covariance


@dataclass(frozen=True)
class LayerStatistics:
    """Mean and covariance of the features of one layer.

    A part of a checkpoint, and a part without a readable image, has sums alone, and an empty mean
    and covariance.

    Attributes:
        mu: float64 array of shape (dims,).
        sigma: float64 array of shape (dims, dims).
        definition: definition of the features; None in files of other tools.
        features: per-image features, float32 array of shape (count, dims); None if only their sums
            were needed.
        sums: the exact sums that they are of, see `ExactMoments.totals`; None if unknown, as in
            files of other tools.
    """

    mu: NDArray[np.float64] = field(repr=False)
    sigma: NDArray[np.float64] = field(repr=False)
    definition: Definition | None = None
    features: Features | None = field(default=None, repr=False, compare=False)
    sums: Mapping[str, NDArray[Any]] | None = field(default=None, repr=False, compare=False)

    @property
    def dims(self) -> int:
        return (
            self.definition.dims
            if self.definition is not None and not len(self.mu)
            else len(self.mu)
        )


@dataclass(frozen=True)
class Statistics:
    """Statistics of a set of images by layer, and where they come from.

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

    def __repr__(self) -> str:
        layers = ", ".join(
            f"{layer}: {each.dims} dimensions" for layer, each in self.layers.items()
        )
        return f"<Statistics of {self.count or 'an unknown number of'} images; {layers}>"

    @classmethod
    def of(
        cls,
        mu: NDArray[np.float64],
        sigma: NDArray[np.float64],
        count: int | None = None,
        definition: Definition | None = None,
        features: Features | None = None,
    ) -> Statistics:
        """Returns statistics of the extractor's features alone."""
        return cls({FEATURES: LayerStatistics(mu, sigma, definition, features)}, count)

    def layers_of(self, networks: Mapping[str, NetworkChoice]) -> dict[str, LayerStatistics]:
        """Returns the layers under the names that a run with these networks has for them, see
        `layers_in`.
        """
        definitions = {name: each.definition for name, each in self.layers.items()}
        return {
            layer: self.layers[name] for layer, name in layers_in(definitions, networks).items()
        }

    def whole(self, path: str) -> Statistics:
        """Returns the statistics. An InputError if they are of a part of a set."""
        if self.part is not None:
            raise InputError(
                f"{path} has statistics of a part of a set, {self.part.name}:",
                "merge all parts with `fidtool merge`",
            )
        return self

    def same_images(self, other: Statistics) -> bool:
        """Whether both are of the same pixels in the same order, as far as is known."""
        one, two = self.pictures, other.pictures
        differ = one and two and not np.array_equal(one.records["digest"], two.records["digest"])
        return self.count == other.count and not differ

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


def empty_rows(count: int, dims: int, dtype: DTypeLike = np.float32) -> NDArray[Any]:
    """Returns a matrix of zeros, (count, dims): in memory, or if it is large memory-mapped from an
    unnamed file.

    Raises:
        RunError: if there is not enough space for it.
    """
    size = count * dims * np.dtype(dtype).itemsize
    if size <= byte_limit("FIDTOOL_FEATURE_BYTES"):
        return np.zeros((count, dims), dtype)
    try:
        cache_dir().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=cache_dir()) as file:
            if sys.platform == "linux":
                os.posix_fallocate(file.fileno(), 0, size)  # later, a full disk would be a signal
            return np.memmap(file, dtype, "w+", shape=(count, dims))
    except OSError as error:
        raise RunError(
            f"{size / 2**30:.2f} GiB of features cannot be stored in {cache_dir()} "
            f"({error.strerror or error}):",
            "set FIDTOOL_CACHE to a folder with enough space",
            "omit the metrics that need per-image features",
        ) from None


def reordered(rows: NDArray[Any], order: NDArray[np.int64]) -> NDArray[Any]:
    """Returns ``rows[order]``, memory-mapped from an unnamed file if it is large."""
    result = empty_rows(len(order), rows.shape[1], rows.dtype)
    return np.take(
        rows, order, axis=0, out=result, mode="clip"
    )  # NumPy's other modes copy the result


@dataclass(frozen=True)
class MeasuredSet:
    """All layers of a set: statistics on rank zero, and per-image features on all ranks.

    A metric gets one layer of it, as a `fidtool.FeatureSet`.

    Attributes:
        statistics: statistics of the set on rank zero; without layers on the other ranks.
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
    apart: bool = False
    pairs: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)

    def gaussian(self, layer: str = FEATURES) -> Gaussian:
        """Mean, covariance and number of its images, on rank zero."""
        of_layer = self.statistics.layers[layer]
        return Gaussian(of_layer.mu, of_layer.sigma, self.statistics.count)


def spread_features(
    path: str, statistics: Statistics, layers: Collection[str], world: World
) -> MeasuredSet:
    """Returns a set with the features that rank zero has, on all ranks. A collective."""
    own = {name: layer.features for name, layer in statistics.layers.items() if name in layers}
    shapes = world.broadcast(
        {name: (len(rows), rows.shape[1]) for name, rows in own.items() if rows is not None}
    )
    return MeasuredSet(
        path,
        statistics,
        {name: _spread(own.get(name), shape, world) for name, shape in shapes.items()},
    )


def _spread(own: Features | None, shape: tuple[int, int], world: World) -> Features:
    """Returns the rows that rank zero has, on all ranks. A collective."""
    with world.together():
        rows = empty_rows(*shape) if own is None else own
    at_once = max(
        1, CHUNK_BYTES // (4 * shape[1])
    )  # the same on all ranks: a program's array may have any strides
    for start in range(0, len(rows) if world.size > 1 else 0, at_once):
        part = slice(start, start + at_once)
        received = world.broadcast(None if own is None else np.array(own[part]))
        if own is None:
            rows[part] = received
    return rows
