"""The metrics by name: fidtool's own, and those in code of yours. Imports no torch."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import is_dataclass, replace
from inspect import get_annotations
from typing import Any

from fidtool.errors import InputError, option
from fidtool.features.models.families import NetworkChoice
from fidtool.features.protocol import FEATURES, SPATIAL
from fidtool.metrics.cmmd import CMMD
from fidtool.metrics.fid import FID
from fidtool.metrics.fid_infinity import FIDInfinity
from fidtool.metrics.inception_score import InceptionScore
from fidtool.metrics.kid import KID
from fidtool.metrics.metric import Metric, Number, keyword
from fidtool.metrics.prdc import PRDC
from fidtool.metrics.sfid import SpatialFID
from fidtool.user_code import NoSourceError, is_place_in_code, load
from fidtool.validation import declared

BUILT_IN: dict[str, type[Metric]] = {
    kind.name: kind for kind in (FID, KID, InceptionScore, PRDC, SpatialFID, FIDInfinity, CMMD)
}
"""By name, in the order in which they are computed and listed. A new one is a file and a place in this line; for
`fidtool.NAME` it also stands in the package's ``__init__``, and the README's table names it."""
NUMBERS: dict[str, Number] = {number.name: number for kind in BUILT_IN.values() for number in kind.numbers}

_loaded: dict[str, Metric] = {}
"""Metrics from outside, by their places: the code runs once."""


def metric_named(spec: str) -> Metric:
    """A metric with its settings at their defaults.

    Args:
        spec: a name, or the place of a metric or of a class of them, see `fidtool.user_code.load`: that code is run.

    Raises:
        InputError: there is no such metric, or the code fails.
    """
    if spec in BUILT_IN:
        return _named(BUILT_IN[spec](), spec)
    if not is_place_in_code(spec):
        raise InputError(f"unknown metric {spec!r}; there are {', '.join(BUILT_IN)}", setting="metrics")
    path, _, name = spec.rpartition(":")
    place = f"{os.path.abspath(path)}:{name}" if path.endswith(".py") else spec
    if place not in _loaded:
        named = option("metrics", spec)
        try:
            found, source = load(spec)
            metric = found() if isinstance(found, type) else found
            if isinstance(metric, Metric):
                declared(type(metric))  # annotations that make no sense fail here
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


def _named(metric: Metric, spec: str, source: str = "") -> Metric:
    object.__setattr__(metric, "spec", spec)
    object.__setattr__(metric, "source", source)
    return metric


def spec_of(metric: Metric) -> str:
    """A metric as ``--metrics`` takes it."""
    kind = type(metric)
    return metric.name if kind in BUILT_IN.values() else metric.spec or f"{kind.__module__}:{kind.__qualname__}"


def check_together(metrics: Sequence[Metric]) -> None:
    """Refuses metrics of the user's that do not say what they are, and those that would pass for another one.

    Args:
        metrics: of a run, in which no number may be overwritten and no features be taken for others.

    Raises:
        InputError: naming the metric, and what to write in its class.
    """
    own = [each for each in metrics if type(each) not in BUILT_IN.values() or each.spec not in ("", each.name)]
    for metric in own:
        if fault := _fault_of(metric):
            named = option("metrics", metric.spec) if metric.spec else type(metric).__name__
            raise InputError(f"{named}: {fault[0]}", *fault[1:], setting="metrics")
    owners: dict[str, str] = {}
    networks = {metric.layer: (metric, metric.network()) for metric in metrics if metric.network() is not None}
    for metric in own:
        for name in _names_of(metric):
            if (other := owners.setdefault(name, metric.name)) != metric.name:
                problem = f"the metrics {other} and {metric.name} both give a number {name}:"
                raise InputError(problem, "give one of them another name", setting="metrics")
    for metric in metrics:
        twin, network = networks.get(metric.layer, (metric, None))
        if network is not None and network != metric.network():
            problem = f"the metrics {metric.name} and {twin.name} keep features of different networks as "
            raise InputError(f"{problem}{metric.layer!r}:", "give one's numbers another layer", setting="metrics")


def _names_of(metric: Metric) -> list[str]:
    """The names of a metric's numbers and of their spreads."""
    return [name for number in metric.numbers for name in (number.name, number.spread) if name]


