"""For training loops: a metric that cannot hang, a differentiable loss, and checks that ranks are in sync."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fidtool.distributed.rendezvous import AbsentRanksError
    from fidtool.training.checks import OutOfSyncError, assert_in_sync, assert_optimized, wrap_trainable
    from fidtool.training.feature_extractor import FeatureExtractor
    from fidtool.training.gather import dist_sync_fn, gather_with_grad
    from fidtool.training.lightning_callback import FIDCallback
    from fidtool.training.loss import FrechetLoss
    from fidtool.training.metric import FrechetInceptionDistance

_HOMES = {
    "AbsentRanksError": "fidtool.distributed.rendezvous",
    "FIDCallback": "fidtool.training.lightning_callback",
    "FeatureExtractor": "fidtool.training.feature_extractor",
    "FrechetInceptionDistance": "fidtool.training.metric",
    "FrechetLoss": "fidtool.training.loss",
    "OutOfSyncError": "fidtool.training.checks",
    "assert_in_sync": "fidtool.training.checks",
    "assert_optimized": "fidtool.training.checks",
    "dist_sync_fn": "fidtool.training.gather",
    "gather_with_grad": "fidtool.training.gather",
    "wrap_trainable": "fidtool.training.checks",
}

__all__ = [
    "AbsentRanksError",
    "FIDCallback",
    "FeatureExtractor",
    "FrechetInceptionDistance",
    "FrechetLoss",
    "OutOfSyncError",
    "assert_in_sync",
    "assert_optimized",
    "dist_sync_fn",
    "gather_with_grad",
    "wrap_trainable",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'fidtool.training' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
