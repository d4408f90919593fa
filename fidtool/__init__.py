"""Fréchet Inception Distance: the reference implementation's value, bit-identical at any world size.

>>> import fidtool
>>> fidtool.compute("real/", "fake/").fid  # doctest: +SKIP
12.345678901234

Modules that import torch are loaded on first use, so that ``import fidtool`` and ``fidtool --help`` are fast.
"""

from __future__ import annotations

import importlib
import os
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fidtool.api import check as check
    from fidtool.api import compute as compute
    from fidtool.api import compute_statistics as compute_statistics
    from fidtool.comparability import verify as verify
    from fidtool.diagnose.diagnosis import Checkup as Checkup
    from fidtool.distances.frechet import frechet_distance as frechet_distance
    from fidtool.errors import FidtoolError as FidtoolError
    from fidtool.errors import FidtoolWarning as FidtoolWarning
    from fidtool.errors import InputError as InputError
    from fidtool.errors import RunError as RunError
    from fidtool.errors import StoppedError as StoppedError
    from fidtool.features.models.families import NetworkChoice as NetworkChoice
    from fidtool.features.network import Network as Network
    from fidtool.features.preparation import Preparation as Preparation
    from fidtool.metrics.cmmd import CMMD as CMMD
    from fidtool.metrics.fid import FID as FID
    from fidtool.metrics.fid_infinity import FIDInfinity as FIDInfinity
    from fidtool.metrics.inception_score import InceptionScore as InceptionScore
    from fidtool.metrics.kid import KID as KID
    from fidtool.metrics.metric import FeatureSet as FeatureSet
    from fidtool.metrics.metric import Metric as Metric
    from fidtool.metrics.metric import MetricContext as MetricContext
    from fidtool.metrics.metric import Number as Number
    from fidtool.metrics.prdc import PRDC as PRDC
    from fidtool.metrics.sfid import SpatialFID as SpatialFID
    from fidtool.results import Comparison as Comparison
    from fidtool.results import Evaluation as Evaluation
    from fidtool.results import RunRecord as RunRecord
    from fidtool.results import SetResult as SetResult
    from fidtool.results import SkippedFile as SkippedFile
    from fidtool.seeds import rank_seed as rank_seed
    from fidtool.seeds import sample_seed as sample_seed
    from fidtool.sources.memory import Images as Images
    from fidtool.statistics.set_statistics import LayerStatistics as LayerStatistics
    from fidtool.statistics.set_statistics import Statistics as Statistics
    from fidtool.statistics.statistics_file import read_statistics as read_statistics
    from fidtool.statistics.statistics_file import write_statistics as write_statistics
    from fidtool.validation import Setting as Setting

__version__ = "0.1.0"
may_lack_threads = False
"""Whether this process is a fork of one that had threads of libraries, which may have been torch's."""
_forking_with_threads = False


def _before_fork() -> None:
    global _forking_with_threads
    tasks = "/proc/self/task"
    _forking_with_threads = not os.path.isdir(tasks) or len(os.listdir(tasks)) > threading.active_count()


def _in_fork() -> None:
    global may_lack_threads
    may_lack_threads |= _forking_with_threads


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_in_fork)

_HOMES = {
    "CMMD": "fidtool.metrics.cmmd",
    "FID": "fidtool.metrics.fid",
    "KID": "fidtool.metrics.kid",
    "PRDC": "fidtool.metrics.prdc",
    "Checkup": "fidtool.diagnose.diagnosis",
    "Comparison": "fidtool.results",
    "Evaluation": "fidtool.results",
    "FIDInfinity": "fidtool.metrics.fid_infinity",
    "FeatureSet": "fidtool.metrics.metric",
    "FidtoolError": "fidtool.errors",
    "FidtoolWarning": "fidtool.errors",
    "Images": "fidtool.sources.memory",
    "InceptionScore": "fidtool.metrics.inception_score",
    "InputError": "fidtool.errors",
    "LayerStatistics": "fidtool.statistics.statistics_file",
    "Metric": "fidtool.metrics.metric",
    "MetricContext": "fidtool.metrics.metric",
    "Network": "fidtool.features.network",
    "NetworkChoice": "fidtool.features.models.families",
    "Number": "fidtool.metrics.metric",
    "Preparation": "fidtool.features.preparation",
    "RunError": "fidtool.errors",
    "RunRecord": "fidtool.results",
    "SetResult": "fidtool.results",
    "Setting": "fidtool.validation",
    "SkippedFile": "fidtool.results",
    "SpatialFID": "fidtool.metrics.sfid",
    "Statistics": "fidtool.statistics.statistics_file",
    "StoppedError": "fidtool.errors",
    "check": "fidtool.api",
    "compute": "fidtool.api",
    "compute_statistics": "fidtool.api",
    "frechet_distance": "fidtool.distances.frechet",
    "rank_seed": "fidtool.seeds",
    "read_statistics": "fidtool.statistics.statistics_file",
    "sample_seed": "fidtool.seeds",
    "verify": "fidtool.comparability",
    "write_statistics": "fidtool.statistics.statistics_file",
}
"""Module of each public name."""
__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'fidtool' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
