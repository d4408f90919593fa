"""What a run will do, decided once on rank zero before any image is decoded, and the same on every rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from fidtool.errors import InputError, RunError, option
from fidtool.features.models.families import NETWORK_SETTINGS, NetworkChoice
from fidtool.features.protocol import FEATURES, Definition
from fidtool.labels import Labels, labels_of
from fidtool.metrics.metric import Metric, MetricFacts
from fidtool.pipeline.agreement import agree, require_layer, roundings
from fidtool.pipeline.opening import Opening
from fidtool.pipeline.sets import ImageCount, OpenedSet, SetNeeds, set_needs
from fidtool.settings import Settings
from fidtool.sources.image_set import Sampling


@dataclass(frozen=True, eq=False)
class SetPlan:
    """A set of a run. The same path with two framings or samples is two sets.

    Attributes:
        path: the set, as the caller passes it.
        request: number of the first argument that names it.
        kind: what a set that has statistics is, for messages.
        holds: images, a stream of them, statistics, or statistics and images, which give what the statistics lack.
        fake: whether it is a FAKE; REAL may be one as well.
        count: number of images; None if it is not known yet.
        framing: how its images are cropped and resized, see `fidtool.images.framing.Crop`; None if they are not.
        sampling: which of its images are used.
        needs: what the run needs of it.
    """

    path: str
    request: int
    kind: str
    holds: Literal["images", "stream", "statistics", "both"]
    fake: bool
    count: ImageCount | None
    framing: str | None
    sampling: Sampling
    needs: SetNeeds


@dataclass(frozen=True)
class Choice:
    """What the sets decide before the networks are built.

    Attributes:
        settings: the run's settings with the metrics that can be computed. They are not changed any more.
        images: whether images go through the networks.
        notes: what to say about the settings.
        omissions: what to say about each metric that cannot be computed.
        left_out: the names of these metrics, with the reasons.
    """

    settings: Settings
    images: bool
    notes: tuple[str, ...]
    omissions: tuple[str, ...]
    left_out: Mapping[str, str]


@dataclass(frozen=True)
class Plan:
    """The facts of a run, on every rank.

    Attributes:
        sets: REAL and the FAKEs in the order of the arguments, or the only set of ``fidtool stats``. A set that occurs
            several times is one object.
        definitions: definitions of the features by layer; None if only files of unknown protocol are compared.
        labels: names of the values.
        batch_size: images in a full forward pass.
        warnings: about all comparisons, a sentence each.
    """

    settings: Settings
    sets: tuple[SetPlan, ...]
    definitions: Mapping[str, Definition | None]
    labels: Labels
    batch_size: int
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    left_out: Mapping[str, str]

    @property
    def indexable(self) -> list[SetPlan]:
        """The sets with images that can be read again, each once, in processing order."""
        return [each for each in dict.fromkeys(self.sets) if each.holds in ("images", "both")]


def choose(opening: Opening, say: Callable[[str], None], evaluates: bool) -> Choice:
    """Omits those metrics of ``all`` that cannot be computed, and those whose weights cannot be obtained.

    A run's only metric is not omitted. Without ``evaluates``, the set's statistics are written to a file.
    """
    settings, sets = opening.settings, [*dict.fromkeys(opening.sets)]
    images = any(each.holds != "statistics" for each in sets)
    ordered = settings.in_order
    chosen: list[Metric] = []
    omissions, left_out = [], {}
    for metric, by in ((each.metric, each.optional) for each in ordered):
        works = images and (metric.network() is None or settings.layer_of(metric) != FEATURES)
        try:
            if by:
                _check_optional(metric, settings, sets, works, evaluates)
            elif len(ordered) > 1 and evaluates and (works or metric.network() is None):
                metric.obtain(settings.network.weights, works, say)
            chosen.append(metric)
        except (InputError, RunError) as error:
            is_only = not chosen and metric is ordered[-1].metric
            if isinstance(error, InputError) != bool(by) or (is_only and not by):
                raise
            said = (
                f"{by} omits '{metric.name}': {error.problem}"
                if by
                else f"'{metric.name}' is not computed: {error.text}"
            )
            omissions.append(said)
            left_out[metric.name] = error.problem
    if len(chosen) < len(ordered):
        possible: Any = [each for each in settings.requested if each.metric in chosen]
        settings = replace(settings, metrics=possible)
    for metric in chosen if evaluates else ():
        check_count(metric, settings, _counts(sets, settings))
    return Choice(settings, images, opening.notes, tuple(omissions), left_out)


def _check_optional(
    metric: Metric, settings: Settings, sets: Sequence[OpenedSet], works: bool, evaluates: bool
) -> None:
    """Refuses a metric that cannot be computed; ``works`` is whether images go through its network."""
    layer, extractor = settings.layer_of(metric), settings.network.extractor
    metric.check(MetricFacts(extractor, settings.dims))
    parts = {}
    for each in sets:
        if each.holds != "statistics" or each.content.file is None:
            continue
        needed = (metric.real_features and each.real) or (metric.fake_features and each.fake)
        needs, title = SetNeeds(features=frozenset({layer} if needed else ())), metric.numbers[0].title
        parts[each.path] = require_layer(each.path, each.content.file, layer, f"features of {title}", needs)
    if parts and all(each.holds == "statistics" for each in sets):
        path, part = next(iter(parts.items()))
        stated = (each.definition for each in parts.values() if each.definition is not None)
        metric.check(MetricFacts(extractor, settings.dims, next(stated, None), part.dims, path))
    if evaluates or metric.network() is not None:
        metric.obtain(settings.network.weights, works, None)
    if evaluates:
        check_count(metric, settings, _counts(sets, settings))


Counts = Sequence[tuple[str, bool, ImageCount]]
"""The path of a set, whether it is a FAKE, and its number of images."""


def _counts(sets: Iterable[OpenedSet], settings: Settings) -> Counts:
    return [(each.path, each.fake, count) for each in sets if (count := each.count(settings)) is not None]


def check_count(metric: Metric, settings: Settings, counts: Counts) -> None:
    """Refuses sets that are too small for a metric: it is the smallest whose per-image features it needs."""
    used = [(path, count) for path, fake, count in counts if metric.fake_features and (metric.real_features or fake)]
    if not used:
        return
    path, count = min(used, key=lambda item: item[1].certain)
    try:
        metric.check(
            MetricFacts(settings.network.extractor, settings.dims, images=count.certain, has=f"{path} has {count}")
        )
    except InputError as error:
        if not count.skippable:
            raise
        error.args += (f"a smaller {option('max_skip')}",)
        raise


def make_plan(opening: Opening, choice: Choice, measured: Mapping[str, Definition] | None, batch_size: int) -> Plan:
    """Returns the plan of a run. A pure function.

    Args:
        measured: definitions of the features that this run's networks compute; None if only statistics are compared.

    Raises:
        InputError: if statistics files do not have what is needed, or do not agree with each other or the networks.
    """
    settings = choice.settings
    definitions, mismatches = agree(dict.fromkeys(opening.sets), settings, measured)
    planned = {
        each: SetPlan(
            each.path,
            opening.sets.index(each),
            each.kind,
            each.holds,
            each.fake,
            each.count(settings),
            each.framing,
            each.sampling,
            set_needs(settings, each.real, each.fake),
        )
        for each in opening.sets
    }
    warnings = [*opening.warnings, *mismatches, *_order_warnings(opening.sets)]
    return Plan(
        settings,
        tuple(planned[each] for each in opening.sets),
        definitions,
        _labels(opening.sets, settings, definitions, choice.images),
        batch_size,
        (*choice.notes, *choice.omissions),
        (*warnings, *_settings_without_effect(opening.sets, settings, choice.images)),
        choice.left_out,
    )


def _labels(
    sets: Sequence[OpenedSet], settings: Settings, definitions: Mapping[str, Definition | None], images: bool
) -> Labels:
    files = [each.content.file for each in sets if each.content.file is not None]
    definition = definitions[FEATURES]
    dims = files[0].dims if definition is None else definition.dims
    found = {layer: [file.layers.get(layer) for file in files] for layer in definitions}
    stated = {layer: [one.definition for one in parts if one and one.definition] for layer, parts in found.items()}
    return labels_of(definitions, settings, images, dims, stated)


def _order_warnings(sets: Sequence[OpenedSet]) -> list[str]:
    """Statistics are usually those of REAL."""
    real, fakes = sets[0], dict.fromkeys(sets[1:])
    pass_it = f"if it is of the real images, pass it as {option('real')}, which comes first"
    return [
        f"{each.path} is {each.kind}, compared as {option('fake')} with the images of {real.path}: {pass_it}"
        for each in fakes
        if each.content.file is not None and real.content.file is None
    ]


def _settings_without_effect(sets: Sequence[OpenedSet], settings: Settings, images: bool) -> list[str]:
    each_once, found = [*dict.fromkeys(sets)], []
    files = {each.path: each.content.file for each in each_once if each.content.file is not None}
    sources = [each.content.images for each in each_once if each.content.images is not None]
    if not images and (idle := _idle_with_files(settings)):
        have = "has" if len(idle) == 1 else "have"
        found.append(f"{' and '.join(idle)} {have} no effect on the values: only statistics are compared")
    found += [each.warning for each in sources if each.warning]
    if not settings.recursive and (others := [each.path for each in sources if "folder" not in each.kind]):
        found.append(f"{option('recursive', False)} has no effect on {', '.join(others)}: it only affects folders")
    if settings.features and not files:
        found.append(f"{option('features', True)} has no effect: no set is an array of two dimensions")
    streams = any(each.holds == "stream" for each in sets)
    scaled = streams or (settings.floats and any(each.scaled for each in sources))
    if settings.value_range is not None and not scaled:
        found.append(f"{option('value_range')} has no effect: it only affects images of floats")
    if settings.float_to_byte is not None and not (scaled and settings.floats):
        found.append(f"{option('float_to_byte')} has no effect: it only affects images of floats")
    how = roundings(files) | ({} if settings.floats is None else {"this run": settings.rounding})
    if len({*how.values()}) > 1:
        each = ", ".join(f"{value} in {where}" for where, value in how.items())
        found.append(f"floats became bytes in different ways ({option('float_to_byte')}): {each}")
    for number, one in enumerate(sets):
        if one.content.file is not None:
            given = {"crop": settings.crop} if number == 0 else {"crop_fake": settings.crop_fake}
            sampling = settings.sampling("num_fake" if number else "num_real")
            given[sampling.setting] = sampling.num  # type: ignore[assignment]
            found += [f"{one.path} is {one.kind}: {option(name)} does not apply to it" for name in given if given[name]]
    return [*dict.fromkeys(found)]


def _idle_with_files(settings: Settings) -> list[str]:
    """Settings of the user that have no effect if no image is read, as named in messages."""
    idle = _changed_settings(settings.network, Settings().network)
    for metric in settings.chosen:
        if (own := metric.own_network) is None:
            continue
        if own == settings.network:
            return []  # the two settings together select the layer of the metric's features
        usual = type(metric)().network()
        assert usual is not None
        idle += _changed_settings(own, usual)
    if settings.metric("is") is not None:  # the weights include the classifier
        idle = [name for name in idle if name != "weights"]
    return [option(name) for name in (idle if settings.checkpoint is None else [*idle, "checkpoint"])]


def _changed_settings(asked: NetworkChoice, usual: NetworkChoice) -> list[str]:
    return [asked.named(name) for name in NETWORK_SETTINGS if getattr(asked, name) != getattr(usual, name)]
