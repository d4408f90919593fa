"""What a run will do, decided once on rank 0 before any image is decoded, and the same on every
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
    find_protocol,
    inception_definition,
)
from fidtool.metrics.metric import Metric, MetricFacts
from fidtool.metrics.registry import RequestedMetric, metrics_all_omits
from fidtool.result.evaluation import Evaluation
from fidtool.result.explanations import NotComputed
from fidtool.result.values import Definitions, Value, find_distance, list_values
from fidtool.run.gates import find_baselines
from fidtool.run.opening import OpenedInputs, find_roundings
from fidtool.run.sets import FAKE, HELDOUT, REAL, SetPlan, set_needs
from fidtool.settings.settings import Settings
from fidtool.sources.image_set import ImageSet
from fidtool.statistics.foreign import check_inception
from fidtool.statistics.set_statistics import LayerStatistics, Statistics
from fidtool.system.console import Console


@dataclass(frozen=True)
class Plan:
    """The facts of a run, on every rank: those of the `OpenedInputs`, completed, and what follows
    from them.

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
    definitions: Definitions
    values: tuple[Value, ...]
    batch_size: int
    notes: tuple[str, ...]
    warnings: tuple[ResultWarning, ...]
    baselines: tuple[Evaluation | None, ...]
    left_out: tuple[NotComputed, ...]

    def metric_values(self, requested: RequestedMetric) -> list[Value]:
        """Return the values of a metric, for the features of one network."""
        return [
            value
            for value in self.values
            if value.metric == requested.metric.name and value.features.layer == requested.layer
        ]

    @property
    def distance(self) -> Value | None:
        """The Fréchet distance of the first network, see `Number.error_bars`; None if it was not
        requested.
        """
        return find_distance(self.values)


def select_computable(opening: OpenedInputs, console: Console) -> OpenedInputs:
    """Omit those metrics of ``all`` that cannot be computed, and those whose weights or images are
    lacking.

    A run's only metric is not omitted, and no FAKE is without a value. From here on no setting is
    changed.
    """
    settings = opening.settings
    chosen = []
    left_out = {}
    for requested in settings.selected_metrics:
        reason = _find_obstacle(requested, opening, console)
        if reason is None:
            chosen.append(requested)
            continue
        if not chosen and requested is settings.selected_metrics[-1] and not requested.optional:
            raise reason
        missing, line = describe_omission(requested, reason)
        left_out[missing] = line
    if left_out:
        settings = replace(settings, left_out={omitted.metric for omitted in left_out})
    for fake in opening.sets[1:]:
        find_omissions(chosen, settings, opening.sets[0], fake)
    for line in left_out.values():  # an evaluation has them, a file does not
        console.say(line, is_result=not opening.evaluates, warns=True)
    omitted = [*left_out]
    if opening.evaluates:  # their values are of a comparison, and in no statistics
        for requested in metrics_all_omits(opening.settings.selected_metrics):
            omitted.append(
                NotComputed(
                    requested.name, requested.title, requested.metric.by_name, requested=False
                )
            )
    decided = {
        set_plan: replace(set_plan, needs=set_needs(settings, *set_plan.roles))
        for set_plan in opening.contents
    }
    return replace(
        opening,
        sets=tuple(decided[set_plan] for set_plan in opening.sets),
        contents={decided[set_plan]: content for set_plan, content in opening.contents.items()},
        settings=settings,
        notes=(*opening.notes, *left_out.values()),
        left_out=tuple(omitted),
    )


def _find_obstacle(
    requested: RequestedMetric, opening: OpenedInputs, console: Console
) -> FidtoolError | None:
    """Return why a metric cannot be computed of any FAKE; None if it can, as far as is known."""
    settings = opening.settings
    metric = requested.metric
    has_network = metric.network() is not None
    runs = opening.images
    if has_network and requested.layer in {FEATURES, *settings.other_networks}:
        runs = False  # its network is one of the run's
    try:
        if requested.optional:
            _check_optional(requested, opening, runs)
        elif len(settings.selected_metrics) > 1 and opening.evaluates and (runs or not has_network):
            metric.obtain(settings.network.weights, runs, console.say)
    except (InputError, RunError) as error:
        if isinstance(error, InputError) != bool(requested.optional):
            raise
        return error
    real, *fakes = opening.sets
    reasons = [find_too_few(requested, settings, real, fake) for fake in fakes]
    return reasons[0] if reasons and all(reasons) else None


