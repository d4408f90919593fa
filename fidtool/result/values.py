"""Values of a run: what a number of a metric is called for the features of a network, in text and
in the JSON.

`FID` always means the Fréchet distance of Inception's 2048 features. Values of other features have
a qualifier: ``FID (64 dimensions)`` and ``fid_64``, ``FD (dinov2)`` and ``fd_dinov2``, ``KID
(dinov2)`` and ``kid_dinov2``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fidtool.errors import InputError
from fidtool.features.choice import CMMD_EXTRACTOR, NetworkChoice
from fidtool.features.protocol import (
    FEATURES,
    INCEPTION,
    INCEPTION_DIMS,
    PIXELS,
    SPATIAL,
    SPATIAL_DIMS,
    Definition,
)
from fidtool.metrics.cmmd import CMMD
from fidtool.metrics.metric import Number
from fidtool.metrics.registry import RequestedMetric
from fidtool.names import escape_text, shorten
from fidtool.settings.settings import Settings
from fidtool.statistics.set_statistics import Statistics

# Name of Inception as value of ``--extractor``.
_NETWORK = "inception"
# Short names of the default networks, by their names in a definition.
_DEFAULT_NAMES = {INCEPTION: _NETWORK, CMMD_EXTRACTOR: CMMD.extractor}
_MAX_TITLE = 40


def _dimensions(dims: int) -> str:
    return f"{dims} dimensions"


@dataclass(frozen=True)
class FeatureSource:
    """What values are computed from: the features of one network.

    Attributes:
        layer: name of the features in statistics files and among the definitions of a result.
        network: the network: value of ``--extractor``, or its name in the statistics files; empty
            if unknown. If ``--allow-mismatch`` compares two networks, the names of both.
        dims: length of a feature vector; 0 for the pixels of images.
        qualifier: what titles show in brackets: the network or the dimensions; empty for
            Inception's 2048 features and the usual network of a metric with its own.
    """

    layer: str = FEATURES
    network: str = _NETWORK
    dims: int = max(INCEPTION_DIMS)
    qualifier: str = ""

    @classmethod
    def from_network(cls, network: str, dims: int) -> FeatureSource:
        """Return the features of the first network of a run."""
        if network not in ("", _NETWORK):
            return cls(FEATURES, network, dims, network)
        if network and dims == max(INCEPTION_DIMS):
            return cls()
        return cls(FEATURES, network, dims, _dimensions(dims))

    def rename(self, name: str, number: Number) -> str:
        """Return what a name of a number, its title or spread is for these features: ``FD`` in
        place of ``FID``.
        """
        if self.network == _NETWORK and self.layer == FEATURES:
            return name
        return number.elsewhere.get(name, name)

    def key(self, name: str) -> str:
        """Return the key in the JSON of a value that has this name, with the features."""
        if not self.qualifier:
            return name
        if self.qualifier == _dimensions(self.dims):
            return f"{name}_{self.dims}"
        return f"{name}_{re.sub('[^0-9A-Za-z]', '_', self.qualifier)}"

    def __str__(self) -> str:
        """The features in the caption of a table: ``Inception, 2048 dimensions``."""
        network = {_NETWORK: "Inception", "": "unknown network"}.get(self.network, self.network)
        return f"{network}, {_dimensions(self.dims)}"


@dataclass(frozen=True)
class Value:
    """A value of a run: one number of a metric, computed from the features of one network.

    Attributes:
        metric: name of the metric.
        number: the number, and how it is shown.
        features: the features that the number is computed from.
    """

    metric: str
    number: Number
    features: FeatureSource = field(default_factory=FeatureSource)

    @property
    def key(self) -> str:
        """The key in the JSON, such as ``fid`` or ``kid_dinov2``."""
        return self.key_for(self.number.name)

    @property
    def spread(self) -> str:
        """The key of the value after the ±, such as ``kid_std_dinov2``; empty if it has none."""
        return self.number.spread and self.key_for(self.number.spread)

    @property
    def base(self) -> str:
        """The title without the features, such as ``FD`` or ``KID``."""
        return self.features.rename(self.number.title, self.number)

    @property
    def qualifier(self) -> str:
        """The features in the title, such as ``dinov2``; empty if it does not name them."""
        return "" if self.number.inception else self.features.qualifier

    @property
    def title(self) -> str:
        """The title in text, such as ``FID`` or ``KID (dinov2)``."""
        return f"{self.base} ({self.qualifier})" if self.qualifier else self.base

    @property
    def short_title(self) -> str:
        """The title in tables and charts: of a network with a long name, such as a path, the middle
        is left out.
        """
        if not self.qualifier:
            return self.base
        room = _MAX_TITLE - len(f"{self.base} ()")
        return f"{self.base} ({escape_text(shorten(self.qualifier, room))})"

    @property
    def column(self) -> tuple[str, str, str]:
        """What the values of several results in one column have in common: metric, number and
        title.

        The layer of their features may differ, and whatever else the title does not show.
        """
        return self.metric, self.number.name, self.title

    def key_for(self, name: str) -> str:
        """Return the key of what the metric returns under this name: this number, its spread, or a
        further value.
        """
        called = self.features.rename(name, self.number)
        return called if self.number.inception else self.features.key(called)


Definitions = Mapping[str, Definition | None]
"""The definitions of features by layer; None if unknown."""


def find_key(values: Sequence[Value], name: str) -> str:
    """Return the key of what a metric with these values returns under this name: one, a spread, or
    a further value.
    """
    for value in values:
        if name in (value.number.name, value.number.spread):
            return value.key_for(name)
    return values[0].key_for(name)


def find_distance(values: Iterable[Value]) -> Value | None:
    """Return the Fréchet distance of the first network, see `Number.error_bars`; None if it was not
    requested.
    """
    for value in values:
        if value.number.error_bars and value.features.layer == FEATURES:
            return value
    return None


def list_values(
    definitions: Definitions,
    settings: Settings,
    files: Sequence[Statistics] = (),
) -> tuple[Value, ...]:
    """Return the values of a run, in the order in which they are listed.

    Args:
        definitions: definitions of the features, by layer; None if unknown. Features of unknown
            origin, as in other tools' statistics files, count as Inception's if they have the
            dimensions of one of its layers, no mean below zero, and no other network was asked for.
        settings: the settings, which have the requested networks and metrics.
        files: the statistics files, whose definitions can differ with ``allow_mismatch``.

    Raises:
        InputError: if two values have the same key.
    """
    values: dict[str, Value] = {}
    for requested in settings.selected_metrics:
        features = _metric_features(requested, definitions.get(requested.layer), settings, files)
        numbers = requested.metric.numbers
        if not requested.network_name:
            numbers = (*numbers, *requested.metric.summary)
        for number in numbers:
            titled = replace(number, title=features.rename(number.title, number))
            value = Value(requested.metric.name, titled, features)
            if value.key in values:
                raise InputError(
                    f"two networks have values named {value.title}:",
                    "give each network its own name, Network(..., name=...)",
                    "give their files different names",
                    setting="extractor",
                )
            values[value.key] = value
    return tuple(values.values())


def _metric_features(
    requested: RequestedMetric,
    definition: Definition | None,
    settings: Settings,
    files: Sequence[Statistics],
) -> FeatureSource:
    """Return the features of a metric, which have this definition."""
    layer = requested.layer
    if layer == SPATIAL:
        return FeatureSource(layer, dims=SPATIAL_DIMS)
    if layer == PIXELS:
        return FeatureSource(layer, PIXELS, 0)
    stored = [file.layers[layer] for file in files if layer in file.layers]
    stated = [known for known in (definition, *(part.definition for part in stored)) if known]
    parts = stated or stored
    dims = parts[0].dims if parts else 0
    own = requested.metric.network()
    if own is not None:
        usual = requested.metric.usual_network
        if all(known.extractor == usual for known in stated):
            return FeatureSource(layer, usual or "its own network", dims)
        name = _spell_networks(stated, own.extractor)
        # A layer of Inception is named by its dimensions as well.
        is_layer = name == _NETWORK and dims != max(INCEPTION_DIMS)
        return FeatureSource(layer, name, dims, f"{name} {dims}" if is_layer else name)
    if requested.network_name:
        name = requested.network_name
        if definition is not None and not settings.networks[layer].made(definition.network):
            name = definition.network
        return FeatureSource(layer, name, dims, name)
    dims = dims or max(INCEPTION_DIMS)
    network = ""
    if stated:
        network = _spell_networks(stated, settings.network.extractor)
    elif (
        settings.network.extractor == _NETWORK
        and dims in INCEPTION_DIMS
        and all(file.mu.min() >= 0 for file in files)
    ):
        network = _NETWORK
    return FeatureSource.from_network(network, dims)


def _spell_networks(definitions: Sequence[Definition], requested: str) -> str:
    """Return the networks of these definitions, each once."""
    names = []
    for network in dict.fromkeys(definition.network for definition in definitions):
        made = NetworkChoice(requested).made(network)
        names.append(requested if made else _DEFAULT_NAMES.get(network, network))
    return " against ".join(names)
