"""For training loops: metrics that cannot hang, a differentiable loss, and checks that ranks are in sync."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fidtool.distributed.rendezvous import AbsentRanksError
    from fidtool.training.checks import OutOfSyncError, assert_in_sync, assert_optimized, wrap_trainable
    from fidtool.training.feature_extractor import FeatureExtractor
    from fidtool.training.group import dist_sync_fn, gather_with_grad
    from fidtool.training.inception_metrics import (
        FrechetInceptionDistance,
        InceptionScore,
        KernelInceptionDistance,
        MemorizationInformedFrechetInceptionDistance,
        PrecisionRecallDensityCoverage,
    )
    from fidtool.training.lightning_callback import FIDCallback
    from fidtool.training.loss import FrechetLoss

__all__ = [
    "AbsentRanksError",
    "FIDCallback",
    "FeatureExtractor",
    "FrechetInceptionDistance",
    "FrechetLoss",
    "InceptionScore",
    "KernelInceptionDistance",
    "MemorizationInformedFrechetInceptionDistance",
    "OutOfSyncError",
    "PrecisionRecallDensityCoverage",
    "assert_in_sync",
    "assert_optimized",
    "dist_sync_fn",
    "gather_with_grad",
    "wrap_trainable",
]
_HOMES = {
    "AbsentRanksError": "fidtool.distributed.rendezvous",
    "FIDCallback": "fidtool.training.lightning_callback",
    "FeatureExtractor": "fidtool.training.feature_extractor",
    "FrechetLoss": "fidtool.training.loss",
    **dict.fromkeys(("dist_sync_fn", "gather_with_grad"), "fidtool.training.group"),
    **dict.fromkeys(
        ("OutOfSyncError", "assert_in_sync", "assert_optimized", "wrap_trainable"), "fidtool.training.checks"
    ),
}


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module(_HOMES.get(name, "fidtool.training.inception_metrics")), name)
    raise AttributeError(f"module 'fidtool.training' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
