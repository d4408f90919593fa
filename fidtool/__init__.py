"""Fréchet Inception Distance: the value of other tools, bit-identical at any world size.

>>> import fidtool
>>> fidtool.compute("real/", "fake/").fid  # doctest: +SKIP
12.345678901234

Modules that need torch or other large packages are loaded at their first use, so that ``import
fidtool`` and ``fidtool --help`` are fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fidtool.distributed.seeds import rank_seed as rank_seed
from fidtool.distributed.seeds import sample_seed as sample_seed
from fidtool.errors import FidtoolError as FidtoolError
from fidtool.errors import FidtoolWarning as FidtoolWarning
from fidtool.errors import InputError as InputError
from fidtool.errors import ResultWarning as ResultWarning
from fidtool.errors import RunError as RunError
from fidtool.errors import StoppedError as StoppedError
from fidtool.features.choice import NetworkChoice as NetworkChoice
from fidtool.metrics.authpct import AuthPct as AuthPct
from fidtool.metrics.clip_score import CLIPScore as CLIPScore
from fidtool.metrics.cmmd import CMMD as CMMD
from fidtool.metrics.fdr import FDR as FDR
from fidtool.metrics.fid import FID as FID
from fidtool.metrics.fid import FIDInfinity as FIDInfinity
from fidtool.metrics.fid import SpatialFID as SpatialFID
from fidtool.metrics.inception_score import InceptionScore as InceptionScore
from fidtool.metrics.kid import KID as KID
from fidtool.metrics.lpips import LPIPS as LPIPS
from fidtool.metrics.metric import FeatureSet as FeatureSet
from fidtool.metrics.metric import Metric as Metric
from fidtool.metrics.metric import MetricContext as MetricContext
from fidtool.metrics.metric import MetricFacts as MetricFacts
from fidtool.metrics.metric import Number as Number
from fidtool.metrics.mifid import MIFID as MIFID
from fidtool.metrics.mind import MIND as MIND
from fidtool.metrics.pairs import PairMetric as PairMetric
from fidtool.metrics.prdc import PRDC as PRDC
from fidtool.metrics.psnr import PSNR as PSNR
from fidtool.metrics.ssim import SSIM as SSIM
from fidtool.metrics.ssim import MultiScaleSSIM as MultiScaleSSIM
from fidtool.metrics.vendi import Vendi as Vendi
from fidtool.validation import Setting as Setting

if TYPE_CHECKING:
    from fidtool.api import check as check
    from fidtool.api import compute as compute
    from fidtool.api import compute_statistics as compute_statistics
    from fidtool.diagnose.diagnosis import Checkup as Checkup
    from fidtool.distances.frechet import frechet_distance as frechet_distance
    from fidtool.features.network import Network as Network
    from fidtool.features.resize import Preparation as Preparation
    from fidtool.result.evaluation import Comparison as Comparison
    from fidtool.result.evaluation import Evaluation as Evaluation
    from fidtool.result.evaluation import SetResult as SetResult
    from fidtool.result.evaluation import SkippedFile as SkippedFile
    from fidtool.result.verify import verify as verify
    from fidtool.settings.record import RunRecord as RunRecord
    from fidtool.sources.crops import Crop as Crop
    from fidtool.sources.memory import Images as Images
    from fidtool.statistics.file import read_statistics as read_statistics
    from fidtool.statistics.file import write_statistics as write_statistics
    from fidtool.statistics.merging import merge_statistics as merge_statistics
    from fidtool.statistics.set_statistics import LayerStatistics as LayerStatistics
    from fidtool.statistics.set_statistics import Statistics as Statistics

# The other public names, by module.
__version__ = "0.1.0"
_NAMES = {
    "api": "check compute compute_statistics",
    "diagnose.diagnosis": "Checkup",
    "distances.frechet": "frechet_distance",
    "features.network": "Network",
    "features.resize": "Preparation",
    "result.evaluation": "Comparison Evaluation SetResult SkippedFile",
    "settings.record": "RunRecord",
    "result.verify": "verify",
    "sources.crops": "Crop",
    "sources.memory": "Images",
    "statistics.merging": "merge_statistics",
    "statistics.file": "LayerStatistics Statistics read_statistics write_statistics",
}
_HOMES = {name: f"fidtool.{module}" for module, names in _NAMES.items() for name in names.split()}
_IMPORTED = [
    name
    for name, value in globals().items()
    if getattr(value, "__module__", "").startswith("fidtool.")
]
__all__ = sorted([*_HOMES, *_IMPORTED])


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'fidtool' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