def _check_optional(requested: RequestedMetric, opening: OpenedInputs, runs: bool) -> None:
    """Refuse a metric that cannot be computed; ``runs`` is whether images go through its
    network.
    """
    metric = requested.metric
    facts = opening.settings.facts(requested.layer)
    metric.check(facts)
    title = f"features of {metric.numbers[0].title}"
    parts = {}
    for set_plan, file in opening.files.items():
        if set_plan.holds != "statistics" or set_plan.roles == (HELDOUT,):
            continue
        of_real = REAL in set_plan.roles and metric.real_features
        of_fake = FAKE in set_plan.roles and metric.fake_features
        path = set_plan.path
        parts[path] = _require_layer(path, file, requested.layer, title, of_real or of_fake)
    if parts and not opening.images:
        path, part = next(iter(parts.items()))
        stated = (part.definition for part in parts.values() if part.definition is not None)
        definition = next(stated, None)
        metric.check(replace(facts, definition=definition, dims=part.dims, file=path))
    if opening.evaluates or metric.network() is not None:
        metric.obtain(opening.settings.network.weights, runs, None)


def describe_omission(requested: RequestedMetric, reason: FidtoolError) -> tuple[NotComputed, str]:
    """Return a metric that is not computed, and what to say about it."""
    if requested.optional:
        line = f"{requested.optional} omits '{requested.name}': {reason.stated}"
    else:
        line = f"'{requested.name}' is not computed: {reason.text}"
    return NotComputed(requested.name, requested.title, reason.stated, not requested.optional), line


def find_too_few(
    requested: RequestedMetric, settings: Settings, real: SetPlan, fake: SetPlan
) -> InputError | None:
    """Return why the sets are too small for a metric; None if they are not, or their numbers are
    not known yet.

    It is the smallest of the sets whose per-image features the metric needs.
    """
    sets = []
    if requested.metric.fake_features:
        sets.append(fake)
        if requested.metric.real_features:
            sets.insert(0, real)
    counts = [(set_plan.count, set_plan.path) for set_plan in sets if set_plan.count is not None]
    if not counts:
        return None
    images, path = min(counts, key=itemgetter(0))
    return settings.too_few_error(requested, images, f"{path} has {images}")


def find_omissions(
    chosen: Sequence[RequestedMetric], settings: Settings, real: SetPlan, fake: SetPlan
) -> list[tuple[NotComputed, str]]:
    """Return the metrics for which REAL or a FAKE has too few images, see `describe_omission`.

    Raises:
        InputError: if FAKE would have no value at all.
    """
    missing = []
    for requested in chosen:
        reason = find_too_few(requested, settings, real, fake)
        if reason is not None:
            missing.append((requested, reason))
    if len(missing) == len(chosen):
        raise missing[0][1]
    return [describe_omission(requested, reason) for requested, reason in missing]


