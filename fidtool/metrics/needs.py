"""What each metric needs to know of a set. Imports no torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from fidtool.errors import InputError
from fidtool.features.protocol import EMBEDDING, FEATURES, SPATIAL, Definition
from fidtool.settings import Settings

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


def embedding_layer(config: Settings) -> str:
    """Where CMMD's features are: a run whose extractor is CMMD's network has them already."""
    return FEATURES if config.network == config.cmmd_network else EMBEDDING


def need_of(metric: str, config: Settings) -> Need:
    """What ``metric`` needs in this run."""
    need = _NEEDS[metric]
    return Need(embedding_layer(config), need.real, need.fake) if need.layer == EMBEDDING else need


@dataclass(frozen=True)
class SetNeeds:
    """What a run needs of one set.

    Attributes:
        layers: those whose mean and covariance are needed, in the order in which they are gathered.
        features: those of which each image's features are needed, too.
        optional: those of which each image's features are used where they are at hand, as a report does: no set that is
            known is measured again for them.
    """

    layers: tuple[str, ...] = (FEATURES,)
    features: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()

    @property
    def kept(self) -> tuple[str, ...]:
        """The layers of which each image's features are kept where images are measured."""
        return tuple(layer for layer in self.layers if layer in self.features | self.optional)


def set_needs(config: Settings, real: bool, fake: bool) -> SetNeeds:
    """What the metrics, and what stands beside them, need of a set.

    Args:
        config: for the metrics.
        real, fake: whether the set is REAL, or a FAKE, or both.
    """
    needs = [Need(FEATURES, fake=config.uncertainty or config.influence)]
    needs += [need_of(metric, config) for metric in _NEEDS if metric in config.metrics]
    return SetNeeds(
        layers=tuple(dict.fromkeys(need.layer for need in needs)),
        features=frozenset(need.layer for need in needs if (real and need.real) or (fake and need.fake)),
        optional=frozenset({FEATURES} if config.exhibits else ()),
    )


@dataclass(frozen=True)
class Count:
    """How many images a set has, and how many of them may turn out to be unreadable and be left out."""

    images: int
    skippable: int = 0

    @property
    def surely(self) -> int:
        return self.images - self.skippable

    def __str__(self) -> str:
        left_out = f", of which --on-error skip may leave out {self.skippable}" if self.skippable else ""
        return f"{self.images}{left_out}"


def check_counts(config: Settings, counts: Mapping[str, Count], fakes: Collection[str]) -> None:
    """Refuses sets that are too small for a metric, before any work is done.

    Args:
        config: for the metrics.
        counts: of each set, by path, where they are known.
        fakes: which of them are FAKEs.

    Raises:
        InputError: the flag or the number of images that would do.
    """
    generated = {path: count for path, count in counts.items() if path in fakes}
    for metric, sets in (("kid", counts), ("prdc", counts), ("is", generated), ("fid-infinity", generated)):
        if metric in config.metrics and sets:
            smallest = min(sets, key=lambda path: sets[path].surely)
            try:
                _CHECKS[metric](config, sets[smallest].surely, f"{smallest} has {sets[smallest]}")
            except InputError as error:
                raise InputError(f"{error}, or a smaller --max-skip") if sets[smallest].skippable else error from None


def _check_kid(config: Settings, count: int, has: str) -> None:
    if count < 2:
        raise InputError(f"KID needs two images of each set, and {has}: leave kid out of --metrics")
    if count < config.kid_subset_size:
        raise InputError(
            f"KID draws subsets of {config.kid_subset_size} images and {has}: pass --kid-subset-size {count} or less"
        )


def _check_prdc(config: Settings, count: int, has: str) -> None:
    if count <= config.nearest_k:
        raise InputError(
            f"precision and recall look at {config.nearest_k} neighbours of each image and {has}: pass a smaller "
            "--nearest-k"
        )


def _check_inception_score(config: Settings, count: int, has: str) -> None:
    if count < config.is_splits:
        raise InputError(
            f"the Inception Score takes {config.is_splits} parts of a set and {has}: pass a smaller --is-splits"
        )


def _check_fid_infinity(config: Settings, count: int, has: str) -> None:
    if count < FEWEST_TO_EXTRAPOLATE + POINTS - 1:
        raise InputError(
            f"fid-infinity extrapolates from {POINTS} numbers of images, {FEWEST_TO_EXTRAPOLATE} and more, and {has}: "
            f"it needs {FEWEST_TO_EXTRAPOLATE + POINTS - 1} at least"
        )


_CHECKS = {
    "kid": _check_kid,
    "prdc": _check_prdc,
    "is": _check_inception_score,
    "fid-infinity": _check_fid_infinity,
}


def settings_of(
    config: Settings, definitions: Mapping[str, Definition | None]
) -> dict[str, dict[str, int | bool | str]]:
    """What decides the metrics' numbers beside the features, by metric; of CMMD, which network it was."""
    embedding = definitions.get(embedding_layer(config))
    known: dict[str, dict[str, int | bool | str]] = {
        "kid": {"subsets": config.kid_subsets, "subset_size": config.kid_subset_size, "seed": config.kid_seed},
        "is": {"splits": config.is_splits, "bias": config.is_bias},
        "prdc": {"nearest_k": config.nearest_k, "ties": config.ties},
        "cmmd": {"extractor": embedding.extractor, "weights_sha256": embedding.weights_sha256} if embedding else {},
    }
    return {name: settings for name, settings in known.items() if name in config.metrics}
