"""The metrics by name: the built-in ones, and custom ones in user code."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import is_dataclass, replace
from inspect import get_annotations
from pathlib import Path
from typing import Any, NamedTuple

from fidtool.errors import InputError, message_of, option
from fidtool.features.models.families import NetworkChoice
from fidtool.features.protocol import FEATURES, SPATIAL
from fidtool.metrics.cmmd import CMMD
from fidtool.metrics.fid import FID
from fidtool.metrics.fid_infinity import FIDInfinity
from fidtool.metrics.inception_score import InceptionScore
from fidtool.metrics.kid import KID
from fidtool.metrics.metric import ALL, Metric, Number
from fidtool.metrics.prdc import PRDC
from fidtool.metrics.sfid import SpatialFID
from fidtool.names import closest, folded, unknown
from fidtool.user_code import NoSourceError, is_code_spec, is_python_file, load
from fidtool.validation import Setting, declared

BUILT_IN: dict[str, type[Metric]] = {
    kind.name: kind for kind in (FID, KID, InceptionScore, PRDC, SpatialFID, FIDInfinity, CMMD)
}
"""The built-in metrics by name, in the order in which they are computed and listed. To add one, add a file and its
class here; export it in the package's ``__init__`` as ``fidtool.NAME`` and add it to the table in the README."""
ABOUT_ALL = (
    "Each built-in metric that can be computed with these sets and this installation. For each metric that is omitted, "
    "the reason is printed. Nothing is downloaded."
)
"""What `ALL` selects, for lists of metrics."""
NUMBERS: dict[str, Number] = {number.name: number for kind in BUILT_IN.values() for number in kind.numbers}


class _Loaded(NamedTuple):
    """A custom metric, the value of ``--metrics`` that names it, and the same with the start of its file's SHA-256."""

    metric: Metric
    spec: str
    source: str


_loaded: dict[str, _Loaded] = {}
"""Custom metrics by absolute spec, so that their code runs once."""


def metric_named(spec: str) -> Metric:
    """Return a metric with default settings."""
    kinds = {folded(name): kind for name, kind in _all_names().items()}
    if kind := kinds.get(folded(spec)):
        return kind()
    if folded(spec) == ALL:
        raise InputError(
            f"{spec} is not a single metric. It selects each of {', '.join(BUILT_IN)} that can be computed"
        )
    if not is_code_spec(spec):
        raise _unknown_metric(spec)
    path, _, name = spec.rpartition(":")
    place = f"{os.path.abspath(path)}:{name}" if path.endswith(".py") else spec
    if place not in _loaded:
        _loaded[place] = _load(spec)
    return _loaded[place].metric


def _load(spec: str) -> _Loaded:
    named = option("metrics", spec)
    try:
        found, source = load(spec)
        metric = found() if isinstance(found, type) else found
        if isinstance(metric, Metric):
            declared(type(metric)), metric.network()  # invalid ones fail here
    except NoSourceError as error:
        raise InputError(f"{error} (from {named})", setting="metrics") from None
    except (Exception, SystemExit) as error:
        reason = message_of(error)
        raise InputError(f"{named} failed: {type(error).__name__}: {reason}", setting="metrics") from error
    if not isinstance(metric, Metric):
        problem = f"{named} is a {type(metric).__name__}; it must be a fidtool.Metric"
        raise InputError(problem, setting="metrics")
    _check_declaration(metric, named)
    return _Loaded(metric, spec, source)


def is_name(text: str) -> bool:
    """Whether a text is ``all`` or a name of a built-in metric."""
    return folded(text) in {ALL, *map(folded, _all_names())}


def _all_names() -> dict[str, type[Metric]]:
    """The built-in metrics by each name that is understood."""
    return {
        name: kind
        for kind in BUILT_IN.values()
        for name in (kind.name, *(number.name for number in kind.numbers), *kind.other_names)
    }