def _fault_of(metric: Metric) -> tuple[str, ...]:
    """What is wrong with the class of a user's metric, and what to do; empty if nothing is."""
    kind, name, numbers = type(metric), metric.name, metric.numbers
    if not is_dataclass(kind) or ("__dataclass_fields__" not in vars(kind) and get_annotations(kind)):
        return f"{kind.__name__} is no dataclass:", "write @dataclass(frozen=True, kw_only=True) above it"
    if not isinstance(name, str) or not re.fullmatch(r"[\w-]+", name):
        return f"{kind.__name__} has no name:", 'write one in its class, such as name = "mind"'
    if not isinstance(numbers, tuple) or not numbers or not all(isinstance(each, Number) for each in numbers):
        return f"{name} does not say which numbers it gives:", "write numbers = (fidtool.Number(...),) in its class"
    names = _names_of(metric)
    taken = {given for each in BUILT_IN.values() for number in each.numbers for given in (number.name, number.spread)}
    # Of another network's features fid is called fd.
    same = [name] if name in BUILT_IN else [each for each in names if re.sub("^fd", "fid", each) in taken]
    if same:
        return f"{same[0]} is the name of one of fidtool's metrics or numbers:", "give it another"
    if not all(number.name and number.better in ("lower", "higher") for number in numbers):
        return f"a number of {name} has no name, or is better neither 'lower' nor 'higher':", "mend it"
    if len(names) > len(set(names)):
        return (f"{name} declares a number twice",)
    return _fault_of_layers(metric)


def _fault_of_layers(metric: Metric) -> tuple[str, ...]:
    """The same of the features that its numbers are of."""
    name, layers = metric.name, {number.layer for number in metric.numbers}
    try:
        network = metric.network()
    except Exception as error:
        return (f"network() of {name} failed: {type(error).__name__}: {error}",)
    if len(layers) > 1:
        return f"{name} has numbers of several layers ({', '.join(sorted(layers))}):", "make it several metrics"
    if network is None:
        if metric.layer in (FEATURES, SPATIAL):
            return ()
        return f"{name} looks at {metric.layer!r}:", "return the network of these features from its network()"
    if not isinstance(network, NetworkChoice):
        return f"network() of {name} gave {network!r}:", "return fidtool.NetworkChoice(...)"
    if metric.layer in (FEATURES, SPATIAL) or not re.fullmatch("[a-z][a-z0-9_]+", metric.layer):
        return f"{name} has a network of its own:", "name its features, such as Number(..., layer='mine')"
    return ()


def by_place(options: object) -> Mapping[str, Any]:
    """Values of ``metric_options``, by the places that they are for, such as ``mind.directions``.

    Raises:
        InputError: it is no dictionary of such places.
    """
    if options is None:
        return {}
    if not isinstance(options, Mapping) or not all(isinstance(place, str) and "." in place for place in options):
        problem = f"{option('metric_options')} must be a dictionary such as {{'kid.subset_size': 500}}, not {options!r}"
        raise InputError(problem, setting="metric_options")
    return options


def refuse_given_twice(arguments: Mapping[str, Any]) -> None:
    """Refuses settings of metrics that are given in two places: as a keyword, as an option, or to an object.

    Args:
        arguments: keywords of `fidtool.compute` that the user gave, with their values, and flags of metrics.

    Raises:
        InputError: naming the places.
    """
    metrics, options = arguments.get("metrics", ()), by_place(arguments.get("metric_options"))
    for metric in metrics if isinstance(metrics, Sequence) else ():
        kind = type(metric)
        for name, field in declared(kind).items() if isinstance(metric, Metric) else ():
            keywords = [keyword(kind, field)] if kind in BUILT_IN.values() else []
            for each in (*keywords, f"{kind.name}.{name}"):
                if each in arguments or each in options:
                    problem = f"{option(each)} is given beside {kind.__name__}(...) among {option('metrics')}:"
                    raise InputError(problem, "give it there", setting=each)
    for kind in BUILT_IN.values():
        for name, field in declared(kind).items():
            if (place := f"{kind.name}.{name}") in options and (flag := keyword(kind, field)) in arguments:
                problem = f"{option(flag)} and {option(place)} are the same setting:"
                raise InputError(problem, "give one of them", setting=place)


def with_options(metric: Metric, options: Mapping[str, Any]) -> Metric:
    """The metric with other settings.

    Args:
        metric: the metric.
        options: values by setting; strings are read as the setting's type.

    Raises:
        InputError: no such setting, or a value that it does not take.
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
    """The metric with other values of its settings, still known by the name that it was asked for with."""
    return _named(replace(metric, **values), metric.spec, metric.source)  # type: ignore[type-var]


def in_order(metrics: Iterable[Metric]) -> list[Metric]:
    """Metrics in the order in which they are computed and listed: fidtool's own first."""
    places = {name: place for place, name in enumerate(BUILT_IN)}
    return sorted(metrics, key=lambda metric: places.get(metric.name, len(places)))
