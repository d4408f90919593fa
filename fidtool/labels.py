"""What each number of a run is called, in text and in the JSON. Imports no torch.

`FID` is the Fréchet distance of Inception's 2048 features and nothing else. A number of other features says whose they
are: ``FID (64 dimensions)`` and ``fid_64``, ``FD (dinov2)`` and ``fd_dinov2``, ``KID (dinov2)`` and ``kid_dinov2``.
Inside the program each number goes by its plain name, which is its name for Inception's 2048 features.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os.path import basename

from fidtool.features.protocol import (
    CMMD_EXTRACTOR,
    DINOV2_EXTRACTOR,
    FEATURES,
    INCEPTION,
    INCEPTION_DIMS,
    Definition,
)
from fidtool.metrics.needs import embedding_layer
from fidtool.settings import Settings

TITLES = {
    "fid": "FID",
    "sfid": "sFID",
    "kid": "KID",
    "is": "IS",
    "precision": "Precision",
    "recall": "Recall",
    "density": "Density",
    "coverage": "Coverage",
    "fid_infinity": "FID-infinity",
    "cmmd": "CMMD",
}
"""The metrics by their plain names as people write them, in the order in which they are listed."""
SPREADS = {"kid": "kid_std", "is": "is_std", "fid_infinity": "fid_infinity_error"}
"""What stands behind a metric's ±."""
_INCEPTION_ALONE = frozenset({"sfid", "is", "is_std"})
"""No other features will do for them."""
_NETWORK = "inception"
"""Inception, as ``--extractor`` takes it."""
_USUAL = {INCEPTION: _NETWORK, CMMD_EXTRACTOR: Settings.cmmd_extractor}
"""Networks that go by a short name where nobody asks for another, by their names in a definition."""
_MEANT = {Settings.cmmd_extractor: CMMD_EXTRACTOR, "dinov2": DINOV2_EXTRACTOR}
"""What is meant by short names that ``--extractor`` takes."""


@dataclass(frozen=True)
class Labels:
    """What the numbers of a run are called.

    Attributes:
        network: what the extractor's features are of: as ``--extractor`` was given, or as the statistics files name
            it; empty where they do not say. Of two networks, which ``--allow-mismatch`` compares, both.
        dims: length of such a feature vector.
        cmmd_network: the same of CMMD's features; empty where they are of its authors' network.
    """

    network: str = _NETWORK
    dims: int = max(INCEPTION_DIMS)
    cmmd_network: str = ""

    def title(self, name: str) -> str:
        """The title in text, such as ``FID`` or ``KID (dinov2)``.

        Args:
            name: plain name of a metric, see `TITLES`.
        """
        network, dims = self._qualifier(name)
        title = TITLES[name] if self._of_inception else re.sub("^FID", "FD", TITLES[name])
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
        if name == "cmmd":
            return self.cmmd_network or CMMD_EXTRACTOR
        if name in _INCEPTION_ALONE or self._of_inception:
            return "Inception"
        return self.network or "unknown network"

    @property
    def _of_inception(self) -> bool:
        return self.network == _NETWORK

    def _qualifier(self, name: str) -> tuple[str, int | None]:
        """What must be said of a number's features: the network, or their dimensions, or nothing."""
        if name in _INCEPTION_ALONE:
            return "", None
        if name == "cmmd":
            return self.cmmd_network, None
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
    definition, layer = definitions[FEATURES], embedding_layer(config)
    embedding, said = definitions.get(layer), files or {}
    if definition is None:
        network = _NETWORK if dims in INCEPTION_DIMS else ""
    else:
        network = _spelled([definition, *said.get(FEATURES, ())], config.network.extractor, measured)
    cmmd_network = ""
    if embedding is not None:
        of_cmmd = [embedding, *said.get(layer, ())]
        if any(each.extractor != CMMD_EXTRACTOR for each in of_cmmd):
            cmmd_network = _spelled(of_cmmd, config.cmmd_extractor, measured)
    return Labels(network, dims, cmmd_network)


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