def make_plan(opening: OpenedInputs, measured: Mapping[str, Definition], batch_size: int) -> Plan:
    """Return the plan of a run. A pure function, apart from reading the baseline.

    Args:
        opening: as `select_computable` returns it.
        measured: definitions of the features that this run's networks compute; empty if only
            statistics are compared.

    Raises:
        InputError: if statistics files do not have what is needed, or do not agree with each other
            or the networks.
    """
    settings = opening.settings
    files = opening.files
    definitions, mismatches = check_agreement(files, settings, measured)
    real = opening.sets[0]
    paths = [set_plan.path for set_plan in opening.sets]
    baselines, unread = find_baselines(settings, paths, definitions[FEATURES])
    warnings = [*opening.warnings, *mismatches]
    for set_plan in files:
        if FAKE in set_plan.roles and real not in files:  # statistics are usually those of REAL
            text = (
                f"statistics are compared as {option('fake')} with the images in {real.path}: if "
                f"the statistics are those of the real images, pass them as {option('real')}, "
                "which comes first"
            )
            warnings.append(ResultWarning(set_plan.path, text, "medium"))
    warnings += dict.fromkeys([*_settings_without_effect(opening), *unread])
    return Plan(
        settings=settings,
        sets=opening.sets,
        distinct=tuple(opening.contents),
        definitions=definitions,
        values=list_values(definitions, settings, [*files.values()]),
        batch_size=batch_size,
        notes=opening.notes,
        warnings=tuple(warnings),
        baselines=baselines,
        left_out=opening.left_out,
    )


def check_agreement(
    files: Mapping[SetPlan, Statistics],
    settings: Settings,
    measured: Mapping[str, Definition],
) -> tuple[Definitions, list[ResultWarning]]:
    """Check statistics files against the run's networks and against each other, before any image
    is read.

    Returns the definitions of the run's features, by layer, and warnings for all comparisons.
    """
    definitions: dict[str, Definition | None] = {FEATURES: None}
    warnings = []
    for layer in set_needs(settings, REAL, FAKE).layers:
        metrics = [
            requested.metric for requested in settings.selected_metrics if requested.layer == layer
        ]
        parts = _layer_by_path(files, layer, metrics, settings)
        own = measured[layer] if measured else None
        dims = settings.network.dims if layer == FEATURES else None
        if own is not None:
            dims = own.dims
        definition, mismatches = _find_common_definition(parts, own, dims)
        definitions[layer] = definition
        if own is None and (layer == FEATURES or layer not in settings.networks):
            # The settings `protocol` and `extractor` are those of the first network.
            mismatches = [*_settings_conflicts(parts, settings), *mismatches]
        if mismatches and not settings.allow_mismatch:
            mismatches[0].advise(f"pass {option('allow_mismatch', True)} to compare them anyway")
            raise mismatches[0]
        if layer in settings.networks and not settings.features:  # these may be of any network
            for path, part in parts.items():
                warnings += check_inception(path, part, settings.networks[layer].extractor)
        warnings += [ResultWarning("", mismatch.text, "high") for mismatch in mismatches]
        warnings += _step_warnings(parts, definition)
        facts = replace(settings.facts(layer), definition=definition, dims=dims)
        if own is None:
            path, part = next(iter(parts.items()))
            facts = replace(facts, dims=part.dims, file=path)
        protocol = settings.network.protocol if layer == FEATURES else None
        warnings += _check_metrics(metrics, facts, protocol)
    return definitions, warnings


def _check_metrics(
    metrics: Sequence[Metric], facts: MetricFacts, protocol: str | None
) -> Iterator[ResultWarning]:
    """Check the metrics of a layer, and yield a warning about each whose usual network is another
    one.

    Features of the first network that state none are Inception's with the ``protocol`` that is
    asked for.
    """
    stated = facts.definition
    dims = facts.dims
    is_inception = stated is None and facts.extractor == "inception"
    if is_inception and protocol is not None and dims in INCEPTION_DIMS:
        facts = replace(facts, definition=inception_definition(find_protocol(protocol), dims))
    for metric in metrics:
        metric.check(facts)
        if stated is not None and metric.usual_network not in ("", stated.extractor):
            yield ResultWarning(
                "",
                f"{metric.numbers[0].title} uses features of {stated.extractor} instead of "
                f"{metric.usual_network}, its usual network: it is only comparable with values of "
                "the same network",
                "medium",
            )


