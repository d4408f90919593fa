"""Checks that the statistics of a run are comparable, and completes its settings from its statistics files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
from fidtool.pipeline.sets import OpenedSet, SetNeeds, set_needs
from fidtool.settings import Settings
from fidtool.statistics.set_statistics import LayerStatistics, Statistics

_TITLES = {FEATURES: "features", SPATIAL: "spatial features (of sFID)"}
Definitions = Mapping[str, Definition | None]
"""Definitions of a run's features by layer; None if only files of unknown protocol are compared."""


def complete_settings(files: Mapping[str, Statistics], settings: Settings) -> tuple[Settings, str]:
    """Completes the settings of a run with images from its statistics files. A custom network is never run."""
    taken = _of_inception(files, settings)
    if not taken and (definitions := _definitions(files)):
        taken = _network_of(definitions, settings)
    usual = replace(settings, protocol=taken.get("protocol", settings.protocol)).rounding
    match [*{*roundings(files).values()}]:
        case [how] if how != usual and settings.float_to_byte is None and settings.floats is not None:
            taken |= {"float_to_byte": how}
    if not taken:
        return settings, ""
    line = _taken_from(files, taken)
    try:
        return replace(settings, **taken), line
    except InputError as error:
        error.note += f" ({line})"
        raise


def roundings(files: Mapping[str, Statistics]) -> dict[str, str]:
    """How floats became bytes, by the paths of the files that say so."""
    configs = {path: file.config or {} for path, file in files.items()}
    return {path: str(config["float_to_byte"]) for path, config in configs.items() if "float_to_byte" in config}


def settings_of_files(files: Mapping[str, Statistics], settings: Settings) -> str:
    """A line that says what a run without images takes from its statistics files; empty for the defaults."""
    taken = _of_inception(files, settings)
    return _taken_from(files, taken) if taken else ""


def _of_inception(files: Mapping[str, Statistics], settings: Settings) -> dict[str, Any]:
    """The dims and protocol of Inception that all files share, unless they are the defaults or set by the user.

    Files that do not name their network count as Inception's, as in `fidtool.labels`.
    """
    definitions = _definitions(files).values()
    if settings.network.extractor != "inception" or any(each.extractor != INCEPTION for each in definitions):
        return {}
    stated: dict[str, set[Any]] = {
        "dims": {each.dims for each in files.values()},
        "protocol": {each.protocol_name for each in definitions},
    }
    others: dict[str, set[Any]] = {
        "dims": {*INCEPTION_DIMS} - {max(INCEPTION_DIMS)},
        "protocol": {*PROTOCOLS} - {DEFAULT_PROTOCOL},
    }
    return {
        name: next(iter(values))
        for name, values in stated.items()
        if len(values) == 1 and values <= others[name] and getattr(settings, name) is None
    }


def _taken_from(files: Mapping[str, Statistics], taken: Mapping[str, Any]) -> str:
    first, *others = _definitions(files) or files
    more = f" and {others[0] if len(others) == 1 else f'{len(others)} other files'}" if others else ""
    if origin := files[first].origin:
        first = f"{first}, a file of {origin}{',' if more else ''}"
    return f"taken from {first}{more}: {' and '.join(f'{name} {value}' for name, value in taken.items())}"


def _definitions(files: Mapping[str, Statistics]) -> dict[str, Definition]:
    return {path: each.definition for path, each in files.items() if each.definition is not None}


def _network_of(definitions: Mapping[str, Definition], settings: Settings) -> dict[str, Any]:
    path, definition = next(iter(definitions.items()))
    asked = settings.extractor is not None or settings.dims is not None or settings.protocol is not None
    if asked or definition.extractor == INCEPTION:
        return {}
    if len({each.extractor for each in definitions.values()}) > 1:
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
    sets: Iterable[OpenedSet], settings: Settings, measured: Definitions | None
) -> tuple[dict[str, Definition | None], list[str]]:
    """Checks statistics files against the run's networks and against each other, before any image is read.

    Returns the definitions of the run's features, by layer, and warnings for all comparisons.
    """
    files = {each.path: (each, each.content.file) for each in sets if each.content.file is not None}
    definitions: dict[str, Definition | None] = {}
    warnings: list[str] = []
    for layer in set_needs(settings, real=True, fake=True).layers:
        metrics = [metric for metric in settings.chosen if settings.layer_of(metric) == layer]
        title = _TITLES.get(layer) or f"features of {metrics[0].numbers[0].title}"
        parts = {}
        for path, (each, file) in files.items():
            if each.holds != "both":
                parts[path] = require_layer(path, file, layer, title, set_needs(settings, each.real, each.fake))
            elif layer in file.layers:
                parts[path] = file.layers[layer]
        definition = None if measured is None else measured[layer]
        dims = settings.dims if layer == FEATURES else None
        # The settings `protocol` and `extractor` do not apply to a metric's own network.
        own = layer in settings.metric_networks
        asked = replace(settings, protocol=None, extractor=None) if own else settings
        definitions[layer], mismatches = _common_definition(parts, definition, asked, dims)
        warnings += [line for line in mismatches if line not in warnings]
        first, statistics = next(iter(parts.items()), ("", None))
        if definition is not None:
            first, dims = "", definition.dims
        elif statistics is not None:
            dims = statistics.dims
        assert dims is not None
        stated = definitions[layer] or (_requested(settings, dims) if layer == FEATURES else None)
        facts = MetricFacts(settings.network.extractor, settings.dims, stated, dims, first)
        for metric in metrics:
            metric.check(facts)
    return definitions, [*warnings, *_unusual_networks(settings, definitions)]


