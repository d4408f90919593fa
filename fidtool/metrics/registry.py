"""The metrics by name: the built-in ones, and custom ones in user code."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import is_dataclass, replace
from typing import Any, NamedTuple

from fidtool.errors import InputError, option, prefix_errors, short_repr
from fidtool.features.choice import NetworkChoice
from fidtool.features.protocol import FEATURES, PIXELS, SPATIAL
from fidtool.metrics.authpct import AuthPct
from fidtool.metrics.clip_score import CLIPScore
from fidtool.metrics.cmmd import CMMD
from fidtool.metrics.fdr import FDR
from fidtool.metrics.fid import FID, FIDInfinity, SpatialFID
from fidtool.metrics.inception_score import InceptionScore
from fidtool.metrics.kid import KID
from fidtool.metrics.lpips import LPIPS
from fidtool.metrics.metric import ALL, Metric, Number
from fidtool.metrics.mifid import MIFID
from fidtool.metrics.mind import MIND
from fidtool.metrics.pairs import PairMetric
from fidtool.metrics.prdc import PRDC
from fidtool.metrics.psnr import PSNR
from fidtool.metrics.ssim import SSIM, MultiScaleSSIM
from fidtool.metrics.vendi import Vendi
from fidtool.names import find_similar, fold, unknown_name_error
from fidtool.system.user_code import is_code_spec, load_object
from fidtool.validation import Setting, find_settings

BUILT_IN: dict[str, type[Metric]] = {
    kind.name: kind
    for kind in (
        FID,
        KID,
        InceptionScore,
        PRDC,
        SpatialFID,
        FIDInfinity,
        CMMD,
        MIND,
        MIFID,
        Vendi,
        AuthPct,
        FDR,
        PSNR,
        SSIM,
        MultiScaleSSIM,
        LPIPS,
        CLIPScore,
    )
}
"""The built-in metrics by name, in the order in which they are computed and listed. To add one, add
a file and its class here; export it in the package's ``__init__`` as ``fidtool.NAME`` and add it to
the table in the README.
"""
BY_NAME = [kind.name for kind in BUILT_IN.values() if kind.by_name]
"""The built-in metrics that `ALL` does not select."""
NAMES: dict[str, type[Metric]] = {
    name: kind
    for kind in BUILT_IN.values()
    for name in (kind.name, *(number.name for number in kind.numbers), *kind.other_names)
}
"""The built-in metrics by each name that is understood."""


class RequestedMetric(NamedTuple):
    """A metric of a run.

    Attributes:
        spec: the value of ``--metrics`` that selects it.
        source: file and object of a custom metric that ``--metrics`` named, with the start of the
            file's SHA-256.
        optional: the option that selects it only if it can be computed; empty if it was requested
            by name.
        layer: the layer whose features it uses; empty until the run's networks are known.
        further: the network of its features if that is a further one of the run.
    """

    metric: Metric
    spec: str
    source: str = ""
    optional: str = ""
    layer: str = ""
    network_name: str = ""

    @property
    def name(self) -> str:
        """Its name in messages: ``kid``, or ``kid (dinov2)`` of a further network."""
        return (
            f"{self.metric.name} ({self.network_name})" if self.network_name else self.metric.name
        )

    @property
    def title(self) -> str:
        """The titles of its values: ``KID (dinov2)``."""
        titles = ", ".join(number.title for number in self.metric.numbers)
        return f"{titles} ({self.network_name})" if self.network_name else titles


def metrics_all_omits(requested: Sequence[RequestedMetric]) -> list[RequestedMetric]:
    """Return the built-in metrics that ``all`` does not select, unless they were requested by name;
    an empty list without ``all``.
    """
    selects = option("metrics", ALL)
    if all(metric.optional != selects for metric in requested):
        return []
    names = {metric.metric.name for metric in requested}
    return [
        RequestedMetric(kind(), name, optional=selects)
        for name, kind in BUILT_IN.items()
        if kind.by_name and name not in names
    ]


def find_metric(spec: str) -> RequestedMetric:
    """Return a metric with default settings. The code of a custom one is run."""
    for name, kind in NAMES.items():
        if fold(name) == fold(spec):
            return RequestedMetric(kind(), kind.name)
    if fold(spec) == ALL:
        selected = ", ".join(name for name in BUILT_IN if name not in BY_NAME)
        raise InputError(
            f"{spec} is not a single metric; it selects each of {selected} that can be computed"
        )
    if is_code_spec(spec):
        named = option("metrics", spec)
        metric, source = load_object(spec, _instantiate, named, reuse=True)
        _check_declaration(metric, named)
        return RequestedMetric(metric, spec, source)
    numbers = set[str]()
    for kind in BUILT_IN.values():
        numbers.update(number.name for number in kind.numbers + kind.summary)
    close = dict[str, None]()
    for name in find_similar(spec, [*NAMES, ALL]):
        if name in NAMES and name not in numbers:
            name = NAMES[name].name
        close[name] = None
    listed = ", ".join([*BUILT_IN, ALL, "FILE.py:NAME"])
    raise unknown_name_error("metric", spec, (), listed, close=[*close])


def _instantiate(loaded: Any) -> Any:
    """Return the metric of a class, or the object itself; a fault in its declarations shows
    here.
    """
    metric = loaded() if isinstance(loaded, type) else loaded
    if isinstance(metric, Metric):
        find_settings(type(metric))
        metric.network()
    return metric


def setting_key(owner: str, setting: str) -> str:
    """Return the name of a metric's setting in the record of a run; that of a built-in metric's
    flag is the same.

    ``kid_subset_size`` for a built-in metric, ``shift.order`` for a custom one.
    """
    if owner not in BUILT_IN:
        return f"{owner}.{setting}"
    return find_settings(BUILT_IN[owner])[setting].flag.removeprefix("--").replace("-", "_")


METRIC_SETTINGS: dict[str, tuple[type[Metric], Setting]] = {
    setting_key(kind.name, name): (kind, setting)
    for kind in BUILT_IN.values()
    for name, setting in find_settings(kind).items()
}
"""The settings of the built-in metrics by `setting_key`, with the metrics."""


@prefix_errors(setting="metrics")
def select_metrics(
    metrics: object, values: Mapping[str, Any] | None = None, needed: Collection[str] = ()
) -> tuple[RequestedMetric, ...]:
    """Return the requested metrics in their order.

    Args:
        metrics: as the setting of this name. A metric that is also requested by name or as an
            object replaces that of ``all``.
        values: settings of the built-in metrics that are requested by name, by `setting_key`.
            Strings are parsed.
        needed: those of the values that must be of a requested metric.
    """
    listed = metrics.split(",") if isinstance(metrics, str) else metrics
    if not isinstance(listed, Iterable):
        raise InputError(
            f"{option('metrics')} must be a string or a list of metrics, not {short_repr(metrics)}"
        )
    chosen = dict[str, RequestedMetric]()
    for item in listed:
        for new in _select(item, values or {}):
            known = chosen.setdefault(new.metric.name, new)
            if known.optional and not new.optional:
                chosen[new.metric.name] = new
            elif known.metric != new.metric and not new.optional:
                raise InputError(
                    f"the metric {new.metric.name} is requested twice, with different settings or "
                    "classes"
                )
    if not chosen:
        raise InputError(f"{option('metrics')} is empty; the metrics are {', '.join(BUILT_IN)}")
    for key in needed:
        owner = METRIC_SETTINGS[key][0].name
        if owner not in chosen:
            raise InputError(
                f"{option(key)} is a setting of {owner}, which is not computed:",
                f"add {owner} to {option('metrics')}",
            )
    _check_names([requested.metric for requested in chosen.values()])
    return tuple(chosen.values())


def _select(item: object, values: Mapping[str, Any]) -> list[RequestedMetric]:
    """Return the metrics that one element of ``metrics`` selects."""
    if isinstance(item, RequestedMetric):
        return [item]
    if not isinstance(item, str):
        metric = _instantiate(item)
        kind = type(metric)
        _check_declaration(metric, kind.__name__)
        is_built_in = kind in BUILT_IN.values()
        spec = metric.name if is_built_in else f"{kind.__module__}:{kind.__qualname__}"
        return [RequestedMetric(metric, spec)]
    if fold(item) != ALL:
        requested = find_metric(item.strip())
        return [requested._replace(metric=_apply_settings(requested.metric, values))]
    selected = []
    for kind in BUILT_IN.values():
        if not kind.by_name:
            metric = _apply_settings(kind(), values)
            # One whose settings were set is wanted.
            optional = option("metrics", ALL) if metric == kind() else ""
            selected.append(RequestedMetric(metric, metric.name, optional=optional))
    return selected


def _apply_settings(metric: Metric, values: Mapping[str, Any]) -> Metric:
    """Return the metric with those of the values, by `setting_key`, that are its settings."""
    own = {}
    for name, setting in find_settings(type(metric)).items():
        key = setting_key(metric.name, name)
        if key in values:
            own[name] = setting.check(setting.parse(values[key]), option(metric.named(name)))
    return replace(metric, **own) if own else metric  # type: ignore[type-var]


def _check_names(metrics: Sequence[Metric]) -> None:
    """Refuse metrics whose names or names of values collide, also with those of built-in ones."""
    owners = dict[str, type[Metric]]()
    for metric in (*(kind() for kind in BUILT_IN.values()), *metrics):
        kind = type(metric)
        names = [metric.name]
        for number in metric.numbers:
            for name in filter(None, (number.name, number.spread)):
                names += [name, number.elsewhere.get(name, name)]
        for name in names:
            other = owners.setdefault(name, kind)
            if other is not kind:
                raise InputError(
                    f"the metrics {other.__name__} and {kind.__name__} both have the name {name}:",
                    "rename one of them",
                )


def _check_declaration(metric: Metric, named: str) -> None:
    """Refuse a custom metric whose class is incomplete."""
    if not isinstance(metric, Metric):
        raise InputError(f"{named} is a {type(metric).__name__}; it must be a fidtool.Metric")
    kind = type(metric)
    if kind in BUILT_IN.values():
        return
    numbers = metric.numbers
    is_declared = is_dataclass(kind) and metric.name and numbers
    if not is_declared or not all(isinstance(number, Number) for number in numbers):
        raise InputError(
            f"{named}: {kind.__name__} must be a dataclass with a name and with numbers:",
            "write @dataclass(frozen=True, kw_only=True) above the class, and name = ... and "
            "numbers = (fidtool.Number(...),) in it",
        )
    is_of_pairs = metric.layer == PIXELS and not (kind.real_features or kind.fake_features)
    has_own_layer = metric.layer not in (FEATURES, SPATIAL, PIXELS)
    has_network = isinstance(metric.network(), NetworkChoice)
    if is_of_pairs != isinstance(metric, PairMetric) or has_own_layer != has_network:
        raise InputError(
            f"{named}: the layer {metric.layer!r} of {metric.name} does not fit its class:",
            f"use {PIXELS!r} in a PairMetric that requests no features",
            "a name of your own if network() returns a network",
        )
