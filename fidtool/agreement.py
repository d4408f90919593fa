"""May these statistics be compared? Their protocols must be the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fidtool.errors import InputError
from fidtool.features.protocol import (
    CMMD_EXTRACTOR,
    DEFAULT_PROTOCOL,
    FEATURES,
    INCEPTION,
    INCEPTION_DIMS,
    PROTOCOLS,
    SPATIAL,
    Definition,
    is_published,
    protocol_named,
)
from fidtool.metrics.cmmd import CMMD
from fidtool.metrics.registry import in_order
from fidtool.needs import SetNeeds, layer_of
from fidtool.settings import Settings
from fidtool.statistics.statistics_file import LayerStatistics, Statistics

_TITLES = {FEATURES: "features", SPATIAL: "spatial features (of sFID)"}


def with_settings_of(files: Mapping[str, Statistics], config: Settings) -> tuple[Settings, str]:
    """The settings of a run that measures images, completed by what its statistics files say.

    Args:
        files: the statistics files by path.
        config: what was asked for, which always counts.

    Returns:
        The settings, and a line that says what was taken from which file; empty if nothing was.

    Raises:
        InputError: the files have features of different dimensions, or of a network whose code would have to be run, or
            a metric does not go with what they say.
    """
    _refuse_other_dims(files)
    taken = inception_of(files, config)
    if not taken and (definitions := _definitions(files)):
        taken = _network_of(definitions, config)
    if not taken:
        return config, ""
    line = told_from(files, taken)
    try:
        return replace(config, **taken), line
    except InputError as error:
        raise InputError(f"{error} ({line})") from None


def inception_of(files: Mapping[str, Statistics], config: Settings) -> dict[str, Any]:
    """What all files say of Inception's features that is not the default, and that nobody has asked for otherwise.

    Files that do not say of which network they are count as Inception's, as in `fidtool.labels`.
    """
    definitions = _definitions(files).values()
    if config.network.extractor != "inception" or any(each.extractor != INCEPTION for each in definitions):
        return {}
    agreed: dict[str, set[Any]] = {
        "dims": {each.dims for each in files.values()},
        "protocol": {each.protocol_name for each in definitions},
    }
    others: dict[str, set[Any]] = {
        "dims": {*INCEPTION_DIMS} - {max(INCEPTION_DIMS)},
        "protocol": {*PROTOCOLS} - {DEFAULT_PROTOCOL},
    }
    return {
        name: next(iter(values))
        for name, values in agreed.items()
        if len(values) == 1 and values <= others[name] and getattr(config, name) is None
    }


def told_from(files: Mapping[str, Statistics], taken: Mapping[str, Any]) -> str:
    """A line that says what was taken from files."""
    first, *others = _definitions(files) or files
    more = f" and {others[0] if len(others) == 1 else f'{len(others)} other files'}" if others else ""
    return f"taken from {first}{more}: {' and '.join(f'{name} {value}' for name, value in taken.items())}"


def _definitions(files: Mapping[str, Statistics]) -> dict[str, Definition]:
    return {path: each.definition for path, each in files.items() if each.definition is not None}


def _refuse_other_dims(files: Mapping[str, Statistics]) -> None:
    paths = {each.dims: path for path, each in files.items()}
    if len(paths) > 1:
        (dims, path), (other_dims, other), *_ = paths.items()
        raise InputError(
            f"{path} has features of {dims} dimensions and {other} of {other_dims}; statistics of different dimensions "
            "cannot be compared"
        )


def _network_of(definitions: Mapping[str, Definition], config: Settings) -> dict[str, Any]:
    """The network, other than Inception, that all files are of and that nobody has asked for otherwise."""
    path, definition = next(iter(definitions.items()))
    asked = config.extractor is not None or config.dims is not None or config.protocol is not None
    if asked or definition.extractor == INCEPTION:
        return {}
    if len({each.extractor for each in definitions.values()}) > 1:
        return {}
    if is_published(definition.extractor):
        # Under the name that CMMD's network has by default, the two are one.
        usual = definition.extractor == CMMD_EXTRACTOR
        return {"extractor": CMMD.extractor if usual else definition.extractor}
    if config.allow_mismatch:
        return {}
    raise InputError(
        f"{path} has features of {definition.extractor}, a network of your own, whose code is not run because a file "
        f"names it: pass --extractor {definition.network}, with the path to it"
    )


def require_layer(path: str, statistics: Statistics, layer: str, needed: SetNeeds) -> LayerStatistics:
    """One layer of a statistics file.

    Args:
        path: the file's, for the message.
        statistics: what is in it.
        layer: which features.
        needed: what is needed of the set.

    Raises:
        InputError: the file does not have them.
    """
    found = statistics.layers.get(layer)
    advice = "give the folder of images, or make the file anew with `fidtool stats --metrics` and the same metrics"
    if found is None:
        raise InputError(f"{path} has no statistics of the {_TITLES.get(layer, 'features of CMMD')}: {advice}")
    if layer in needed.features and found.features is None:
        raise InputError(
            f"{path} holds a mean and a covariance, and the features of each image are needed (for the --metrics, "
            "--uncertainty or --influence asked for): give the folder of images, or make the file anew with "
            "`fidtool stats --metrics fid,kid`, which keeps them"
        )
    return found


def unusual_networks(settings: Settings, definitions: Mapping[str, Definition | None]) -> list[str]:
    """A warning per metric whose features are not those of its authors' network."""
    found = []
    for metric in in_order(settings.chosen):
        definition = definitions.get(layer_of(metric, settings))
        if metric.usual_network and definition is not None and definition.extractor != metric.usual_network:
            found.append(
                f"{metric.numbers[0].title} is of the features of {definition.extractor} and not of "
                f"{metric.usual_network}, its authors' network: it compares with no published number"
            )
    return found


