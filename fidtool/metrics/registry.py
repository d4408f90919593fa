"""The metrics by name: the built-in ones, and custom ones in user code."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import is_dataclass, replace
from inspect import get_annotations
from pathlib import Path
from typing import Any

from fidtool.errors import InputError, option
from fidtool.features.models.families import NetworkChoice
from fidtool.features.protocol import FEATURES, SPATIAL
from fidtool.metrics.cmmd import CMMD
from fidtool.metrics.fid import FID
from fidtool.metrics.fid_infinity import FIDInfinity
from fidtool.metrics.inception_score import InceptionScore
from fidtool.metrics.kid import KID
from fidtool.metrics.metric import ALL, Metric, Number, keyword
from fidtool.metrics.prdc import PRDC
from fidtool.metrics.sfid import SpatialFID
from fidtool.names import closest, folded, unknown
from fidtool.user_code import NoSourceError, is_code_spec, is_python_file, load
from fidtool.validation import Declared, declared

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

_loaded: dict[str, Metric] = {}
"""Custom metrics by absolute spec, so that their code runs once."""


def metrics_named(spec: str) -> list[Metric]:
    """Return the metrics that one entry of ``--metrics`` selects, with default settings: one, or all built-in ones."""
    if folded(spec) == ALL:
        return [_named(kind(), ALL) for kind in BUILT_IN.values()]
    return [metric_named(spec)]


def metric_named(spec: str) -> Metric:
    """Return a metric with default settings."""
    kinds = {folded(name): kind for name, kind in _all_names().items()}
    if kind := kinds.get(folded(spec)):
        return _named(kind(), kind.name)
    if folded(spec) == ALL:
        raise InputError(
            f"{spec} is not a single metric. It selects each of {', '.join(BUILT_IN)} that can be computed"
        )
    if not is_code_spec(spec):
        raise _unknown_metric(spec)
    path, _, name = spec.rpartition(":")
    place = f"{os.path.abspath(path)}:{name}" if path.endswith(".py") else spec
    if place not in _loaded:
        named = option("metrics", spec)
        try:
            found, source = load(spec)
            metric = found() if isinstance(found, type) else found
            if isinstance(metric, Metric):
                declared(type(metric)), metric.network()  # invalid ones fail here
        except NoSourceError as error:
            raise InputError(f"{error} (from {named})", setting="metrics") from None
        except (Exception, SystemExit) as error:
            reason = " ".join(str(error).split())
            raise InputError(f"{named} failed: {type(error).__name__}: {reason}", setting="metrics") from error
        if not isinstance(metric, Metric):
            problem = f"{named} is a {type(metric).__name__}; it must be a fidtool.Metric"
            raise InputError(problem, setting="metrics")
        check_together([_named(metric, spec, source)])
        _loaded[place] = metric
    return _loaded[place]


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


def _named(metric: Metric, spec: str, source: str = "") -> Metric:
    object.__setattr__(metric, "spec", spec)
    object.__setattr__(metric, "source", source)
    return metric


def spec_of(metric: Metric) -> str:
    """Return the value of ``--metrics`` that selects a metric."""
    kind = type(metric)
    return metric.name if kind in BUILT_IN.values() else metric.spec or f"{kind.__module__}:{kind.__qualname__}"


def by_name(metrics: Iterable[Metric]) -> dict[str, Metric]:
    """Return metrics by name, in the order in which they were requested.

    Where ``all`` selects a metric that is also requested by name or passed as an object, the latter is used.
    """
    chosen: dict[str, Metric] = {}
    for metric in metrics:
        first = chosen.setdefault(metric.name, metric)
        if first.spec == ALL and metric.spec != ALL:
            chosen[metric.name] = metric
        elif first != metric and metric.spec != ALL:
            how = "with different settings" if type(first) is type(metric) else "as two different classes"
            raise InputError(f"the metric {metric.name} is requested twice, {how}", setting="metrics")
    return chosen


def check_together(metrics: Sequence[Metric]) -> None:
    """Refuse custom metrics with an incomplete declaration, and metrics whose names or layers collide."""
    own = [each for each in metrics if type(each) not in BUILT_IN.values() or each.spec not in ("", ALL, each.name)]
    for metric in own:
        if fault := _fault_of(metric):
            named = option("metrics", metric.spec) if metric.spec else type(metric).__name__
            raise InputError(f"{named}: {fault[0]}", *fault[1:], setting="metrics")
    owners: dict[str, str] = {}
    for metric in own:
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


def _is_declared(number: object) -> bool:
    return isinstance(number, Number) and bool(number.name) and number.better in ("lower", "higher")


def _fault_of(metric: Metric) -> tuple[str, ...]:
    """What is wrong with the class of a custom metric, and a remedy; empty if nothing is."""
    kind, name, numbers = type(metric), metric.name, metric.numbers
    if not is_dataclass(kind) or ("__dataclass_fields__" not in vars(kind) and get_annotations(kind)):
        return f"{kind.__name__} is not a dataclass:", "write @dataclass(frozen=True, kw_only=True) above it"
    if not isinstance(name, str) or not re.fullmatch(r"[\w-]+", name):
        return f"{kind.__name__} has no name:", 'write one in its class, such as name = "mind"'
    if not isinstance(numbers, tuple) or not numbers or not all(map(_is_declared, numbers)):
        rule = "write numbers = (fidtool.Number(...),) in its class"
        return f"{name} does not declare its values, each with a name and whether lower or higher is better:", rule
    if len(_names_of(metric)) > len({*_names_of(metric)}):
        return (f"{name} declares a value twice",)
    taken = {given for each in BUILT_IN.values() for number in each.numbers for given in (number.name, number.spread)}
    # With another network, fid is called fd.
    same = [name] if name in BUILT_IN else [each for each in _names_of(metric) if re.sub("^fd", "fid", each) in taken]
    if same:
        return f"{same[0]} is the name of a built-in metric or value:", "choose another name"
    if len({number.layer for number in numbers}) > 1:
        return f"{name} has values of several layers:", "split it into several metrics"
    if isinstance(metric.network(), NetworkChoice) != (metric.layer not in (FEATURES, SPATIAL)):
        return (
            f"{name} needs both or neither of a layer of its own and a network:",
            "name the layer, as in Number(..., layer='mine'), and return fidtool.NetworkChoice(...) from network()",
        )
    return ()


def settings_of_metrics() -> dict[str, tuple[str, Declared]]:
    """Return the settings of the built-in metrics by the names of their flags, with the metrics' names."""
    kinds = BUILT_IN.items()
    return {keyword(kind, field): (name, field) for name, kind in kinds for field in declared(kind).values()}


