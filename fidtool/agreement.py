"""May these statistics be compared? Their protocols must be the same."""

from __future__ import annotations

from collections.abc import Mapping

from fidtool.config import Config
from fidtool.errors import InputError
from fidtool.features.protocol import (
    CMMD_EXTRACTOR,
    FEATURES,
    INCEPTION,
    INCEPTION_DIMS,
    SPATIAL,
    Definition,
    protocol_named,
)
from fidtool.metrics.needs import FEWEST_TO_EXTRAPOLATE, embedding_layer
from fidtool.statistics.measured import layer_of
from fidtool.statistics.store import Statistics

_TITLES = {FEATURES: "features", SPATIAL: "spatial features (of sFID)"}


def require_layer(path: str, statistics: Statistics, layer: str, kept: bool) -> Statistics:
    """One layer of a statistics file.

    Args:
        path: the file's, for the message.
        statistics: what is in it.
        layer: which features.
        kept: each image's are needed, and not only their mean and covariance.

    Raises:
        InputError: the file does not have them.
    """
    found = layer_of(statistics, layer)
    advice = "give the folder of images, or make the file anew with `fidtool stats --metrics` and the same metrics"
    if found is None:
        raise InputError(f"{path} has no statistics of the {_TITLES.get(layer, 'features of CMMD')}: {advice}")
    if kept and found.features is None:
        raise InputError(
            f"{path} holds a mean and a covariance, and the features of each image are needed (for the --metrics, "
            "--uncertainty or --influence asked for): give the folder of images, or make the file anew with "
            "`fidtool stats --metrics fid,kid`, which keeps them"
        )
    return found


def check_classifiable(
    config: Config, layer: str, definition: Definition | None, files: Mapping[str, Statistics]
) -> None:
    """Refuses features that Inception's classifier was not made for, where the Inception Score is asked for.

    Raises:
        InputError: naming the network they are of.
    """
    if "is" not in config.metrics or layer != FEATURES:
        return
    if definition is None:
        raise InputError(
            f"the Inception Score needs features of Inception, and {next(iter(files))} does not say of which network "
            "its features are: give the folder of images"
        )
    if definition.extractor != INCEPTION or definition.dims != max(INCEPTION_DIMS):
        raise InputError(
            f"the Inception Score needs Inception's {max(INCEPTION_DIMS)} features, not the {definition.dims} of "
            f"{definition.extractor}: leave out is of --metrics"
        )


def check_extrapolable(config: Config, layer: str, dims: int) -> None:
    """Refuses features of which FID-infinity's smallest subsets have a singular covariance.

    Raises:
        InputError: naming the dimensions.
    """
    if "fid-infinity" in config.metrics and layer == FEATURES and dims >= FEWEST_TO_EXTRAPOLATE:
        raise InputError(
            f"FID-infinity extrapolates from subsets of {FEWEST_TO_EXTRAPOLATE} images, which must be more than the "
            f"features' dimensions, {dims}: take a smaller network, or leave fid-infinity out of --metrics"
        )


def other_cmmd(config: Config, definitions: Mapping[str, Definition | None]) -> list[str]:
    """A doubt where CMMD's features are not those of its authors' network."""
    definition = definitions.get(embedding_layer(config))
    if "cmmd" not in config.metrics or definition is None or definition.extractor == CMMD_EXTRACTOR:
        return []
    return [
        f"CMMD is of the features of {definition.extractor} and not of {CMMD_EXTRACTOR}, its authors' network: it "
        "compares with no published number"
    ]


def common_definition(
    files: Mapping[str, Statistics], measured: Definition | None, config: Config, wanted_dims: int | None
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
                + _suggestion(statistics.definition, measured)
            )
    if mismatches and not config.allow_mismatch:
        raise InputError(f"{mismatches[0]}; or pass --allow-mismatch to compare them all the same")
    return reference, mismatches


def _against_request(path: str, definition: Definition, config: Config) -> list[str]:
    """Without images to measure, ``--protocol`` is a claim about the files."""
    if config.protocol is None:
        return []
    wanted = protocol_named(config.protocol)
    if (definition.resize, definition.ddof) == (wanted.resize, wanted.ddof):
        return []
    return [f"{path} was computed with the protocol {definition.protocol_name}, not {wanted.name}"]


def _suggestion(definition: Definition, measured: Definition | None) -> str:
    name = definition.protocol_name
    if measured is None or name is None or name == measured.protocol_name:
        return ""
    return f": choose --protocol {name}"
