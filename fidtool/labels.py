"""Names of metric values, in text and in the JSON.

`FID` always means the Fréchet distance of Inception's 2048 features. Values of other features have a qualifier:
``FID (64 dimensions)`` and ``fid_64``, ``FD (dinov2)`` and ``fd_dinov2``, ``KID (dinov2)`` and ``kid_dinov2``. The code
uses plain names, which are the names for Inception's 2048 features.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from fidtool.features.models.families import CMMD_EXTRACTOR, NetworkChoice
from fidtool.features.protocol import FEATURES, INCEPTION, INCEPTION_DIMS, PIXELS, SPATIAL, Definition
from fidtool.metrics.cmmd import CMMD
from fidtool.metrics.metric import Number
from fidtool.metrics.registry import BUILT_IN, NUMBERS
from fidtool.saved import restored
from fidtool.settings import Settings
from fidtool.statistics.set_statistics import Statistics

_NETWORK = "inception"
"""Name of Inception as value of ``--extractor``."""
_USUAL = {INCEPTION: _NETWORK, CMMD_EXTRACTOR: CMMD.extractor}
"""Short names of the default networks, by their names in a definition."""
_MOST_DIGITS = 30
"""More digits after the decimal point than a float has."""
USUAL_NETWORKS = {kind.numbers[0].layer: kind.usual_network for kind in BUILT_IN.values() if kind.usual_network}
"""Networks of the metrics' authors, by layer."""


@dataclass(frozen=True)
class Labels:
    """Names of a run's metric values.

    Attributes:
        network: the extractor: value of ``--extractor``, or its name in the statistics files; empty if unknown. If
            ``--allow-mismatch`` compares two networks, the names of both.
        own_networks: further networks of the run by their layers, and those of metrics that have their own by the layer
            of their `Number`; without those that are the network of the metric's authors.
        numbers: all values that have a title, by plain name, in the order in which they are listed.
        own_dims: dimensions of the features of further networks, by their layers.
    """

    network: str = _NETWORK
    dims: int = max(INCEPTION_DIMS)
    own_networks: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, Number] = field(default_factory=lambda: NUMBERS, repr=False)
    own_dims: Mapping[str, int] = field(default_factory=dict, repr=False)

    def title(self, name: str) -> str:
        """Return the title in text, such as ``FID`` or ``KID (dinov2)``."""
        qualifier, title = self._qualifier(name), self.numbers[name].title
        title = title if self.network == _NETWORK and "@" not in name else re.sub("^FID", "FD", title)
        words = f"{qualifier} dimensions" if isinstance(qualifier, int) else qualifier
        return f"{title} ({words})" if words else title

    def key(self, name: str) -> str:
        """Return the key in the JSON, such as ``fid`` or ``kid_std_dinov2``."""
        base, _, further = name.partition("@")
        key = base if self.network == _NETWORK and not further else re.sub("^fid", "fd", base)
        suffix = re.sub("[^0-9A-Za-z]", "_", str(self._qualifier(name)))
        return f"{key}_{suffix}" if suffix else key

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON's ``labels``, without the numbers of built-in metrics."""
        custom = {name: asdict(number) for name, number in self.numbers.items() if number != NUMBERS.get(name)}
        own = {"own_networks": dict(self.own_networks), "own_dims": dict(self.own_dims)}
        return {**vars(self), **own, "numbers": custom}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Labels:
        """Return the names whose `to_dict` gave ``content``."""
        found: Labels = restored(cls, content)
        if any(name != number.name or number.digits > _MOST_DIGITS for name, number in found.numbers.items()):
            raise ValueError("a number has two names, or too many digits")
        return replace(found, numbers={**NUMBERS, **found.numbers})

    @property
    def networks(self) -> dict[str, str]:
        """The networks of the run by the layers of their features, without those of metrics with their own."""
        further = {name.partition("@")[2] for name in self.numbers} & self.own_networks.keys()
        return {FEATURES: self.network} | {layer: self.own_networks[layer] for layer in sorted(further)}

    def dims_of(self, name: str) -> int:
        """Return the dimensions of the features of which a value is, for other layers than spatial ones."""
        return self.own_dims.get(self.numbers[name].layer, self.dims)

    def network_of(self, name: str) -> str:
        """Return the name of the network whose features a metric uses."""
        number = self.numbers[name]
        if number.layer == PIXELS:
            return "pixels"
        if number.layer not in (FEATURES, SPATIAL):
            return self.own_networks.get(number.layer) or USUAL_NETWORKS.get(number.layer, "its own network")
        if number.inception or number.layer == SPATIAL or self.network == _NETWORK:
            return "Inception"
        return self.network or "unknown network"

    def _qualifier(self, name: str) -> str | int:
        """Return what qualifies a value: the network, the dimensions, or an empty string."""
        if "@" in name:
            return self.own_networks[name.partition("@")[2]]
        owners = (number for number in self.numbers.values() if name in (number.name, number.spread))
        number = next(owners, NUMBERS["fid"])  # any other value is one of the run's features
        if number.inception or number.layer == SPATIAL:
            return ""
        if number.layer != FEATURES:
            return self.own_networks.get(number.layer, "")
        if self.network == _NETWORK and self.dims == max(INCEPTION_DIMS):
            return ""
        return self.dims if self.network in ("", _NETWORK) else self.network