def common_definition(
    files: Mapping[str, LayerStatistics], measured: Definition | None, config: Settings, wanted_dims: int | None
) -> tuple[Definition | None, list[str]]:
    """Checks one layer of statistics files against what is measured and against each other, before any image is read.

    Args:
        files: the layer's statistics by path.
        measured: the definition of the sets that go through the network; None where there is none.
        config: for ``protocol`` and ``allow_mismatch``.
        wanted_dims: what ``dims`` asks for in this layer.

    Returns:
        The definition all agree on (None where nobody states one), and the mismatches that ``allow_mismatch`` let
        pass, a sentence each.

    Raises:
        InputError: other dimensions, or another protocol without ``allow_mismatch``.
    """
    reference, reference_name = measured, "this run"
    mismatches: list[str] = []
    dims = wanted_dims if measured is None else measured.dims
    for path, statistics in files.items():
        if dims is not None and statistics.dims != dims:
            whose = "" if statistics.definition is None else f" (of {statistics.definition.extractor})"
            raise InputError(
                f"{path} has features of {statistics.dims} dimensions{whose} and {reference_name} of {dims}; "
                "statistics of different dimensions cannot be compared"
            )
        if reference is None:
            dims, reference_name = statistics.dims, path
        if statistics.definition is None:
            continue
        if measured is None:
            mismatches += _against_request(path, statistics.definition, config)
        if reference is None:
            reference = statistics.definition
        elif differences := reference.differences(statistics.definition):
            mismatches.append(
                f"{reference_name} and {path} follow different protocols ({', '.join(differences)})"
                + _suggestion(statistics.definition, measured, files)
            )
    if mismatches and not config.allow_mismatch:
        other = "or pass" if ": " in mismatches[0] else "pass"
        raise InputError(f"{mismatches[0]}; {other} --allow-mismatch to compare them all the same")
    return reference, mismatches


def _against_request(path: str, definition: Definition, config: Settings) -> list[str]:
    """Without images to measure, ``--protocol`` and ``--extractor inception`` are claims about the files."""
    if config.extractor == "inception" and not definition.standard:
        return [
            f"{path} has features of {definition.network}, not of Inception, which --extractor asks for: leave "
            "--extractor out, or give statistics of Inception"
        ]
    if config.protocol is None:
        return []
    wanted = protocol_named(config.protocol)
    if (definition.resize, definition.ddof) == (wanted.resize, wanted.ddof):
        return []
    return [f"{path} was computed with the protocol {definition.protocol_name}, not {wanted.name}"]


def _suggestion(definition: Definition, measured: Definition | None, files: Mapping[str, LayerStatistics]) -> str:
    name = definition.protocol_name
    if measured is None or name is None or name == measured.protocol_name:
        return ""
    said = {each.definition.protocol_name for each in files.values() if each.definition is not None}
    return f": choose --protocol {name}" if said == {name} else ""
