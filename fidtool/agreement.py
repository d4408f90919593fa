"""May these statistics be compared? Their protocols must be the same."""

from __future__ import annotations

from collections.abc import Mapping

from fidtool.config import Config
from fidtool.errors import InputError
from fidtool.features.protocol import Definition, protocol_named
from fidtool.statistics.store import Statistics


def common_definition(
    files: Mapping[str, Statistics], measured: Definition | None, config: Config
) -> tuple[Definition | None, list[str]]:
    """Checks statistics files against what is measured and against each other, before any image is read.

    Args:
        files: statistics files by path.
        measured: the definition of the sets that go through the network; None where there is none.
        config: for ``protocol``, ``dims`` and ``allow_mismatch``.

    Returns:
        The definition all agree on (None where nobody states one), and the mismatches that ``allow_mismatch`` let
        pass, a sentence each.

    Raises:
        InputError: other dimensions, or another protocol without ``allow_mismatch``.
    """
    reference, reference_name = measured, "this run"
    mismatches: list[str] = []
    dims = config.dims if measured is None else measured.dims
    for path, statistics in files.items():
        if dims is not None and statistics.dims != dims:
            raise InputError(
                f"{path} has features of {statistics.dims} dimensions and {reference_name} of {dims}; "
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