def _unknown_metric(spec: str) -> InputError:
    if is_python_file(spec):
        file = spec.removesuffix(":")
        if not Path(file).is_file():
            return InputError(f"no file {file} (from {option('metrics', spec)})", setting="metrics")
        problem = f"{option('metrics', spec)} needs the name of a metric in this file:"
        return InputError(problem, f"{file}:NAME", setting="metrics")
    names = {name: name for name in [*BUILT_IN, *NUMBERS, ALL]}
    names |= {name: kind.name for name, kind in _all_names().items() if name not in names}
    close = dict.fromkeys(names[name] for name in closest(spec, names))
    return InputError(unknown("metric", spec, [*close], ", ".join([*BUILT_IN, ALL])), setting="metrics")


def spec_of(metric: Metric) -> str:
    """Return the value of ``--metrics`` that selects a metric."""
    kind = type(metric)
    return metric.name if kind in BUILT_IN.values() else _found(kind)[0] or f"{kind.__module__}:{kind.__qualname__}"


def source_of(metric: Metric) -> str:
    """Return the file and object of a metric that ``--metrics`` named, with the file's SHA-256; or empty."""
    return _found(type(metric))[1]


def _found(kind: type[Metric]) -> tuple[str, str]:
    return next(((each.spec, each.source) for each in _loaded.values() if type(each.metric) is kind), ("", ""))


def key_of(kind: type[Metric], setting: str) -> str:
    """Return the name of a metric's setting in the record of a run; that of a built-in metric's flag is the same.

    ``kid_subset_size`` for a built-in metric, ``mind.directions`` for a custom one.
    """
    if kind not in BUILT_IN.values():
        return f"{kind.name}.{setting}"
    flag = declared(kind)[setting].flag or f"{kind.name}-{setting}"
    return flag.removeprefix("--").replace("-", "_")


def metric_settings() -> dict[str, tuple[type[Metric], Setting]]:
    """Return the settings of the built-in metrics by `key_of`, with the metrics."""
    return {key_of(kind, name): (kind, each) for kind in BUILT_IN.values() for name, each in declared(kind).items()}


def key_named(name: str) -> str:
    """Return `key_of` a setting that messages name as `Metric.named` does; any other name unchanged."""
    called, _, setting = name.removesuffix(")").partition("(")
    for kind in (*BUILT_IN.values(), *(type(each.metric) for each in _loaded.values())):
        if kind.__name__ == called and setting in declared(kind):
            return key_of(kind, setting)
    return name


def requested(
    metrics: str | Iterable[str | Metric], values: Mapping[str, Any] | None = None
) -> tuple[tuple[Metric, ...], frozenset[str]]:
    """Return the requested metrics in their order, and the names of those that only ``all`` selected.

    Args:
        metrics: as the setting of this name. A metric that is also requested by name or as an object replaces that of
            ``all``.
        values: settings of the metrics that are requested by name, by `key_of`. Strings are parsed.
    """
    chosen: dict[str, Metric] = {}
    of_all: set[str] = set()
    for each in _listed(metrics):
        by_all = isinstance(each, str) and folded(each) == ALL
        for metric in [kind() for kind in BUILT_IN.values()] if by_all else [_metric(each)]:
            used = metric if isinstance(each, Metric) else _with_values(metric, values or {})
            if used.name not in chosen or (used.name in of_all and not by_all):
                chosen[used.name] = used
                (of_all.add if by_all else of_all.discard)(used.name)
            elif chosen[used.name] != used and not by_all:
                how = "with different settings" if type(chosen[used.name]) is type(used) else "as two different classes"
                raise InputError(f"the metric {used.name} is requested twice, {how}", setting="metrics")
    if not chosen:
        raise InputError(f"{option('metrics')} is empty; the metrics are {', '.join(BUILT_IN)}", setting="metrics")
    _check_together([*chosen.values()])
    return tuple(chosen.values()), frozenset(of_all)


