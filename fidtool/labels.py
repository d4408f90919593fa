"""What each number of a run is called, in text and in the JSON. Imports no torch.

`FID` is the Fréchet distance of Inception's 2048 features and nothing else. A number of other features says whose they
are: ``FID (64 dimensions)`` and ``fid_64``, ``FD (dinov2)`` and ``fd_dinov2``, ``KID (dinov2)`` and ``kid_dinov2``.
Inside the program each number goes by its plain name, which is its name for Inception's 2048 features.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os.path import basename

from fidtool.features.definition import Definition
from fidtool.features.models.families import CMMD_EXTRACTOR, MODEL_FAMILIES
from fidtool.features.protocol import FEATURES, INCEPTION, INCEPTION_DIMS, SPATIAL
from fidtool.metrics.cmmd import CMMD
from fidtool.metrics.metric import Number
from fidtool.metrics.registry import BUILT_IN, NUMBERS
from fidtool.settings import Settings

_NETWORK = "inception"
"""Inception, as ``--extractor`` takes it."""
_USUAL = {INCEPTION: _NETWORK, CMMD_EXTRACTOR: CMMD.extractor}
"""Networks that go by a short name where nobody asks for another, by their names in a definition."""
_MEANT = {kind: f"{kind}:{family.default}" for kind, family in MODEL_FAMILIES.items() if family.default}
"""What is meant by short names that ``--extractor`` takes."""
USUAL_NETWORKS = {kind.numbers[0].layer: kind.usual_network for kind in BUILT_IN.values() if kind.usual_network}
"""Those of metrics' authors, by layer."""


@dataclass(frozen=True)
class Labels:
    """What the numbers of a run are called.

    Attributes:
        network: what the extractor's features are of: as ``--extractor`` was given, or as the statistics files name
            it; empty where they do not say. Of two networks, which ``--allow-mismatch`` compares, both.
        dims: length of such a feature vector.
        own_networks: of metrics with a network of their own the same, by the layer that `Number` names; none where it
            is their authors' network.
        others: numbers of metrics that are not fidtool's own.
    """

    network: str = _NETWORK
    dims: int = max(INCEPTION_DIMS)
    own_networks: Mapping[str, str] = field(default_factory=dict)
    others: tuple[Number, ...] = ()

    @property
    def numbers(self) -> dict[str, Number]:
        """All numbers that have a title, by their plain names, in the order in which they are listed."""
        return NUMBERS | {number.name: number for number in self.others}

    def title(self, name: str) -> str:
        """The title in text, such as ``FID`` or ``KID (dinov2)``.

        Args:
            name: plain name of a number, see `numbers`.
        """
        network, dims = self._qualifier(name)
        title = self.numbers[name].title
        title = title if self._of_inception else re.sub("^FID", "FD", title)
        words = network or (f"{dims} dimensions" if dims else "")
        return f"{title} ({words})" if words else title

    def key(self, name: str) -> str:
        """The key in the JSON, such as ``fid`` or ``kid_std_dinov2``.

        Args:
            name: plain name of a number, such as ``kid_std``.
        """
        network, dims = self._qualifier(name)
        key = name if self._of_inception else re.sub("^fid", "fd", name)
        suffix = re.sub("[^0-9A-Za-z]", "_", network) or (str(dims) if dims else "")
        return f"{key}_{suffix}" if suffix else key

    def network_of(self, name: str) -> str:
        """The network whose features a metric looks at, in words.

        Args:
            name: plain name of the metric.
        """
        number = self._number(name)
        if number.layer not in (FEATURES, SPATIAL):
            return self.own_networks.get(number.layer) or USUAL_NETWORKS.get(number.layer, "its own network")
        if number.inception or number.layer == SPATIAL or self._of_inception:
            return "Inception"
        return self.network or "unknown network"

    def _number(self, name: str) -> Number:
        """The number of this name, or with this spread; for any other name, one of the run's features."""
        owners = (number for number in self.numbers.values() if name in (number.name, number.spread))
        return next(owners, NUMBERS["fid"])

    @property
    def _of_inception(self) -> bool:
        return self.network == _NETWORK

    def _qualifier(self, name: str) -> tuple[str, int | None]:
        """What must be said of a number's features: the network, or their dimensions, or nothing."""
        number = self._number(name)
        if number.inception or number.layer == SPATIAL:
            return "", None
        if number.layer != FEATURES:
            return self.own_networks.get(number.layer, ""), None
        if self.network and not self._of_inception:
            return self.network, None
        return "", None if self._of_inception and self.dims == max(INCEPTION_DIMS) else self.dims


def labels_of(
    definitions: Mapping[str, Definition | None],
    config: Settings,
    measured: bool,
    dims: int,
    files: Mapping[str, Sequence[Definition]] | None = None,
) -> Labels:
    """What the numbers of a run are called.

    Args:
        definitions: what defines the features, by layer; None where nobody knows. Features of unknown origin count as
            Inception's where their dimensions are those of one of its layers, as in other tools' statistics files.
        config: for the networks as they were asked for.
        measured: images went through these networks; if not, statistics files alone are compared.
        dims: of the extractor's features.
        files: what the statistics files say, by layer; where ``allow_mismatch`` is set, it may be something else.
    """
    definition, said = definitions[FEATURES], files or {}
    if definition is None:
        network = _NETWORK if dims in INCEPTION_DIMS else ""
    else:
        network = _spelled([definition, *said.get(FEATURES, ())], config.network.extractor, measured)
    own, others = {}, []
    for metric in config.chosen:
        layer, asked = config.layer_of(metric), metric.network()
        others += [number for number in metric.numbers if number.name not in NUMBERS]
        if asked is None or (embedding := definitions.get(layer)) is None:
            continue
        of_metric = [embedding, *said.get(layer, ())]
        if any(each.extractor != metric.usual_network for each in of_metric):
            own[metric.layer] = _spelled(of_metric, asked.extractor, measured)
            if own[metric.layer] == _NETWORK and embedding.dims != max(INCEPTION_DIMS):
                own[metric.layer] += f" {embedding.dims}"
    return Labels(network, dims, own, tuple(others))


def _spelled(definitions: Sequence[Definition], asked: str, measured: bool) -> str:
    """The networks that these features are of, each once.

    Args:
        definitions: theirs.
        asked: the first one's network, as it was asked for.
        measured: it is surely that one's; of files it may be another.
    """
    networks = list(dict.fromkeys(each.network for each in definitions))
    names = {network: _USUAL.get(network, network) for network in networks}
    for network in networks:
        # Of a file of one's own a definition has no folders.
        meant = network in (asked, basename(asked), _MEANT.get(asked))
        if meant or (measured and network == networks[0] != INCEPTION):
            names[network] = asked
    return " against ".join(names.values())
