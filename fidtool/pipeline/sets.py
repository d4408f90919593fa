"""What is known about a set of a run before it is measured: what it holds, and what the run needs of it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from fidtool.errors import InputError, option
from fidtool.features.protocol import FEATURES
from fidtool.settings import Settings
from fidtool.sources.image_set import ImageSet, Sampling
from fidtool.sources.memory import Images
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


IMAGES = SetNeeds(features=frozenset({FEATURES}))
"""What only images have, or statistics with the features of each: with these needs, a file's images are opened."""


def set_needs(settings: Settings, real: bool, fake: bool) -> SetNeeds:
    """Returns what a run's metrics, error bars and report need of a set."""
    metrics = [(metric, settings.layer_of(metric)) for metric in settings.chosen]
    layers = dict.fromkeys([FEATURES, *(layer for _, layer in metrics)])
    features = {
        layer for metric, layer in metrics if (real and metric.real_features) or (fake and metric.fake_features)
    }
    if fake and (settings.uncertainty or settings.influence):
        features.add(FEATURES)
    optional = frozenset({FEATURES} if settings.report is not None else ())
    order = fake and any(metric.stored_order for metric, _ in metrics)
    return SetNeeds(tuple(layers), frozenset(features), optional, order)


@dataclass(frozen=True, eq=False)
class RequestedSet:
    """A set as the caller passes it: a path, or the name of what is ``given`` in memory."""

    path: str
    given: Images | None = None

    @property
    def is_stream(self) -> bool:
        return self.given is not None and self.given.is_stream


def requested(*sources: tuple[object, str]) -> list[RequestedSet]:
    """Returns sets with unique names, from pairs of a path or an object and a default name for it.

    The same path or object always gives the same set.
    """
    names = {os.fspath(source) for source, _ in sources if isinstance(source, (str, os.PathLike))}
    found: dict[object, RequestedSet] = {}
    sets = []
    for number, (source, default) in enumerate(sources):
        key: object = number if source is None else id(source)
        if isinstance(source, (str, os.PathLike)):
            key = path = os.fspath(source)
            found.setdefault(path, RequestedSet(path))
        elif key not in found:
            found[key] = _in_memory(source, default, names)
            names.add(found[key].path)
        sets.append(found[key])
    return sets


def _in_memory(source: object, default: str, taken: Collection[str]) -> RequestedSet:
    if source is None or isinstance(source, Statistics):
        given: Images = GivenStatistics(source)
    else:
        given = source if isinstance(source, Images) else Images(source)
    wanted = name = given.name or default
    for copy in itertools.count(2):
        if name not in taken:
            break
        name = f"{wanted} {copy}"
    return RequestedSet(name, given.renamed(name))


class GivenStatistics(Images):
    """A set of which a program passes the statistics. On ranks other than zero they may be None."""

    def __init__(self, statistics: Statistics | None) -> None:
        self.name, self.is_stream, self.generates, self._statistics = "", False, False, statistics

    @property
    def kind(self) -> str:
        return "statistics"

    def content(self) -> Content:
        if self._statistics is None:
            raise InputError(f"{self.name} is None, which only ranks above zero may pass, in place of statistics")
        return Content(file=self._statistics)


class Content(NamedTuple):
    """The images or the statistics of a set; with both, the images give what the statistics lack."""

    images: ImageSet | None = None
    file: Statistics | None = None
    reference: str = ""
    sha256: Mapping[str, str] = {}


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


@dataclass(frozen=True, eq=False)
class OpenedSet:
    """A set of a run, on rank zero. A path with two framings or samples is two sets.

    Attributes:
        request: the set as the caller passes it, first.
        real, fake: its roles, REAL and FAKE; it may have both.
        framing: how its images are cropped and resized, see `fidtool.images.framing.Crop`; None if they are not.
        sampling: which of its images are used.
        content: what it holds; empty for a stream.
    """

    request: RequestedSet
    real: bool
    fake: bool
    framing: str | None
    sampling: Sampling
    content: Content

    @property
    def path(self) -> str:
        return self.request.path

    @property
    def holds(self) -> Literal["images", "stream", "statistics", "both"]:
        if self.request.is_stream:
            return "stream"
        if self.content.images is None:
            return "statistics"
        return "images" if self.content.file is None else "both"

    @property
    def kind(self) -> str:
        """What a set that has statistics is, for messages."""
        if self.request.given is None:
            return "a statistics file"
        return "a fidtool.Statistics" if isinstance(self.request.given, GivenStatistics) else "an array of features"

    def count(self, settings: Settings) -> ImageCount | None:
        """The number of images; None if it is not known."""
        images, file = self.content.images, self.content.file
        if images is not None:
            return ImageCount(len(images), settings.most_skipped(len(images)))
        if file is None:
            return None
        count = file.count if file.features is None else len(file.features)
        return None if count is None else ImageCount(count)