def _layer_by_path(
    files: Mapping[SetPlan, Statistics], layer: str, metrics: Sequence[Metric], settings: Settings
) -> dict[str, LayerStatistics]:
    """Return the statistics of one layer by the path of the file; each of which must have what is
    needed.
    """
    title = "features"
    if layer in settings.other_networks:
        title = f"features of {settings.other_networks[layer].subject}"
    elif layer != FEATURES:
        title = f"features of {metrics[0].numbers[0].title}"
    parts = {}
    for set_plan, file in files.items():
        path = set_plan.path
        needs = set_plan.needs
        if set_plan.holds != "both" and layer in needs.layers:
            parts[path] = _require_layer(
                path, file, layer, title, layer in needs.features, needs.order
            )
        elif layer in file.layers:
            parts[path] = file.layers[layer]
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
    part = statistics.layers.get(layer)
    how = "again with `fidtool stats --metrics` and the same metrics"
    if part is None:
        problem = f"{path} has no statistics of the {title}:"
    elif with_features and part.features is None:
        problem = (
            f"{path} has only a mean and a covariance, but this run needs the {title} of each "
            "image:"
        )
        how = "again with `fidtool stats IMAGES -o FILE.npz --metrics kid`, which stores them"
    elif with_order and statistics.order is None:
        problem = (
            f"{path} does not have the stored order of its images, which this run needs to divide "
            "them into splits:"
        )
        how = "again with this version"
    else:
        return part
    raise InputError(problem, "pass the folder of images instead", f"create the file {how}")


def _find_common_definition(
    parts: Mapping[str, LayerStatistics], own: Definition | None, dims: int | None
) -> tuple[Definition | None, list[InputError]]:
    """Return the definition that this run's ``own`` features and all statistics have, and an error
    for each other.
    """
    reference = own
    reference_name = "this run"
    protocols = {part.definition.protocol_name for part in parts.values() if part.definition}
    mismatches = []
    for path, part in parts.items():
        stated = part.definition
        if dims is not None and part.dims != dims:
            whose = ""
            again = "make all with one network (`fidtool stats`)"
            if stated is not None:
                whose = f" (of {stated.extractor})"
                # Another layer of Inception would fit, and the dimensions are not those of another
                # file.
                if stated.standard and reference is own and (own is None or own.standard):
                    again = f"choose {option('dims', part.dims)}"
            raise InputError(
                f"{path} has features of {part.dims} dimensions{whose}, but {reference_name} has "
                f"{dims}; statistics of different dimensions cannot be compared:",
                again,
            )
        if reference is None:
            reference = stated
            reference_name = path
            dims = part.dims
        if stated is None or reference is None:
            continue
        # For another rounding there are only warnings: see `_step_warnings`.
        differences = reference.differences(stated.round_like(reference))
        if differences:
            mismatch = InputError(
                f"{reference_name} and {path} use different protocols ({', '.join(differences)})"
            )
            name = stated.protocol_name
            if own is not None and name not in (None, own.protocol_name) and protocols == {name}:
                mismatch = InputError(
                    f"{mismatch.stated}:", f"choose {option('protocol', name)}", setting="protocol"
                )
            mismatches.append(mismatch)
    return reference, mismatches


def _step_warnings(
    parts: Mapping[str, LayerStatistics], reference: Definition | None
) -> Iterator[ResultWarning]:
    """Yield what to say about statistics whose features were rounded in another way."""
    for path, part in parts.items():
        stated = part.definition
        if stated is None or reference is None or stated.feature_step == reference.feature_step:
            continue
        yield ResultWarning(
            path,
            f"its features were rounded to multiples of 2^{-stated.feature_step}, but the "
            f"features compared with them were rounded to multiples of 2^{-reference.feature_step}",
            "low",
        )


def _settings_conflicts(
    parts: Mapping[str, LayerStatistics], settings: Settings
) -> Iterator[InputError]:
    """Yield an error for each of the statistics that are not of what the settings ask for."""
    network = settings.network
    asks_for_inception = bool(settings.extractor) and network.extractor == "inception"
    for path, part in parts.items():
        stated = part.definition
        if stated is None:
            continue
        if asks_for_inception and not stated.standard:
            extractor = option("extractor")
            yield InputError(
                f"{path} has features of {stated.network}, not of Inception, which {extractor} "
                "requests:",
                f"omit {extractor}",
                "pass statistics of Inception",
            )
        elif network.protocol not in (None, stated.protocol_name):
            yield InputError(
                f"{path} was computed with the protocol {stated.protocol_name}, not "
                f"{network.protocol}",
                setting="protocol",
            )


