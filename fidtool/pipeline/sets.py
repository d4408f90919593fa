"""The sets of a run before they are measured: as the caller passes them, what they hold, and what is needed of them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from fidtool.errors import InputError, option
from fidtool.features.protocol import FEATURES, PIXELS
from fidtool.metrics.pairs import PairMetric
from fidtool.settings import Settings
from fidtool.sources.image_set import ImageSet, Sampling
from fidtool.sources.memory import Images
from fidtool.sources.pairing import paired
from fidtool.statistics.set_statistics import Statistics


@dataclass(frozen=True)
class Role:
    """What a set is in a run, and the settings of its crop and of its number of images."""

    name: str
    crop: str
    num: str


REAL = Role("REAL", "crop", "num_real")
FAKE = Role("FAKE", "crop_fake", "num_fake")
HELDOUT = Role("the held-out set", "crop", "num")
STORED = Role("the set of `fidtool stats`", "crop", "num")
"""It has what FAKEs need."""


@dataclass(frozen=True)
class SetNeeds:
    """What a run needs of one set.

    Attributes:
        layers: layers whose mean and covariance are needed, in processing order.
        features: layers of which the features of each image are also needed.
        collected: these layers, and those of which a report shows the features if they are available, in processing
            order. A set with known statistics is not processed again for a report.
        order: whether the stored order of the images is needed.
        pairs: of a FAKE, the metrics of its pairs with REAL.
    """

    layers: tuple[str, ...] = (FEATURES,)
    features: frozenset[str] = frozenset()
    collected: tuple[str, ...] = ()
    order: bool = False
    pairs: tuple[PairMetric, ...] = ()


IMAGES = SetNeeds(features=frozenset({FEATURES}), collected=(FEATURES,))
"""What only images have, or statistics with the features of each: with these needs, a file's images are opened."""


def set_needs(settings: Settings, *roles: Role) -> SetNeeds:
    """Returns what a run's metrics, error bars, report and held-out comparison need of a set with these roles."""
    real = REAL in roles
    fake = FAKE in roles or STORED in roles
    metrics = [(asked.metric, asked.layer) for asked in settings.chosen if asked.layer != PIXELS]
    barred = {layer for metric, layer in metrics if any(number.error_bars for number in metric.numbers)}
    layers: dict[str, None] = {}
    if metrics or settings.heldout is not None:
        used = [layer for metric, layer in metrics if fake or (real and not metric.fake_only) or layer in barred]
        layers = dict.fromkeys([FEATURES, *used])
    features = {
        layer
        for metric, layer in metrics
        if settings.grouped_by or (real and metric.real_features) or (fake and metric.fake_features)
    }
    if (fake and settings.uncertainty) or HELDOUT in roles:
        features |= barred
    if (fake and settings.influence) or settings.heldout is not None:
        features.add(FEATURES)
    shown = {FEATURES} if settings.report is not None else set()
    return SetNeeds(
        layers=tuple(layers),
        features=frozenset(features),
        collected=tuple(layer for layer in layers if layer in features | shown),
        order=fake and any(metric.stored_order for metric, _ in metrics),
        pairs=tuple(asked.metric for asked in settings.chosen if fake and isinstance(asked.metric, PairMetric)),
    )


@dataclass(frozen=True, eq=False)
class RequestedSet:
    """A set as the caller passes it: a path, or the name of what is ``given`` in memory."""

    path: str
    given: Images | Statistics | None = None


def named_sets(*sources: tuple[object, str]) -> list[RequestedSet]:
    """Returns sets with unique names, from pairs of a path or an object and a default name for it.

    The same path or object always gives the same set.
    """
    names = {os.fspath(source) for source, _ in sources if isinstance(source, (str, os.PathLike))}
    found: dict[object, RequestedSet] = {}
    sets = []
    for number, (source, default) in enumerate(sources):
        if isinstance(source, (str, os.PathLike)):
            path = os.fspath(source)
            sets.append(found.setdefault(path, RequestedSet(path)))
            continue
        key = number if source is None else id(source)
        if key not in found:
            # Ranks other than zero may pass None in place of statistics.
            given: Images | Statistics = Statistics({})
            if source is not None:
                given = source if isinstance(source, (Images, Statistics)) else Images(source)
            wanted = (given.name if isinstance(given, Images) else "") or default
            copies = itertools.chain([wanted], (f"{wanted} {copy}" for copy in itertools.count(2)))
            name = next(each for each in copies if each not in names)
            names.add(name)
            found[key] = RequestedSet(name, given.renamed(name) if isinstance(given, Images) else given)
        sets.append(found[key])
    return sets


class Content(NamedTuple):
    """The images or the statistics of a set; with both, the images give what the statistics lack. A stream has neither.

    ``warning`` is about this choice, or about a published reference, whose name and SHA-256 of each array follow.
    ``captions`` are those of a FAKE's images, by their numbers in stored order, if a metric needs them.
    """

    images: ImageSet | None = None
    file: Statistics | None = None
    warning: str = ""
    reference: str = ""
    sha256: Mapping[str, str] = {}
    captions: Mapping[int, str] = {}
    groups: Sequence[str] = ()
    """The class, or folder, of each image in stored order, in a statistics file of each row; empty if not known."""

    @property
    def holds(self) -> Literal["images", "stream", "statistics", "both"]:
        """What of these it is."""
        if self.file is None:
            return "stream" if self.images is None else "images"
        return "statistics" if self.images is None else "both"

    @property
    def size(self) -> int | None:
        """Number of images, or of those whose features are known; None if unknown."""
        if self.images is not None:
            return len(self.images)
        if self.file is None:
            return None
        return self.file.count if self.file.features is None else len(self.file.features)


@dataclass(frozen=True, eq=False)
class SetPlan:
    """A set of a run. The same path with two framings or samples is two sets.

    Attributes:
        request: number of the first argument that names it.
        holds: images, a stream of them, statistics, or statistics and images, which give what the statistics lack.
        roles: all that it is: a FAKE may be REAL or the held-out set as well.
        count: number of its images, of statistics with features that of these; None if unknown.
        framing: how its images are cropped and resized, see `fidtool.images.framing.Crop`; None if they are not.
        sampling: which of its images are used.
        needs: what the run needs of it.
    """

    path: str
    request: int
    holds: Literal["images", "stream", "statistics", "both"]
    roles: frozenset[Role]
    count: int | None
    framing: str | None
    sampling: Sampling
    needs: SetNeeds = SetNeeds()


def pair_up(
    drawn: ImageSet, images: ImageSet, real: ImageSet | None, settings: Settings, say: Callable[[str], None]
) -> ImageSet:
    """Returns the images of a FAKE, all or those ``drawn``, in the order of their partners in REAL."""
    assert real is not None
    if settings.on_error == "skip":
        raise InputError(
            f"{option('on_error', 'skip')} would leave images of {real.path} without a partner:",
            f"omit {option('on_error')}",
            setting="on_error",
        )
    if settings.num_fake != settings.num_real and len(drawn) != len(real):
        raise InputError(
            f"{len(real)} images of {real.path} and {len(drawn)} of {drawn.path} are no pairs:",
            f"pass {option('num', ...)} for both",
            setting="num_fake",
        )
    return paired(images, real, settings.pairs, say)