def _requested(settings: Settings, dims: int) -> Definition | None:
    """The definition of features of files that state none, if the protocol was requested; else None."""
    if settings.protocol is None or settings.network.extractor != "inception" or dims not in INCEPTION_DIMS:
        return None
    return inception_definition(protocol_named(settings.protocol), dims, INCEPTION_SHA256)


def require_layer(path: str, statistics: Statistics, layer: str, title: str, needs: SetNeeds) -> LayerStatistics:
    """One layer of a statistics file, called ``title`` in messages. Checks that it has what is needed."""
    found = statistics.layers.get(layer)
    if found is None:
        raise InputError(
            f"{path} has no statistics of the {title}:",
            "pass the folder of images instead",
            "create the file again with `fidtool stats --metrics` and the same metrics",
        )
    if layer in needs.features and found.features is None:
        raise InputError(
            f"{path} has only a mean and a covariance, but this run needs the {title} of each image:",
            "pass the folder of images instead",
            "create the file again with `fidtool stats IMAGES -o FILE.npz --metrics kid`, which stores them",
        )
    if needs.order and statistics.order is None:
        raise InputError(
            f"{path} does not have the stored order of its images, in which this run divides them into parts:",
            "pass the folder of images instead",
            "create the file again with this version",
        )
    return found


def _unusual_networks(settings: Settings, definitions: Definitions) -> list[str]:
    found = []
    for metric in settings.chosen:
        definition = definitions.get(settings.layer_of(metric))
        if metric.usual_network and definition is not None and definition.extractor != metric.usual_network:
            found.append(
                f"{metric.numbers[0].title} uses features of {definition.extractor} instead of "
                f"{metric.usual_network}, its authors' network: it is not comparable with published values"
            )
    return found


def _common_definition(
    files: Mapping[str, LayerStatistics], measured: Definition | None, settings: Settings, wanted_dims: int | None
) -> tuple[Definition | None, list[str]]:
    reference, reference_name = measured, "this run"
    mismatches: list[FidtoolError] = []
    dims = wanted_dims if measured is None else measured.dims
    for path, statistics in files.items():
        if dims is not None and statistics.dims != dims:
            whose = "" if statistics.definition is None else f" (of {statistics.definition.extractor})"
            raise InputError(
                f"{path} has features of {statistics.dims} dimensions{whose}, but {reference_name} has {dims}; "
                "statistics of different dimensions cannot be compared"
            )
        if reference is None:
            dims, reference_name = statistics.dims, path
        if statistics.definition is None:
            continue
        if measured is None:
            mismatches += _against_request(path, statistics.definition, settings)
        if reference is None:
            reference = statistics.definition
        elif differences := reference.differences(statistics.definition):
            problem = f"{reference_name} and {path} use different protocols ({', '.join(differences)})"
            mismatches.append(_different_protocols(problem, statistics.definition, measured, files))
    if mismatches and not settings.allow_mismatch:
        mismatches[0].args += (f"pass {option('allow_mismatch', True)} to compare them anyway",)
        raise mismatches[0]
    return reference, [each.text for each in mismatches]


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


def _different_protocols(
    problem: str, definition: Definition, measured: Definition | None, files: Mapping[str, LayerStatistics]
) -> FidtoolError:
    name = definition.protocol_name
    stated = {each.definition.protocol_name for each in files.values() if each.definition is not None}
    if measured is None or name in (None, measured.protocol_name) or stated != {name}:
        return InputError(problem)
    return InputError(f"{problem}:", f"choose {option('protocol', name)}", setting="protocol")
