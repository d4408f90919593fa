"""What each metric needs to know of a set. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fidtool.config import Config
from fidtool.errors import InputError
from fidtool.features.protocol import EMBEDDING, FEATURES, SPATIAL

FEWEST_TO_EXTRAPOLATE = 5000
"""Fewer images than these lie beyond the range in which an FID grows with 1/N (Chong & Forsyth 2020)."""
POINTS = 15
"""Numbers of images that the line is drawn through."""


@dataclass(frozen=True)
class Need:
    """What a metric looks at.

    Attributes:
        layer: which features.
        real, fake: of which side it needs every image's features; of the others their mean and covariance will do.
    """

    layer: str
    real: bool = False
    fake: bool = False


_NEEDS = {
    "fid": Need(FEATURES),
    "kid": Need(FEATURES, real=True, fake=True),
    "is": Need(FEATURES, fake=True),
    "prdc": Need(FEATURES, real=True, fake=True),
    "sfid": Need(SPATIAL),
    "fid-infinity": Need(FEATURES, fake=True),
    "cmmd": Need(EMBEDDING, real=True, fake=True),
}


def embedding_layer(config: Config) -> str:
    """Where CMMD's features are: a run whose extractor is CMMD's network has them already."""
    main = config.extractor, config.weights, config.input_size, config.feature_step
    own = config.cmmd_extractor, config.cmmd_weights, config.cmmd_input_size, config.cmmd_feature_step
    return FEATURES if main == own else EMBEDDING


def need_of(metric: str, config: Config) -> Need:
    """What ``metric`` needs in this run."""
    need = _NEEDS[metric]
    return Need(embedding_layer(config), need.real, need.fake) if need.layer == EMBEDDING else need


def layers_needed(config: Config, real: bool, fake: bool) -> dict[str, bool]:
    """The layers a set must have, and whether each image's features must be kept.

    Args:
        config: for the metrics.
        real, fake: whether the set is REAL, or a FAKE, or both.
    """
    layers = {FEATURES: False}
    for need in (need_of(metric, config) for metric in config.metrics):
        kept = (real and need.real) or (fake and need.fake)
        layers[need.layer] = layers.get(need.layer, False) or kept
    return layers


def check_counts(config: Config, counts: Mapping[str, int | None], real: str) -> None:
    """Refuses sets that are too small for a metric, before any work is done.

    Args:
        config: for the metrics.
        counts: number of images of each set, by path; None where it is unknown.
        real: which of them is REAL.

    Raises:
        InputError: the flag or the number of images that would do.
    """
    for path, count in counts.items():
        if count is None:
            continue
        if "kid" in config.metrics and count < config.kid_subset_size:
            raise InputError(
                f"KID draws subsets of {config.kid_subset_size} images and {path} has {count}: pass --kid-subset-size "
                f"{count} or less"
            )
        if "prdc" in config.metrics and count <= config.nearest_k:
            raise InputError(
                f"precision and recall look at {config.nearest_k} neighbours of each image and {path} has {count} "
                "images: pass a smaller --nearest-k"
            )
        if path == real and len(counts) > 1:
            continue
        if "is" in config.metrics and count < config.is_splits:
            raise InputError(
                f"the Inception Score takes {config.is_splits} parts of a set and {path} has {count} images: pass a "
                "smaller --is-splits"
            )
        if "fid-infinity" in config.metrics and count < FEWEST_TO_EXTRAPOLATE + POINTS - 1:
            raise InputError(
                f"FID-infinity extrapolates from {POINTS} numbers of images, {FEWEST_TO_EXTRAPOLATE} and more, and "
                f"{path} has {count}: it needs {FEWEST_TO_EXTRAPOLATE + POINTS - 1} at least"
            )


def settings_of(config: Config) -> dict[str, dict[str, int | bool | str]]:
    """What decides the metrics' numbers beside the features, by metric."""
    known: dict[str, dict[str, int | bool | str]] = {
        "kid": {"subsets": config.kid_subsets, "subset_size": config.kid_subset_size, "seed": config.kid_seed},
        "is": {"splits": config.is_splits, "bias": config.is_bias},
        "prdc": {"nearest_k": config.nearest_k, "ties": config.ties},
    }
    return {name: known[name] for name in config.metrics if name in known}
