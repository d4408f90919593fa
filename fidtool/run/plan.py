"""What a run will do, decided once on rank zero before any image is decoded, and the same on every
rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

from fidtool.errors import FidtoolError, InputError, MetricSetting, ResultWarning, RunError, option
from fidtool.features.protocol import (
    FEATURES,
    INCEPTION_DIMS,
    Definition,
    inception_definition,
    protocol_named,
)
from fidtool.metrics.metric import Metric, MetricFacts
from fidtool.metrics.registry import Requested
from fidtool.result.evaluation import Evaluation
from fidtool.result.explanations import NotComputed
from fidtool.result.values import Value, values_of
from fidtool.run.gates import baselines_of
from fidtool.run.opening import Opening, roundings
from fidtool.run.sets import FAKE, HELDOUT, REAL, SetPlan, set_needs
from fidtool.settings.settings import Settings
from fidtool.sources.image_set import ImageSet
from fidtool.statistics.foreign import inception_doubts
from fidtool.statistics.set_statistics import LayerStatistics, Statistics
from fidtool.system.console import Console


@dataclass(frozen=True)
class Plan:
    """The facts of a run, on every rank: those of the `Opening`, completed, and what follows from
    them.

    Attributes:
        distinct: the sets, each once, with the held-out one.
        definitions: definitions of the features by layer; None if only files of unknown protocol
            are compared.
        values: the values of all metrics, in the order in which they are listed.
        batch_size: images in a full forward pass.
        baselines: the earlier result of each FAKE that it must not be worse than; None without this
            gate.
    """

    settings: Settings
    sets: tuple[SetPlan, ...]
    distinct: tuple[SetPlan, ...]
    definitions: Mapping[str, Definition | None]
    values: tuple[Value, ...]
    batch_size: int
    notes: tuple[str, ...]
    warnings: tuple[ResultWarning, ...]
    baselines: tuple[Evaluation | None, ...]
    left_out: tuple[NotComputed, ...]

    def values_of(self, asked: Requested) -> list[Value]:
        """Returns the values of a metric, for the features of one network."""
        mine = asked.metric.name, asked.layer
        return [value for value in self.values if (value.metric, value.features.layer) == mine]

    @property
    def distance(self) -> Value | None:
        """The Fréchet distance of the first network, see `Number.error_bars`; None if it was not
        requested.
        """
        mine = (
            value
            for value in self.values
            if value.number.error_bars and value.features.layer == FEATURES
        )
        return next(mine, None)


def choose(opening: Opening, console: Console) -> Opening:
    """Omits those metrics of ``all`` that cannot be computed, and those whose weights or images are
    lacking.

    A run's only metric is not omitted, and no FAKE is without a value. From here on no setting is
    changed.
    """
    settings, ordered = opening.settings, opening.settings.chosen
    chosen, left_out = list[Requested](), dict[NotComputed, str]()
    for asked in ordered:
        reason = _obstacle(asked, opening, console)
        if reason is None:
            chosen.append(asked)
            continue
        if not chosen and asked is ordered[-1] and not asked.optional:
            raise reason
        lacking, line = omission(asked, reason)
        left_out[lacking] = line
    if left_out:
        settings = replace(settings, left_out={lacking.metric for lacking in left_out})
    for fake in opening.sets[1:]:
        omissions(chosen, settings, opening.sets[0], fake)
    for line in left_out.values():  # an evaluation has them, a file does not
        console.say(line, is_result=not opening.evaluates, warns=True)
    decided = {
        each: replace(each, needs=set_needs(settings, *each.roles)) for each in opening.contents
    }
    return replace(
        opening,
        sets=tuple(decided[each] for each in opening.sets),
        contents={decided[each]: content for each, content in opening.contents.items()},
        settings=settings,
        notes=(*opening.notes, *left_out.values()),
        left_out=tuple(left_out),
    )


def _obstacle(asked: Requested, opening: Opening, console: Console) -> FidtoolError | None:
    """Returns why a metric cannot be computed of any FAKE; None if it can, as far as is known."""
    settings, metric, (first, *fakes) = opening.settings, asked.metric, opening.sets
    works = opening.images and (
        metric.network() is None or asked.layer not in {FEATURES, *settings.further}
    )
    try:
        if asked.optional:
            _check_optional(asked, opening, works)
        elif len(settings.chosen) > 1 and opening.evaluates and (works or metric.network() is None):
            metric.obtain(settings.network.weights, works, console.say)
    except (InputError, RunError) as error:
        if isinstance(error, InputError) != bool(asked.optional):
            raise
        return error
    lacking = [too_few(asked, settings, first, fake) for fake in fakes]
    return lacking[0] if lacking and all(lacking) else None


def _check_optional(asked: Requested, opening: Opening, works: bool) -> None:
    """Refuses a metric that cannot be computed; ``works`` is whether images go through its
    network.
    """
    settings, metric, layer = opening.settings, asked.metric, asked.layer
    title, facts = metric.numbers[0].title, settings.facts(layer)
    metric.check(facts)
    parts = {}
    for each, file in opening.files.items():
        if each.holds == "statistics" and each.roles != (HELDOUT,):
            needed = (metric.real_features and REAL in each.roles) or (
                metric.fake_features and FAKE in each.roles
            )
            parts[each.path] = _require_layer(
                each.path, file, layer, f"features of {title}", needed
            )
    if parts and not opening.images:
        path, part = next(iter(parts.items()))
        stated = (each.definition for each in parts.values() if each.definition is not None)
        metric.check(replace(facts, definition=next(stated, None), dims=part.dims, file=path))
    if opening.evaluates or metric.network() is not None:
        metric.obtain(settings.network.weights, works, None)


def omission(asked: Requested, reason: FidtoolError) -> tuple[NotComputed, str]:
    """Returns a metric that is not computed, and what to say about it."""
    line = f"'{asked.name}' is not computed: {reason.text}"
    if asked.optional:
        line = f"{asked.optional} omits '{asked.name}': {reason.stated}"
    return NotComputed(asked.name, asked.title, reason.stated, not asked.optional), line


def too_few(
    asked: Requested, settings: Settings, real: SetPlan, fake: SetPlan
) -> InputError | None:
    """Returns why the sets are too small for a metric; None if they are not, or their numbers are
    not known yet.

    It is the smallest of the sets whose per-image features the metric needs.
    """
    sets = [real, fake] if asked.metric.real_features else [fake]
    known = [
        (each.count, each.path)
        for each in sets
        if each.count is not None and asked.metric.fake_features
    ]
    if not known:
        return None
    images, path = min(known, key=itemgetter(0))
    return settings.too_few(asked, images, f"{path} has {images}")


def omissions(
    chosen: Sequence[Requested], settings: Settings, real: SetPlan, fake: SetPlan
) -> list[tuple[NotComputed, str]]:
    """Returns the metrics for which REAL or a FAKE has too few images, see `omission`.

    Raises:
        InputError: if FAKE would have no value at all.
    """
    reasons = [(asked, too_few(asked, settings, real, fake)) for asked in chosen]
    lacking = [(asked, reason) for asked, reason in reasons if reason is not None]
    if len(lacking) == len(chosen):
        raise lacking[0][1]
    return [omission(asked, reason) for asked, reason in lacking]


def make_plan(opening: Opening, measured: Mapping[str, Definition] | None, batch_size: int) -> Plan:
    """Returns the plan of a run. A pure function, apart from reading the baseline.

    Args:
        opening: as `choose` returns it.
        measured: definitions of the features that this run's networks compute; None if only
            statistics are compared.

    Raises:
        InputError: if statistics files do not have what is needed, or do not agree with each other
            or the networks.
    """
    settings, files = opening.settings, opening.files
    definitions, mismatches = agree(files, settings, measured)
    real = opening.sets[0]
    baselines, unread = baselines_of(
        settings, [each.path for each in opening.sets], definitions[FEATURES]
    )
    said = [*opening.warnings, *mismatches]
    for planned in files:
        if FAKE in planned.roles and real not in files:  # statistics are usually those of REAL
            compared = f"statistics are compared as {option('fake')} with images of {real.path}"
            text = (
                f"{compared}: if they are of the real images, pass them as {option('real')}, "
                "which comes first"
            )
            said.append(ResultWarning(planned.path, text, "medium"))
    said += dict.fromkeys([*_settings_without_effect(opening), *unread])
    return Plan(
        settings=settings,
        sets=opening.sets,
        distinct=tuple(opening.contents),
        definitions=definitions,
        values=values_of(definitions, settings, opening.images, [*files.values()]),
        batch_size=batch_size,
        notes=opening.notes,
        warnings=tuple(said),
        baselines=baselines,
        left_out=opening.left_out,
    )


def agree(
    files: Mapping[SetPlan, Statistics],
    settings: Settings,
    measured: Mapping[str, Definition] | None,
) -> tuple[dict[str, Definition | None], list[ResultWarning]]:
    """Checks statistics files against the run's networks and against each other, before any image
    is read.

    Returns the definitions of the run's features, by layer, and warnings for all comparisons.
    """
    definitions: dict[str, Definition | None] = {FEATURES: None}
    warnings: list[ResultWarning] = []
    for layer in set_needs(settings, REAL, FAKE).layers:
        metrics = [asked.metric for asked in settings.chosen if asked.layer == layer]
        parts = _parts(files, layer, metrics, settings)
        own = None if measured is None else measured[layer]
        dims = settings.network.dims if layer == FEATURES else None
        if own is not None:
            dims = own.dims
        definitions[layer], mismatches = _common_definition(parts, own, dims)
        if own is None and (layer == FEATURES or layer not in settings.networks):
            # The settings `protocol` and `extractor` are those of the first network.
            mismatches = [*_against_request(parts, settings), *mismatches]
        if mismatches and not settings.allow_mismatch:
            mismatches[0].advise(f"pass {option('allow_mismatch', True)} to compare them anyway")
            raise mismatches[0]
        if layer in settings.networks and not settings.features:  # these may be of any network
            for path, part in parts.items():
                warnings += inception_doubts(path, part, settings.networks[layer].extractor)
        warnings += [ResultWarning("", mismatch.text, "high") for mismatch in mismatches]
        facts = replace(settings.facts(layer), definition=definitions[layer], dims=dims)
        if own is None:
            path, part = next(iter(parts.items()))
            facts = replace(facts, dims=part.dims, file=path)
        warnings += _check_metrics(
            metrics, facts, settings.network.protocol if layer == FEATURES else None
        )
    return definitions, warnings


def _check_metrics(
    metrics: Sequence[Metric], facts: MetricFacts, protocol: str | None
) -> Iterator[ResultWarning]:
    """Checks the metrics of a layer, and yields a warning about each whose usual network is another
    one.

    Features of the first network that state none are Inception's with the ``protocol`` that is
    asked for.
    """
    definition, dims = facts.definition, facts.dims
    if (
        definition is None
        and protocol is not None
        and facts.extractor == "inception"
        and dims in INCEPTION_DIMS
    ):
        facts = replace(facts, definition=inception_definition(protocol_named(protocol), dims))
    for metric in metrics:
        metric.check(facts)
        if definition is not None and metric.usual_network not in ("", definition.extractor):
            text = (
                f"{metric.numbers[0].title} uses features of {definition.extractor} instead of "
                f"{metric.usual_network}, its usual network: it is only comparable with values of "
                "the same network"
            )
            yield ResultWarning("", text, "medium")


def _parts(
    files: Mapping[SetPlan, Statistics], layer: str, metrics: Sequence[Metric], settings: Settings
) -> dict[str, LayerStatistics]:
    """Returns the statistics of one layer by the path of the file; each of which must have what is
    needed.
    """
    title = "features"
    if layer in settings.further:
        title = f"features of {settings.further[layer].subject}"
    elif layer != FEATURES:
        title = f"features of {metrics[0].numbers[0].title}"
    parts = {}
    for planned, file in files.items():
        needs = planned.needs
        if planned.holds != "both" and layer in needs.layers:
            parts[planned.path] = _require_layer(
                planned.path, file, layer, title, layer in needs.features, needs.order
            )
        elif layer in file.layers:
            parts[planned.path] = file.layers[layer]
    return parts


def _require_layer(
    path: str,
    statistics: Statistics,
    layer: str,
    title: str,
    with_features: bool,
    with_order: bool = False,
) -> LayerStatistics:
    """One layer of a statistics file, called ``title`` in messages. Checks that it has what is
    needed.
    """
    found = statistics.layers.get(layer)
    how = "again with `fidtool stats --metrics` and the same metrics"
    if found is None:
        problem = f"{path} has no statistics of the {title}:"
    elif with_features and found.features is None:
        problem = (
            f"{path} has only a mean and a covariance, but this run needs the {title} of each "
            "image:"
        )
        how = "again with `fidtool stats IMAGES -o FILE.npz --metrics kid`, which stores them"
    elif with_order and statistics.order is None:
        problem = (
            f"{path} does not have the stored order of its images, in which this run divides them "
            "into parts:"
        )
        how = "again with this version"
    else:
        return found
    raise InputError(problem, "pass the folder of images instead", f"create the file {how}")


def _common_definition(
    parts: Mapping[str, LayerStatistics], own: Definition | None, dims: int | None
) -> tuple[Definition | None, list[InputError]]:
    """Returns the definition that this run's ``own`` features and all statistics have, and an error
    for each other.
    """
    reference, reference_name = own, "this run"
    protocols = {
        part.definition.protocol_name for part in parts.values() if part.definition is not None
    }
    mismatches = []
    for path, part in parts.items():
        stated = part.definition
        if dims is not None and part.dims != dims:
            whose = "" if stated is None else f" (of {stated.extractor})"
            of_inception = stated is not None and stated.standard and (own is None or own.standard)
            is_layer = of_inception and reference is own  # and not that of another file
            again = (
                f"choose {option('dims', part.dims)}"
                if is_layer
                else "make all with one network (`fidtool stats`)"
            )
            raise InputError(
                f"{path} has features of {part.dims} dimensions{whose}, but {reference_name} has "
                f"{dims}; statistics of different dimensions cannot be compared:",
                again,
            )
        if reference is None:
            reference, reference_name, dims = stated, path, part.dims
        if stated is None or reference is None:
            continue
        if differences := reference.differences(stated):
            problem = (
                f"{reference_name} and {path} use different protocols ({', '.join(differences)})"
            )
            name = stated.protocol_name
            if own is None or name in (None, own.protocol_name) or protocols != {name}:
                mismatches.append(InputError(problem))
            else:
                mismatches.append(
                    InputError(
                        f"{problem}:", f"choose {option('protocol', name)}", setting="protocol"
                    )
                )
    return reference, mismatches


def _against_request(
    parts: Mapping[str, LayerStatistics], settings: Settings
) -> Iterator[InputError]:
    """Yields an error for each of the statistics that are not of what the settings ask for."""
    asked = settings.network.protocol
    for path, part in parts.items():
        if (stated := part.definition) is None:
            continue
        if settings.extractor and settings.network.extractor == "inception" and not stated.standard:
            named = option("extractor")
            problem = (
                f"{path} has features of {stated.network}, not of Inception, which {named} "
                "requests:"
            )
            yield InputError(
                problem, f"omit {named}", "pass statistics of Inception", setting="extractor"
            )
        elif asked not in (None, stated.protocol_name):
            problem = f"{path} was computed with the protocol {stated.protocol_name}, not {asked}"
            yield InputError(problem, setting="protocol")


def _settings_without_effect(opening: Opening) -> Iterator[ResultWarning]:
    """Yields what to say about settings that have no effect, and of files that were made with
    others.
    """
    settings, files = opening.settings, opening.files
    sources = [
        content.images for content in opening.contents.values() if content.images is not None
    ]
    if files and not opening.images and (idle := _idle_with_files(opening)):
        text = (
            f"{' and '.join(idle)}: no effect on the values, because only statistics are compared"
        )
        yield ResultWarning("", text)
    for source in sources:
        if source.warning is not None:
            yield source.warning
    if not settings.recursive and (
        others := [source.path for source in sources if "folder" not in source.kind]
    ):
        text = (
            f"{option('recursive', False)} has no effect on {', '.join(others)}: it only affects "
            "folders"
        )
        yield ResultWarning("", text)
    if settings.features and not files:
        yield ResultWarning(
            "", f"{option('features', True)} has no effect: no set is an array of two dimensions"
        )
    yield from _floats_without_effect(opening, sources)
    for planned in files:
        for role in planned.roles:
            sampling = settings.sampling(role.num)
            for name, value in (
                (role.crop, getattr(settings, role.crop)),
                (sampling.setting, sampling.num),
            ):
                if value:
                    text = f"{planned.path} has statistics: {option(name)} does not apply to it"
                    yield ResultWarning("", text)


def _floats_without_effect(
    opening: Opening, sources: Sequence[ImageSet]
) -> Iterator[ResultWarning]:
    """Yields what to say about the settings of images of floats, and of files that were made with
    others.
    """
    settings = opening.settings
    streams = any(planned.holds == "stream" for planned in opening.sets)
    scaled = streams or (settings.floats and any(source.scaled for source in sources))
    for name, applies in (("value_range", scaled), ("float_to_byte", scaled and settings.floats)):
        if getattr(settings, name) is not None and not applies:
            yield ResultWarning(
                "", f"{option(name)} has no effect: it only affects images of floats"
            )
    how = roundings({planned.path: file for planned, file in opening.files.items()})
    if settings.floats is not None:
        how["this run"] = settings.rounding
    if len({*how.values()}) > 1:
        ways = ", ".join(f"{value} in {where}" for where, value in how.items())
        text = f"floats became bytes in different ways ({option('float_to_byte')}): {ways}"
        yield ResultWarning("", text, "medium")


def _idle_with_files(opening: Opening) -> list[str]:
    """Settings of the user that have no effect if no image is read, as named in messages."""
    settings, network, usual = opening.settings, opening.settings.network, Settings().network
    names = ["extractor", "weights", "input_size", "feature_step"]
    if any("," in f"{(file.config or {}).get('extractor')}" for file in opening.files.values()):
        names.remove("extractor")  # it selects one of the networks in a file
    if any(asked.metric.classifier for asked in settings.chosen):  # which is among the weights
        names.remove("weights")
    idle: list[str | MetricSetting] = [
        name for name in names if getattr(network, name) != getattr(usual, name)
    ]
    for metric in (asked.metric for asked in settings.chosen if not asked.further):
        own = metric.own_network
        if own == network:
            return []  # the two settings together select the layer of the metric's features
        if own and own != type(metric)().network():
            idle.append(own.setting)
    if settings.checkpoint is not None:
        idle.append("checkpoint")
    return [*map(option, idle)]
