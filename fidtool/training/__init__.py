"""Inside a training loop: a metric that cannot hang, a loss that keeps its gradient, checks that ranks are in step."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fidtool.training.checks import OutOfSyncError, assert_in_sync, assert_optimized, wrap_trainable
    from fidtool.training.feature_extractor import FeatureExtractor
    from fidtool.training.gather import dist_sync_fn, gather_with_grad
    from fidtool.training.group import AbsentRanksError
    from fidtool.training.lightning_callback import FIDCallback
    from fidtool.training.loss import FrechetLoss
    from fidtool.training.metric import FrechetInceptionDistance

_HOMES = {
    "AbsentRanksError": "group",
    "FIDCallback": "lightning_callback",
    "FeatureExtractor": "feature_extractor",
    "FrechetInceptionDistance": "metric",
    "FrechetLoss": "loss",
    "OutOfSyncError": "checks",
    "assert_in_sync": "checks",
    "assert_optimized": "checks",
    "dist_sync_fn": "gather",
    "gather_with_grad": "gather",
    "wrap_trainable": "checks",
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
        return getattr(importlib.import_module(f"fidtool.training.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'fidtool.training' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
