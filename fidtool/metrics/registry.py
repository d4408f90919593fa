"""The metrics by name: fidtool's own, and those in code of yours. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from fidtool.errors import InputError, option
from fidtool.metrics.cmmd import CMMD
from fidtool.metrics.fid import FID
from fidtool.metrics.fid_infinity import FIDInfinity
from fidtool.metrics.inception_score import InceptionScore
from fidtool.metrics.kid import KID
from fidtool.metrics.metric import Metric, Number
from fidtool.metrics.prdc import PRDC
from fidtool.metrics.sfid import SpatialFID
from fidtool.user_code import NoSourceError, is_place_in_code, load
from fidtool.validation import Declared, declared

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
        return BUILT_IN[spec]()
    if not is_place_in_code(spec):
        raise InputError(f"unknown metric {spec!r}; there are {', '.join(BUILT_IN)}", setting="metrics")
    if spec not in _loaded:
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
        if metric.name in BUILT_IN or {number.name for number in metric.numbers} & NUMBERS.keys():
            problem = f"{named}: {metric.name} has the name of one of fidtool's metrics or numbers"
            raise InputError(problem, setting="metrics")
        _loaded[spec] = _from(metric, spec, source)
    return _loaded[spec]


def _from(metric: Metric, spec: str, source: str) -> Metric:
    object.__setattr__(metric, "spec", spec)
    object.__setattr__(metric, "source", source)
    return metric


def spec_of(metric: Metric) -> str:
    """A metric as ``--metrics`` takes it."""
    kind = type(metric)
    return metric.name if kind in BUILT_IN.values() else metric.spec or f"{kind.__module__}:{kind.__qualname__}"


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
    for name, value in values.items():
        has = getattr(metric, name)
        if type(metric) in BUILT_IN.values() and has not in (fields[name].default, value):
            problem = f"{metric.name}.{name} is given twice, as {has} and as {value}:"
            raise InputError(problem, "give it once", setting="metric_options")
    return _from(replace(metric, **values), metric.spec, metric.source)  # type: ignore[type-var]


def keyword(kind: type[Metric], field: Declared) -> str:
    """What a metric's setting is called beside those of the run, such as ``kid_subset_size``: so is its flag.

    Where `fidtool.settings.Settings` has a field of that name, it is a keyword of `fidtool.compute` as well.
    """
    return field.setting.flag.removeprefix("--").replace("-", "_") or f"{kind.name}_{field.name}".replace("-", "_")


def in_order(metrics: Iterable[Metric]) -> list[Metric]:
    """Metrics in the order in which they are computed and listed: fidtool's own first."""
    places = {name: place for place, name in enumerate(BUILT_IN)}
    return sorted(metrics, key=lambda metric: places.get(metric.name, len(places)))
