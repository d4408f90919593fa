"""Statistics in place of a metric's real images."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fidtool.errors import InputError, renamed, warn_program
from fidtool.features.protocol import FEATURES
from fidtool.statistics.layouts import inception_doubts
from fidtool.statistics.set_statistics import Statistics
from fidtool.statistics.statistics_file import read_statistics
from fidtool.training.feature_extractor import PathLike, SharedExtractor
from fidtool.training.state import check_same_settings


@dataclass(frozen=True)
class RealStatistics:
    """Statistics of a metric's network, with the interface of `ImageSums` for what a metric is computed from.

    ``name`` is the file, or ``real_statistics``.
    """

    name: str
    given: Statistics

    @property
    def count(self) -> int | None:
        """Number of images; None if the file does not have it."""
        return self.given.count

    def statistics(self) -> Statistics:
        return self.given

    def rows(self) -> NDArray[np.float32] | None:
        """The features of each image; None if the metric does not need them."""
        return self.given.features

    @staticmethod
    def of(given: PathLike | Statistics, network: SharedExtractor, per_image: bool) -> RealStatistics:
        """Reads statistics, of a file of several networks those of ``network``.

        Raises:
            fidtool.InputError: if they are of another network, or a metric needs features that they do not have.
        """
        networks = {FEATURES: network.choice}
        if isinstance(given, Statistics):
            name, statistics = "real_statistics", replace(given, layers=given.layers_of(networks))
        else:
            name = os.fspath(given)
            statistics = read_statistics(name, (FEATURES,) if per_image else (), networks=networks)
        own = network.definition
        stated = statistics.whole(name).definition
        if own.dims and statistics.dims != own.dims:
            dims = f"{statistics.dims} dimensions, but the metric's have {own.dims}"
            raise InputError(f"{name} has features of {dims}")
        if stated is not None:
            both = [{"definition": definition.to_json()} for definition in (stated, own)]
            check_same_settings(both, (name, "this metric"))
        if per_image and statistics.features is None:
            remedy = "write the file with `fidtool stats REAL --metrics fid,kid -o FILE`"
            if layer := network.choice.dims:
                remedy = f"write the file with `fidtool stats REAL --dims D --metrics fid,kid -o FILE`, D={layer}"
            raise InputError(f"{name} has no features of each image, which this metric needs:", remedy)
        return RealStatistics(name, statistics)

    def doubts(self, network: SharedExtractor, float_to_byte: str) -> list[str]:
        """Warnings about statistics that may not fit to a metric, which are also issued."""
        layer = self.given.layers[FEATURES]
        with renamed("extractor", "feature"):
            doubts = [str(alert) for alert in inception_doubts(self.name, layer, network.choice.extractor)]
        stated = self.float_to_byte
        if stated not in (None, float_to_byte):
            doubts.append(f"{self.name} was made with float_to_byte={stated!r}, and this metric has another")
        for doubt in doubts:
            warn_program(doubt)
        return doubts

    @property
    def float_to_byte(self) -> str | None:
        """How floats became bytes; None if it is as the protocol's tool does, or unknown."""
        stated: str | None = (self.given.config or {}).get("float_to_byte")
        return stated

    @property
    def setting(self) -> str:
        """What all ranks must have."""
        digest = hashlib.sha256(self.given.mu.tobytes() + self.given.sigma.tobytes()).hexdigest()
        return f"statistics with SHA-256 {digest[:12]}"
