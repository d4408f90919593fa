"""For training loops: metrics that cannot hang, a differentiable loss, and checks that ranks are in
sync.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fidtool.distributed.rendezvous import AbsentRanksError as AbsentRanksError
    from fidtool.training.feature_extractor import FeatureExtractor as FeatureExtractor
    from fidtool.training.group import OutOfSyncError as OutOfSyncError
    from fidtool.training.group import assert_in_sync as assert_in_sync
    from fidtool.training.group import assert_optimized as assert_optimized
    from fidtool.training.group import dist_sync_fn as dist_sync_fn
    from fidtool.training.group import gather_with_grad as gather_with_grad
    from fidtool.training.group import wrap_trainable as wrap_trainable
    from fidtool.training.inception_metrics import (
        FrechetInceptionDistance as FrechetInceptionDistance,
    )
    from fidtool.training.inception_metrics import InceptionScore as InceptionScore
    from fidtool.training.inception_metrics import (
        KernelInceptionDistance as KernelInceptionDistance,
    )
    from fidtool.training.inception_metrics import (
        MemorizationInformedFrechetInceptionDistance as MemorizationInformedFrechetInceptionDistance,  # noqa: E501
    )
    from fidtool.training.inception_metrics import (
        PrecisionRecallDensityCoverage as PrecisionRecallDensityCoverage,
    )
    from fidtool.training.lightning_callback import FIDCallback as FIDCallback
    from fidtool.training.loss import FrechetLoss as FrechetLoss
    from fidtool.training.pair_metrics import (
        LearnedPerceptualImagePatchSimilarity as LearnedPerceptualImagePatchSimilarity,
    )
    from fidtool.training.pair_metrics import (
        MultiScaleStructuralSimilarityIndexMeasure as MultiScaleStructuralSimilarityIndexMeasure,
    )
    from fidtool.training.pair_metrics import PeakSignalNoiseRatio as PeakSignalNoiseRatio
    from fidtool.training.pair_metrics import (
        StructuralSimilarityIndexMeasure as StructuralSimilarityIndexMeasure,
    )
    from fidtool.training.samples import WithIndex as WithIndex
    from fidtool.training.samples import gather_outputs as gather_outputs

_NAMES = {
    "distributed.rendezvous": "AbsentRanksError",
    "training.feature_extractor": "FeatureExtractor",
    "training.group": "OutOfSyncError assert_in_sync assert_optimized dist_sync_fn "
    "gather_with_grad wrap_trainable",
    "training.inception_metrics": "FrechetInceptionDistance InceptionScore KernelInceptionDistance "
    "MemorizationInformedFrechetInceptionDistance PrecisionRecallDensityCoverage",
    "training.lightning_callback": "FIDCallback",
    "training.loss": "FrechetLoss",
    "training.pair_metrics": "LearnedPerceptualImagePatchSimilarity "
    "MultiScaleStructuralSimilarityIndexMeasure PeakSignalNoiseRatio "
    "StructuralSimilarityIndexMeasure",
    "training.samples": "WithIndex gather_outputs",
}
"""Public names by module."""
_HOMES = {name: f"fidtool.{module}" for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'fidtool.training' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
