"""sFID: the Fréchet distance of Inception's spatial features."""

from __future__ import annotations

from dataclasses import dataclass

from fidtool.errors import InputError, option
from fidtool.features.protocol import SPATIAL
from fidtool.metrics.fid import FID
from fidtool.metrics.metric import MetricFacts, Number


@dataclass(frozen=True, kw_only=True)
class SpatialFID(FID):
    """sFID (Nash et al. 2021): the Fréchet distance of Inception's features before global average pooling."""

    name = "sfid"
    other_names = ("spatial-fid",)
    numbers = (Number("sfid", "sFID", "lower", "Fréchet distance between spatial features", layer=SPATIAL),)
    phase = "sfid"

    def check(self, facts: MetricFacts) -> None:
        if facts.extractor != "inception":
            remedy = f"omit {option('extractor')}, or sfid from {option('metrics')}"
            raise InputError("sFID is defined for Inception only:", remedy, setting="metrics")
        if facts.requested_dims in (64, 192):
            need = f"{option('dims', 768)} or 2048, not {facts.requested_dims}"
            raise InputError(f"sFID needs Inception up to Mixed_6d: {need}", setting="dims")
