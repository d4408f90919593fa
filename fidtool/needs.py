"""What a run needs of each of its sets, so that its metrics can be computed. Imports no torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from fidtool.errors import InputError
from fidtool.features.protocol import FEATURES, NetworkChoice
from fidtool.metrics.metric import Metric
from fidtool.metrics.registry import in_order
from fidtool.settings import Settings, StatisticsSettings


def layer_of(metric: Metric, settings: StatisticsSettings) -> str:
    """The features that a metric looks at: a run whose network is the metric's own has them already."""
    return FEATURES if metric.network() == settings.network else metric.layer


def networks_of(settings: StatisticsSettings) -> dict[str, NetworkChoice]:
    """The metrics' own networks, by the layer of their features."""
    own = {layer_of(metric, settings): metric.network() for metric in in_order(settings.chosen)}
    return {layer: network for layer, network in own.items() if network is not None and layer != FEATURES}


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


def set_needs(settings: Settings, real: bool, fake: bool) -> SetNeeds:
    """What the metrics, and what stands beside them, need of a set.

    Args:
        settings: for the metrics.
        real, fake: whether the set is REAL, or a FAKE, or both.
    """
    metrics = in_order(settings.chosen)
    layers = dict.fromkeys([FEATURES, *(layer_of(metric, settings) for metric in metrics)])
    features = {
        layer_of(metric, settings)
        for metric in metrics
        if (real and metric.real_features) or (fake and metric.fake_features)
    }
    if fake and (settings.uncertainty or settings.influence):
        features.add(FEATURES)
    return SetNeeds(tuple(layers), frozenset(features), frozenset({FEATURES} if settings.exhibits else ()))


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


def check_counts(settings: Settings, counts: Mapping[str, Count], fakes: Collection[str]) -> None:
    """Refuses sets that are too small for a metric, before any work is done.

    Args:
        settings: for the metrics.
        counts: of each set, by path, where they are known.
        fakes: which of them are FAKEs.

    Raises:
        InputError: the flag or the number of images that would do.
    """
    for metric in in_order(settings.chosen):
        looked_at = {path: count for path, count in counts.items() if metric.real_features or path in fakes}
        if not metric.fake_features or not looked_at:
            continue
        path, smallest = min(looked_at.items(), key=lambda item: item[1].surely)
        try:
            metric.check_count(smallest.surely, f"{path} has {smallest}")
        except InputError as error:
            raise InputError(f"{error}, or a smaller --max-skip") if smallest.skippable else error from None
