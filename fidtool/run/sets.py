"""The sets of a run before they are measured: as the caller passes them, what they hold, and what
is needed of them.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from fidtool.errors import InputError, ResultWarning, Say, option
from fidtool.features.protocol import FEATURES, PIXELS
from fidtool.metrics.pairs import PairMetric
from fidtool.result.evaluation import normalize_path
from fidtool.settings.settings import Settings
from fidtool.sources.crops import Crop
from fidtool.sources.image_set import ImageSet, Sampling
from fidtool.sources.memory import Images, NamedSet
from fidtool.sources.pairing import pair_images
from fidtool.statistics.set_statistics import LayerStatistics, Statistics


@dataclass(frozen=True)
class Role:
    """What a set is in a run, and the settings of its crop and of its number of images."""

    name: str
    crop: str
    num: str


REAL = Role("REAL", "crop", "num_real")
FAKE = Role("FAKE", "crop_fake", "num_fake")
HELDOUT = Role("the held-out set", "crop", "num")
# It has what FAKEs need.
STORED = Role("the set of `fidtool stats`", "crop", "num")


@dataclass(frozen=True)
class SetNeeds:
    """What a run needs of one set.

    Attributes:
        layers: layers whose mean and covariance are needed, in processing order.
        features: layers of which the features of each image are also needed.
        collected: these layers, and those of which a report shows the features if they are
            available, in processing order. A set with known statistics is not processed again for a
            report.
        order: whether the stored order of the images is needed.
        pairs: of a FAKE, the metrics of its pairs with REAL.
    """

    layers: tuple[str, ...] = (FEATURES,)
    features: frozenset[str] = frozenset()
    collected: tuple[str, ...] = ()
    order: bool = False
    pairs: tuple[PairMetric, ...] = ()

    def select_usable(self, layers: Mapping[str, LayerStatistics]) -> dict[str, LayerStatistics]:
        """Return those of these layers that are needed, and have the features of each image if
        these are needed.
        """
        return {
            name: layers[name]
            for name in self.layers
            if name in layers and (name not in self.features or layers[name].features is not None)
        }


IMAGES = SetNeeds(features=frozenset({FEATURES}), collected=(FEATURES,))
"""What only images have, or statistics with the features of each: with these needs, a file's images
are opened.
"""


def set_needs(settings: Settings, *roles: Role) -> SetNeeds:
    """Return what a run's metrics, error bars, report and held-out comparison need of a set with
    these roles.
    """
    real = REAL in roles
    fake = FAKE in roles or STORED in roles
    heldout = settings.heldout is not None
    chosen = [requested for requested in settings.selected_metrics if requested.layer != PIXELS]
    layers: dict[str, None] = {}
    features = set()
    if chosen or heldout:
        layers[FEATURES] = None
    if heldout or (fake and settings.influence):
        features.add(FEATURES)
    for requested in chosen:
        metric = requested.metric
        has_bars = any(number.error_bars for number in metric.numbers)
        if fake or has_bars or (real and not metric.fake_only):
            layers[requested.layer] = None
        if (
            settings.grouped_by
            or (real and metric.real_features)
            or (fake and metric.fake_features)
            or (has_bars and HELDOUT in roles)
            or (has_bars and fake and settings.uncertainty)
        ):
            features.add(requested.layer)
    shown = features | {FEATURES} if settings.report is not None else features
    metrics = [requested.metric for requested in settings.selected_metrics] if fake else []
    return SetNeeds(
        layers=tuple(layers),
        features=frozenset(features),
        collected=tuple(layer for layer in layers if layer in shown),
        order=fake and any(requested.metric.stored_order for requested in chosen),
        pairs=tuple(metric for metric in metrics if isinstance(metric, PairMetric)),
    )


@dataclass(frozen=True, eq=False)
class RequestedSet:
    """A set as the caller passes it.

    Attributes:
        path: its path, or the name of what is given in memory.
        data: what is given in memory; None for a path.
        alias: the caller's name for a path; empty if it has none.
    """

    path: str
    data: Images | Statistics | None = None
    alias: str = ""

    @property
    def name(self) -> str:
        """What results and messages call it."""
        return self.alias or self.path


def name_sets(*sources: tuple[object, str]) -> list[RequestedSet]:
    """Return sets with unique names, from pairs of a path or an object and a default name for it.

    The same object under the same name always gives the same set. Paths are compared when they are
    opened. The caller's own names are kept.

    Raises:
        InputError: if two sets have one name, or one iterable is two sets.
    """
    names = _reserve_names([source for source, _ in sources])
    given_sets: dict[tuple[int, str], RequestedSet] = {}
    iterables: dict[int, str] = {}
    requests = []
    for source, default in sources:
        alias = ""
        if isinstance(source, NamedSet):
            alias = source.name
            source = source.source
        if isinstance(source, (str, os.PathLike)):
            requests.append(RequestedSet(os.fspath(source), alias=alias))
            continue
        if source is None:  # ranks other than rank 0 may pass it in place of statistics
            source = Statistics({})
        key = id(source), alias
        if key not in given_sets:
            given = source
            if not isinstance(given, (Images, Statistics)):
                given = Images(source, name=alias)
            own = given.name if isinstance(given, Images) else ""
            name = alias or _find_free_name(own or default, names)
            names.add(name)
            if isinstance(given, Images):
                if given.is_stream and not given.generates:
                    _check_first_use(iterables.setdefault(id(source), name), name)
                given = given.renamed(name)
            given_sets[key] = RequestedSet(name, given)
        requests.append(given_sets[key])
    return requests


def _reserve_names(sources: Sequence[object]) -> set[str]:
    """Return the paths and the caller's own names. An InputError if one of these is also another
    set's.
    """
    names = {os.fspath(source) for source in sources if isinstance(source, (str, os.PathLike))}
    stated = {source.name for source in sources if isinstance(source, Images) and source.name}
    known = {*map(normalize_path, names | stated)}
    for source in sources:
        if not isinstance(source, NamedSet):
            continue
        path = normalize_path(source.name)
        if path in known:
            raise InputError(f"two sets have the name {source.name}:", "choose another name")
        known.add(path)
        names.add(source.name)
    return names


def _find_free_name(wanted: str, names: Collection[str]) -> str:
    name = wanted
    copies = 1
    while name in names:
        copies += 1
        name = f"{wanted} {copies}"
    return name


def _check_first_use(first: str, name: str) -> None:
    """Refuse an iterable that is also the set ``first``."""
    if name != first:
        raise InputError(
            f"{first} and {name} are the same iterable, which can be iterated over once:",
            "pass a list",
            "pass an iterable for each",
        )


Holding = Literal["images", "stream", "statistics", "both"]


class SetContent(NamedTuple):
    """The images or the statistics of a set; with both, the images give what the statistics lack. A
    stream has neither.

    ``warning`` is about this choice, or about a published reference, whose name and SHA-256 of each
    array follow. ``captions`` are those of a FAKE's images, by their numbers in stored order, if a
    metric needs them.
    """

    images: ImageSet | None = None
    file: Statistics | None = None
    warning: ResultWarning | None = None
    reference: str = ""
    sha256: Mapping[str, str] = {}
    captions: Mapping[int, str] = {}
    groups: Sequence[str] = ()
    """The class, or folder, of each image in stored order, in a statistics file of each row; empty
    if not known.
    """

    @property
    def holds(self) -> Holding:
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
        if self.file.features is None:
            return self.file.count
        return len(self.file.features)


@dataclass(frozen=True, eq=False)
class SetPlan:
    """A set of a run. The same path with two crops or samples is two sets.

    Attributes:
        request: number of the first argument that names it.
        holds: images, a stream of them, statistics, or statistics and images, which give what the
            statistics lack.
        roles: the role of each argument that is this set: a FAKE may be REAL or the held-out set as
            well.
        count: number of its images, of statistics with features that of these; None if unknown.
        crop: how its images are cropped and resized; None if they are not.
        sampling: which of its images are used.
        needs: what the run needs of it.
    """

    path: str
    request: int
    holds: Holding
    roles: tuple[Role, ...]
    count: int | None
    crop: Crop | None
    sampling: Sampling
    needs: SetNeeds = SetNeeds()


Contents = Mapping[SetPlan, SetContent]
"""What each set of a run holds."""


def order_by_partner(
    drawn: ImageSet,
    images: ImageSet,
    real: ImageSet | None,
    settings: Settings,
    say: Say,
) -> ImageSet:
    """Return the images of a FAKE, all or those ``drawn``, in the order of their partners in
    REAL.
    """
    assert real is not None
    if settings.on_error == "skip":
        raise InputError(
            f"{option('on_error', 'skip')} would leave images of {real.path} without a partner:",
            f"omit {option('on_error')}",
        )
    if settings.num_fake != settings.num_real and len(drawn) != len(real):
        raise InputError(
            f"{len(real)} images of {real.path} and {len(drawn)} of {drawn.path} cannot be paired:",
            f"pass {option('num', ...)} for both",
            setting="num_fake",
        )
    return pair_images(images, real, settings.pairs, say)
