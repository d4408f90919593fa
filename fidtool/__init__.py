"""Fréchet Inception Distance: the reference implementation's value, bit-identical at any world size.

>>> import fidtool
>>> fidtool.compute("real/", "fake/").fid  # doctest: +SKIP
12.345678901234

Modules that import torch are loaded on first use, so that ``import fidtool`` and ``fidtool --help`` are fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fidtool.api import check, compute, compute_statistics
    from fidtool.comparability import verify
    from fidtool.diagnose.diagnosis import Checkup
    from fidtool.distances.frechet import frechet_distance
    from fidtool.errors import FidtoolError, FidtoolWarning, InputError, RunError, StoppedError
    from fidtool.features.models.families import NetworkChoice
    from fidtool.features.network import Network
    from fidtool.features.preparation import Preparation
    from fidtool.metrics.cmmd import CMMD
    from fidtool.metrics.fid import FID
    from fidtool.metrics.fid_infinity import FIDInfinity
    from fidtool.metrics.inception_score import InceptionScore
    from fidtool.metrics.kid import KID
    from fidtool.metrics.metric import FeatureSet, Metric, MetricContext, Number
    from fidtool.metrics.prdc import PRDC
    from fidtool.metrics.sfid import SpatialFID
    from fidtool.results import Comparison, Evaluation, RunRecord, SkippedFile
    from fidtool.seeds import rank_seed, sample_seed
    from fidtool.sources.memory import Images
    from fidtool.statistics.set_statistics import LayerStatistics, Statistics
    from fidtool.statistics.statistics_file import read_statistics, write_statistics
    from fidtool.validation import Setting

__version__ = "0.1.0"

_HOMES = {
    "CMMD": "fidtool.metrics.cmmd",
    "FID": "fidtool.metrics.fid",
    "FIDInfinity": "fidtool.metrics.fid_infinity",
    "FeatureSet": "fidtool.metrics.metric",
    "InceptionScore": "fidtool.metrics.inception_score",
    "KID": "fidtool.metrics.kid",
    "Metric": "fidtool.metrics.metric",
    "MetricContext": "fidtool.metrics.metric",
    "Number": "fidtool.metrics.metric",
    "PRDC": "fidtool.metrics.prdc",
    "Setting": "fidtool.validation",
    "SpatialFID": "fidtool.metrics.sfid",
    "check": "fidtool.api",
    "Checkup": "fidtool.diagnose.diagnosis",
    "compute": "fidtool.api",
    "compute_statistics": "fidtool.api",
    "FidtoolError": "fidtool.errors",
    "FidtoolWarning": "fidtool.errors",
    "Images": "fidtool.sources.memory",
    "InputError": "fidtool.errors",
    "LayerStatistics": "fidtool.statistics.statistics_file",
    "RunError": "fidtool.errors",
    "StoppedError": "fidtool.errors",
    "Network": "fidtool.features.network",
    "NetworkChoice": "fidtool.features.models.families",
    "Preparation": "fidtool.features.preparation",
    "frechet_distance": "fidtool.distances.frechet",
    "Comparison": "fidtool.results",
    "Evaluation": "fidtool.results",
    "RunRecord": "fidtool.results",
    "SkippedFile": "fidtool.results",
    "rank_seed": "fidtool.seeds",
    "sample_seed": "fidtool.seeds",
    "Statistics": "fidtool.statistics.statistics_file",
    "verify": "fidtool.comparability",
    "read_statistics": "fidtool.statistics.statistics_file",
    "write_statistics": "fidtool.statistics.statistics_file",
}

__all__ = [
    "CMMD",
    "FID",
    "KID",
    "PRDC",
    "Checkup",
    "Comparison",
    "Evaluation",
    "FIDInfinity",
    "FeatureSet",
    "FidtoolError",
    "FidtoolWarning",
    "Images",
    "InceptionScore",
    "InputError",
    "LayerStatistics",
    "Metric",
    "MetricContext",
    "Network",
    "NetworkChoice",
    "Number",
    "Preparation",
    "RunError",
    "RunRecord",
    "Setting",
    "SkippedFile",
    "SpatialFID",
    "Statistics",
    "StoppedError",
    "check",
    "compute",
    "compute_statistics",
    "frechet_distance",
    "rank_seed",
    "read_statistics",
    "sample_seed",
    "verify",
    "write_statistics",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'fidtool' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