def _listed(metrics: object) -> list[Any]:
    try:
        return [each.strip() for each in metrics.split(",")] if isinstance(metrics, str) else [*metrics]  # type: ignore[misc]
    except TypeError:
        problem = f"{option('metrics')} must be names of metrics, not {metrics!r}"
        raise InputError(problem, setting="metrics") from None


def _metric(each: object) -> Metric:
    if isinstance(each, type):
        raise InputError(f"{option('metrics')} has a class:", f"write {each.__name__}()", setting="metrics")
    if not isinstance(each, Metric):
        return metric_named(str(each).strip())
    _check_declaration(each, type(each).__name__)
    return each


def _with_values(metric: Metric, values: Mapping[str, Any]) -> Metric:
    """Return the metric with those of the values, by `key_of`, that are its settings."""
    found = {}
    for name, each in declared(type(metric)).items():
        if (key := key_of(type(metric), name)) in values:
            value = each.parsed(values[key], lambda name: option(metric.named(name)))
            found[name] = each.checked(value, lambda name: option(metric.named(name)))
    return replace(metric, **found) if found else metric  # type: ignore[type-var]


def _check_together(metrics: Sequence[Metric]) -> None:
    """Refuse metrics whose values or layers collide."""
    owners: dict[str, str] = {}
    for metric in metrics:
        for name in _names_of(metric):
            if (other := owners.setdefault(name, metric.name)) != metric.name:
                problem = f"the metrics {other} and {metric.name} both return a value {name}:"
                raise InputError(problem, "rename one of them", setting="metrics")
    networks = {metric.layer: (metric.name, network) for metric in metrics if (network := metric.network())}
    for metric in metrics:
        twin, network = networks.get(metric.layer, ("", None))
        if network != metric.network():
            problem = f"the metrics {metric.name} and {twin} use different networks for the layer {metric.layer!r}:"
            raise InputError(problem, "choose another layer for the values of one of them", setting="metrics")


def _names_of(metric: Metric) -> list[str]:
    """Names of a metric's values and of their spreads."""
    return [name for number in metric.numbers for name in (number.name, number.spread) if name]


def _check_declaration(metric: Metric, named: str) -> None:
    """Refuse a custom metric whose class is incomplete or has the name of a built-in one."""
    kind, name, numbers = type(metric), metric.name, metric.numbers
    if kind in BUILT_IN.values():
        return
    fault: tuple[str, str] | None = None
    if not is_dataclass(kind) or ("__dataclass_fields__" not in vars(kind) and get_annotations(kind)):
        fault = f"{kind.__name__} is not a dataclass:", "write @dataclass(frozen=True, kw_only=True) above it"
    elif not name:
        fault = f"{kind.__name__} has no name:", 'write one in its class, such as name = "mind"'
    elif not numbers or not all(isinstance(number, Number) for number in numbers):
        fault = f"{name} does not declare its values:", "write numbers = (fidtool.Number(...),) in its class"
    elif isinstance(metric.network(), NetworkChoice) != (metric.layer not in (FEATURES, SPATIAL)):
        fault = (
            f"{name} needs both or neither of a layer of its own and a network:",
            "name the layer, as in Number(..., layer='mine'), and return fidtool.NetworkChoice(...) from network()",
        )
    else:
        taken = {*BUILT_IN, *(each for built_in in BUILT_IN.values() for each in _names_of(built_in()))}
        # With another network, fid is called fd.
        if same := [each for each in (name, *_names_of(metric)) if re.sub("^fd", "fid", each) in taken]:
            fault = f"{same[0]} is the name of a built-in metric or value:", "choose another name"
    if fault:
        raise InputError(f"{named}: {fault[0]}", fault[1], setting="metrics")


def in_order(metrics: Iterable[Metric]) -> list[Metric]:
    """Return metrics in the order in which they are computed and listed: built-in ones first."""
    places = {name: place for place, name in enumerate(BUILT_IN)}
    return sorted(metrics, key=lambda metric: places.get(metric.name, len(places)))
