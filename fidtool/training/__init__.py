"""For training loops: metrics that cannot hang, a differentiable loss, and checks that ranks are in
sync.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fidtool.distributed.rendezvous import AbsentRanksError
    from fidtool.training.feature_extractor import FeatureExtractor
    from fidtool.training.group import (
        OutOfSyncError,
        assert_in_sync,
        assert_optimized,
        dist_sync_fn,
        gather_with_grad,
        wrap_trainable,
    )
    from fidtool.training.inception_metrics import (
        FrechetInceptionDistance,
        InceptionScore,
        KernelInceptionDistance,
        MemorizationInformedFrechetInceptionDistance,
        PrecisionRecallDensityCoverage,
    )
    from fidtool.training.lightning_callback import FIDCallback
    from fidtool.training.loss import FrechetLoss
    from fidtool.training.pair_metrics import (
        LearnedPerceptualImagePatchSimilarity,
        MultiScaleStructuralSimilarityIndexMeasure,
        PeakSignalNoiseRatio,
        StructuralSimilarityIndexMeasure,
    )
    from fidtool.training.samples import WithIndex, gather_outputs

__all__ = [
    "AbsentRanksError",
    "FIDCallback",
    "FeatureExtractor",
    "FrechetInceptionDistance",
    "FrechetLoss",
    "InceptionScore",
    "KernelInceptionDistance",
    "LearnedPerceptualImagePatchSimilarity",
    "MemorizationInformedFrechetInceptionDistance",
    "MultiScaleStructuralSimilarityIndexMeasure",
    "OutOfSyncError",
    "PeakSignalNoiseRatio",
    "PrecisionRecallDensityCoverage",
    "StructuralSimilarityIndexMeasure",
    "WithIndex",
    "assert_in_sync",
    "assert_optimized",
    "dist_sync_fn",
    "gather_outputs",
    "gather_with_grad",
    "wrap_trainable",
]

# The homes of these names. Each is only imported if those before it have not the name: the last
# ones need torchmetrics, which takes seconds, and Lightning.
_MODULES = (
    "group",
    "samples",
    "feature_extractor",
    "loss",
    "inception_metrics",
    "pair_metrics",
    "lightning_callback",
)


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in _MODULES:
            home = importlib.import_module(f"fidtool.training.{module}")
            if hasattr(home, name):
                return getattr(home, name)
    raise AttributeError(f"module 'fidtool.training' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
