"""Checks that the statistics of a run are comparable, and completes its settings from its statistics files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fidtool.errors import FidtoolError, InputError, option
from fidtool.features.models.families import CMMD_EXTRACTOR, is_published
from fidtool.features.protocol import (
    DEFAULT_PROTOCOL,
    FEATURES,
    INCEPTION,
    INCEPTION_DIMS,
    INCEPTION_SHA256,
    PROTOCOLS,
    SPATIAL,
    Definition,
    inception_definition,
    protocol_named,
)
from fidtool.metrics.cmmd import CMMD
from fidtool.metrics.metric import MetricFacts
from fidtool.pipeline.sets import SetPlan, set_needs
from fidtool.settings import Settings
from fidtool.statistics.set_statistics import LayerStatistics, Statistics

_TITLES = {FEATURES: "features", SPATIAL: "spatial features (of sFID)"}


def complete_settings(files: Mapping[str, Statistics], settings: Settings, images: bool) -> tuple[Settings, str]:
    """Completes the settings of a run from its statistics files, and says what it takes. A custom network is never run.

    Without ``images``, which are processed as the settings say, the settings stay as they are.
    """
    definitions = {path: each.definition for path, each in files.items() if each.definition is not None}
    taken = _of_inception(files, definitions, settings)
    if images:
        if not taken and definitions:
            taken = _network_of(definitions, settings)
        usual = replace(settings, protocol=taken.get("protocol", settings.protocol)).rounding
        match [*{*roundings(files).values()}]:
            case [how] if how != usual and settings.float_to_byte is None and settings.floats is not None:
                taken |= {"float_to_byte": how}
    if not taken:
        return settings, ""
    first, *others = definitions or files
    more = f" and {others[0] if len(others) == 1 else f'{len(others)} other files'}" if others else ""
    if origin := files[first].origin:
        first = f"{first}, a file of {origin}{',' if more else ''}"
    line = f"taken from {first}{more}: {' and '.join(f'{name} {value}' for name, value in taken.items())}"
    if not images:
        return settings, line
    try:
        return replace(settings, **taken), line
    except InputError as error:
        error.note += f" ({line})"
        raise


def roundings(files: Mapping[str, Statistics]) -> dict[str, str]:
    """How floats became bytes, by the paths of the files that say so."""
    configs = {path: file.config or {} for path, file in files.items()}
    return {path: str(config["float_to_byte"]) for path, config in configs.items() if "float_to_byte" in config}


def _of_inception(
    files: Mapping[str, Statistics], definitions: Mapping[str, Definition], settings: Settings
) -> dict[str, Any]:
    """The dims and protocol of Inception that all files share, unless they are the defaults or set by the user.

    Files that do not name their network count as Inception's, as in `fidtool.labels`.
    """
    if settings.network.extractor != "inception" or any(each.extractor != INCEPTION for each in definitions.values()):
        return {}
    found: dict[str, Any] = {}
    dims, protocols = {each.dims for each in files.values()}, {each.protocol_name for each in definitions.values()}
    if settings.dims is None and len(dims) == 1 and dims <= {*INCEPTION_DIMS} - {max(INCEPTION_DIMS)}:
        found["dims"] = dims.pop()
    if settings.protocol is None and len(protocols) == 1 and protocols <= {*PROTOCOLS} - {DEFAULT_PROTOCOL}:
        found["protocol"] = protocols.pop()
    return found


def _network_of(definitions: Mapping[str, Definition], settings: Settings) -> dict[str, Any]:
    path, definition = next(iter(definitions.items()))
    asked = settings.extractor is not None or settings.dims is not None or settings.protocol is not None
    if asked or definition.extractor == INCEPTION or len({each.extractor for each in definitions.values()}) > 1:
        return {}
    if is_published(definition.extractor):
        # Under CMMD's default name for it, FID and CMMD share one network.
        usual = definition.extractor == CMMD_EXTRACTOR
        return {"extractor": CMMD.extractor if usual else definition.extractor}
    if settings.allow_mismatch:
        return {}
    raise InputError(
        f"{path} has features of the custom network {definition.extractor}, whose code is only run if you name it:",
        f"pass {option('extractor', definition.network)}, with its path",
        setting="extractor",
    )


def agree(
    files: Mapping[SetPlan, Statistics], settings: Settings, measured: Mapping[str, Definition] | None
) -> tuple[dict[str, Definition | None], list[str]]:
    """Checks statistics files against the run's networks and against each other, before any image is read.

    Returns the definitions of the run's features, by layer, and warnings for all comparisons.
    """
    definitions: dict[str, Definition | None] = {}
    warnings: list[str] = []
    for layer in set_needs(settings, real=True, fake=True).layers:
        metrics = [metric for metric in settings.chosen if settings.layer_of(metric) == layer]
        title = _TITLES.get(layer) or f"features of {metrics[0].numbers[0].title}"
        parts = {}
        for each, file in files.items():
            if each.holds != "both":
                needs = set_needs(settings, each.real, each.fake)
                parts[each.path] = require_layer(each.path, file, layer, title, layer in needs.features, needs.order)
            elif layer in file.layers:
                parts[each.path] = file.layers[layer]
        definition = None if measured is None else measured[layer]
        dims = definition.dims if definition else settings.dims if layer == FEATURES else None
        # The settings `protocol` and `extractor` do not apply to a metric's own network.
        asked = None if definition or layer in settings.metric_networks else settings
        common, mismatches = _common_definition(parts, definition, asked, dims)
        if mismatches and not settings.allow_mismatch:
            mismatches[0].args += (f"pass {option('allow_mismatch', True)} to compare them anyway",)
            raise mismatches[0]
        definitions[layer] = stated = common
        warnings += [each.text for each in mismatches if each.text not in warnings]
        if dims is None:
            dims = next(iter(parts.values())).dims
        path = "" if definition is not None else next(iter(parts), "")
        of_inception = layer == FEATURES and settings.network.extractor == "inception" and dims in INCEPTION_DIMS
        if common is None and settings.protocol is not None and of_inception:
            stated = inception_definition(protocol_named(settings.protocol), dims, INCEPTION_SHA256)
        for metric in metrics:
            metric.check(MetricFacts(settings.network.extractor, settings.dims, stated, dims, path))
            if metric.usual_network and common is not None and common.extractor != metric.usual_network:
                warnings.append(
                    f"{metric.numbers[0].title} uses features of {common.extractor} instead of "
                    f"{metric.usual_network}, its authors' network: it is not comparable with published values"
                )
    return definitions, warnings


def require_layer(
    path: str, statistics: Statistics, layer: str, title: str, with_features: bool, with_order: bool = False
) -> LayerStatistics:
    """One layer of a statistics file, called ``title`` in messages. Checks that it has what is needed."""
    found = statistics.layers.get(layer)
    problem, how = "", "again with `fidtool stats --metrics` and the same metrics"
    if found is None:
        problem = f"{path} has no statistics of the {title}:"
    elif with_features and found.features is None:
        problem = f"{path} has only a mean and a covariance, but this run needs the {title} of each image:"
        how = "again with `fidtool stats IMAGES -o FILE.npz --metrics kid`, which stores them"
    elif with_order and statistics.order is None:
        problem = f"{path} does not have the stored order of its images, in which this run divides them into parts:"
        how = "again with this version"
    if found is None or problem:
        raise InputError(problem, "pass the folder of images instead", f"create the file {how}")
    return found


def _common_definition(
    files: Mapping[str, LayerStatistics], measured: Definition | None, asked: Settings | None, dims: int | None
) -> tuple[Definition | None, list[FidtoolError]]:
    """The definition that all have, and an error for each that has another one or not what the settings ask for."""
    reference, reference_name = measured, "this run"
    mismatches: list[FidtoolError] = []
    protocols = {each.definition.protocol_name for each in files.values() if each.definition is not None}
    for path, statistics in files.items():
        stated = statistics.definition
        if dims is not None and statistics.dims != dims:
            whose = "" if stated is None else f" (of {stated.extractor})"
            raise InputError(
                f"{path} has features of {statistics.dims} dimensions{whose}, but {reference_name} has {dims}; "
                "statistics of different dimensions cannot be compared"
            )
        if reference is None:
            dims, reference_name = statistics.dims, path
        if stated is None:
            continue
        if asked is not None:
            mismatches += _against_request(path, stated, asked)
        if reference is None:
            reference = stated
        elif differences := reference.differences(stated):
            problem = f"{reference_name} and {path} use different protocols ({', '.join(differences)})"
            name = stated.protocol_name
            if measured is None or name in (None, measured.protocol_name) or protocols != {name}:
                mismatches.append(InputError(problem))
            else:
                mismatches.append(InputError(f"{problem}:", f"choose {option('protocol', name)}", setting="protocol"))
    return reference, mismatches


def _against_request(path: str, definition: Definition, settings: Settings) -> list[FidtoolError]:
    if settings.extractor == "inception" and not definition.standard:
        named = option("extractor")
        problem = f"{path} has features of {definition.network}, not of Inception, which {named} requests:"
        return [InputError(problem, f"omit {named}", "pass statistics of Inception", setting="extractor")]
    if settings.protocol is None:
        return []
    wanted = protocol_named(settings.protocol)
    if (definition.resize, definition.ddof) == (wanted.resize, wanted.ddof):
        return []
    problem = f"{path} was computed with the protocol {definition.protocol_name}, not {wanted.name}"
    return [InputError(problem, setting="protocol")]