def _settings_without_effect(opening: OpenedInputs) -> Iterator[ResultWarning]:
    """Yield what to say about settings that have no effect, and of files that were made with
    others.
    """
    settings = opening.settings
    files = opening.files
    sources = [
        content.images for content in opening.contents.values() if content.images is not None
    ]
    if files and not opening.images:
        idle = _unused_with_files(opening)
        if idle:
            have = "has" if len(idle) == 1 else "have"
            yield ResultWarning(
                "",
                f"{' and '.join(idle)} {have} no effect on the values, because only statistics "
                "are compared",
            )
    for images in sources:
        if images.warning is not None:
            yield images.warning
    others = ", ".join(images.path for images in sources if "folder" not in images.kind)
    if others and not settings.recursive:
        yield ResultWarning(
            "", f"{option('recursive', False)} has no effect on {others}: it only affects folders"
        )
    if settings.features and not files:
        yield ResultWarning(
            "", f"{option('features', True)} has no effect: no set is a two-dimensional array"
        )
    yield from _floats_without_effect(opening, sources)
    for set_plan in files:
        for role in set_plan.roles:
            sampling = settings.sampling(role.num)
            values = {role.crop: getattr(settings, role.crop), sampling.setting: sampling.num}
            for name in filter(values.get, values):
                yield ResultWarning(
                    "", f"{set_plan.path} has statistics: {option(name)} does not apply to it"
                )


def _floats_without_effect(
    opening: OpenedInputs, sources: Sequence[ImageSet]
) -> Iterator[ResultWarning]:
    """Yield what to say about the settings of images of floats, and of files that were made with
    others.
    """
    settings = opening.settings
    may_have_floats = any(set_plan.holds == "stream" for set_plan in opening.sets)
    if settings.floats:
        may_have_floats |= any(images.has_floats for images in sources)
    idle = []
    if settings.value_range is not None and not may_have_floats:
        idle.append("value_range")
    if settings.float_to_byte is not None and not (may_have_floats and settings.floats):
        idle.append("float_to_byte")
    for name in idle:
        yield ResultWarning("", f"{option(name)} has no effect: it only affects images of floats")
    ways = find_roundings({set_plan.path: file for set_plan, file in opening.files.items()})
    if settings.floats is not None:
        ways["this run"] = settings.rounding
    if len({*ways.values()}) > 1:
        where = ", ".join(f"{way} in {path}" for path, way in ways.items())
        yield ResultWarning(
            "",
            f"floats were converted to bytes in different ways ({option('float_to_byte')}): "
            f"{where}",
            "medium",
        )


def _unused_with_files(opening: OpenedInputs) -> list[str]:
    """Settings of the user that have no effect if no image is read, as named in messages."""
    settings = opening.settings
    network = settings.network
    usual = Settings().network
    metrics = [
        requested.metric for requested in settings.selected_metrics if not requested.network_name
    ]
    names = ["extractor", "weights", "input_size", "feature_step"]
    if any("," in f"{(file.config or {}).get('extractor')}" for file in opening.files.values()):
        names.remove("extractor")  # it selects one of the networks in a file
    if any(metric.classifier for metric in metrics):  # which is among the weights
        names.remove("weights")
    idle: list[str | MetricSetting] = [
        name for name in names if getattr(network, name) != getattr(usual, name)
    ]
    for metric in metrics:
        own = metric.own_network
        if own == network:
            return []  # the two settings together select the layer of the metric's features
        if own and own != type(metric)().network():
            idle.append(own.setting)
    if settings.checkpoint is not None:
        idle.append("checkpoint")
    return [*map(option, idle)]
