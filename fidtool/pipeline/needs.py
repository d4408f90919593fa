"""The statistics and features that a run needs of each set to compute its metrics."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from fidtool.errors import InputError, option
from fidtool.features.protocol import FEATURES
from fidtool.metrics.metric import Metric
from fidtool.metrics.registry import in_order
from fidtool.settings import Settings
from fidtool.statistics.set_statistics import Statistics


@dataclass(frozen=True)
class SetNeeds:
    """What a run needs of one set.

    Attributes:
        layers: layers whose mean and covariance are needed, in processing order.
        features: layers of which the features of each image are also needed.
        optional: layers of which the features of each image are used if available, for example by a report. A set with
            known statistics is not processed again for them.
        order: whether the stored order of the images is needed.
    """

    layers: tuple[str, ...] = (FEATURES,)
    features: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()
    order: bool = False

    def met_by(self, statistics: Statistics) -> bool:
        """Whether statistics have everything that is needed."""
        layers = statistics.layers
        without_features = any(layers[name].features is None for name in self.features & layers.keys())
        unordered = self.order and statistics.order is None
        return {*self.layers} <= layers.keys() and not without_features and not unordered

    @property
    def collected(self) -> tuple[str, ...]:
        """The layers of which the features of each image are collected when images are processed."""
        return tuple(layer for layer in self.layers if layer in self.features | self.optional)


def set_needs(settings: Settings, real: bool, fake: bool) -> SetNeeds:
    """Returns what a run's metrics, error bars and report need of a set."""
    metrics = [(metric, settings.layer_of(metric)) for metric in in_order(settings.chosen)]
    layers = dict.fromkeys([FEATURES, *(layer for _, layer in metrics)])
    features = {
        layer for metric, layer in metrics if (real and metric.real_features) or (fake and metric.fake_features)
    }
    if fake and (settings.uncertainty or settings.influence):
        features.add(FEATURES)
    optional = frozenset({FEATURES} if settings.report is not None else ())
    order = fake and any(metric.stored_order for metric, _ in metrics)
    return SetNeeds(tuple(layers), frozenset(features), optional, order)


IMAGES = SetNeeds(features=frozenset({FEATURES}))
"""What only images have, or statistics with the features of each: with these needs, a file's images are opened."""


@dataclass(frozen=True)
class ImageCount:
    """Number of images in a set, and how many of them may be skipped as unreadable."""

    images: int
    skippable: int = 0

    @property
    def certain(self) -> int:
        """Number of images that are certain to be used."""
        return self.images - self.skippable

    def __str__(self) -> str:
        if not self.skippable:
            return f"{self.images}"
        return f"{self.images}, of which {option('on_error', 'skip')} may skip {self.skippable}"


def smallest_set(
    metric: Metric, counts: Mapping[str, ImageCount], fakes: Collection[str]
) -> tuple[str, ImageCount] | None:
    """Returns the smallest set whose per-image features a metric needs, and its size; None if there is none."""
    if not metric.fake_features:
        return None
    used = [(path, count) for path, count in counts.items() if metric.real_features or path in fakes]
    return min(used, key=lambda item: item[1].certain, default=None)


def check_count(metric: Metric, counts: Mapping[str, ImageCount], fakes: Collection[str]) -> None:
    """Refuses sets that are too small for a metric."""
    if (found := smallest_set(metric, counts, fakes)) is None:
        return
    path, count = found
    try:
        metric.check_count(count.certain, f"{path} has {count}")
    except InputError as error:
        if not count.skippable:
            raise
        error.args += (f"a smaller {option('max_skip')}",)
        raise


def check_counts(settings: Settings, counts: Mapping[str, ImageCount], fakes: Collection[str]) -> None:
    """Refuses sets that are too small for any metric of a run, before any work is done."""
    for metric in in_order(settings.chosen):
        check_count(metric, counts, fakes)