def by_place(options: object) -> Mapping[str, Any]:
    """Return the values of ``metric_options`` by metric and setting, such as ``mind.directions``."""
    if options is None:
        return {}
    if not isinstance(options, Mapping) or not all(isinstance(place, str) and "." in place for place in options):
        problem = f"{option('metric_options')} must be a dictionary such as {{'kid.subset_size': 500}}, not {options!r}"
        raise InputError(problem, setting="metric_options")
    return options


def refuse_given_twice(arguments: Mapping[str, Any]) -> None:
    """Refuse a metric's setting that is set twice: as a keyword, in ``metric_options`` or in an object.

    Args:
        arguments: the keywords of `fidtool.compute` that were passed, with their values, and flags of metrics.
    """
    metrics, options = arguments.get("metrics", ()), by_place(arguments.get("metric_options"))
    for metric in metrics if isinstance(metrics, Sequence) else ():
        kind = type(metric)
        for name, field in declared(kind).items() if isinstance(metric, Metric) else ():
            keywords = [keyword(kind, field)] if kind in BUILT_IN.values() else []
            for each in (*keywords, f"{kind.name}.{name}"):
                if each in arguments or each in options:
                    problem = f"{option(each)} is set in addition to {kind.__name__}(...) in {option('metrics')}:"
                    raise InputError(problem, "set it there", setting=each)
    for flag, (owner, field) in settings_of_metrics().items():
        if flag in arguments and (place := f"{owner}.{field.name}") in options:
            problem = f"{option(flag)} and {option(place)} are the same setting:"
            raise InputError(problem, "set one of them", setting=place)


def with_options(metric: Metric, options: Mapping[str, Any]) -> Metric:
    """Return the metric with changed settings.

    Args:
        options: values by setting; strings are parsed as the setting's type.
    """
    if not options:
        return metric
    fields = declared(type(metric))
    for name in options:
        if name not in fields:
            known = f"there are {', '.join(fields)}" if fields else "it has none"
            problem = f"the metric {metric.name} has no setting {name!r}; {known}"
            raise InputError(problem, setting="metric_options")
    values = {}
    for name, value in options.items():
        field = fields[name]._replace(name=f"{metric.name}.{name}")
        values[name] = field.checked(field.parsed(value, option), option)
    return with_settings(metric, values)


def with_settings(metric: Metric, values: Mapping[str, Any]) -> Metric:
    """Return the metric with changed settings and the same `Metric.spec` and `Metric.source`."""
    return _named(replace(metric, **values), metric.spec, metric.source)  # type: ignore[type-var]


def in_order(metrics: Iterable[Metric]) -> list[Metric]:
    """Return metrics in the order in which they are computed and listed: built-in ones first."""
    places = {name: place for place, name in enumerate(BUILT_IN)}
    return sorted(metrics, key=lambda metric: places.get(metric.name, len(places)))