def labels_of(
    definitions: Mapping[str, Definition | None],
    config: Settings,
    measured: bool,
    files: Sequence[Statistics] = (),
) -> Labels:
    """Return the names of a run's metric values.

    Args:
        definitions: definitions of the features, by layer; None if unknown. Features of unknown origin, as in other
            tools' statistics files, count as Inception's if they have the dimensions of one of its layers, no mean
            below zero, and no other network was asked for.
        config: the settings, which have the requested networks.
        measured: whether images were processed with these networks. If not, only statistics files are compared.
        files: the statistics files, whose definitions can differ with ``allow_mismatch``.
    """
    found: dict[str, list[Definition]] = {}
    for layer, definition in definitions.items():
        parts = [file.layers[layer].definition for file in files if layer in file.layers]
        found[layer] = [each for each in (definition, *parts) if each is not None]
    definition = definitions[FEATURES]
    dims = definition.dims if definition else files[0].dims if files else max(INCEPTION_DIMS)
    if definition is None:
        can_be = config.network.extractor == _NETWORK and all(file.mu.min() >= 0 for file in files)
        network = _NETWORK if can_be and dims in INCEPTION_DIMS else ""
    else:
        network = _spelled(found[FEATURES], config.network.extractor, measured)
    own, numbers = {layer: each.subject for layer, each in config.further.items()}, dict(NUMBERS)
    for each in config.chosen:
        metric, asked, of_metric = each.metric, each.metric.network(), found.get(each.layer, [])
        numbers |= {number.name: number for number in each.numbers}
        if asked is not None and any(one.extractor != metric.usual_network for one in of_metric):
            own[metric.layer] = _spelled(of_metric, asked.extractor, measured)
            if own[metric.layer] == _NETWORK and of_metric[0].dims != max(INCEPTION_DIMS):
                own[metric.layer] += f" {of_metric[0].dims}"
    sizes = {layer: file.layers[layer].dims for file in files for layer in config.further if layer in file.layers}
    sizes |= {layer: each[0].dims for layer, each in found.items() if layer in config.further and each}
    return Labels(network, dims, own, numbers, sizes)


def _spelled(definitions: Sequence[Definition], asked: str, measured: bool) -> str:
    """Return the networks of these definitions, each once."""
    networks = list(dict.fromkeys(each.network for each in definitions))
    names = {network: _USUAL.get(network, network) for network in networks}
    for network in networks:
        # The definition of a network in a user's file has the file's name without its folder.
        meant = NetworkChoice(asked).made(network)
        if meant or (measured and network == networks[0] != INCEPTION):
            names[network] = asked
    return " against ".join(names.values())
