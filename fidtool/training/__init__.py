"""Inside a training loop: a metric that cannot hang, a loss that keeps its gradient, checks that ranks are in step."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fidtool.training.features import FeatureExtractor
    from fidtool.training.gather import dist_sync_fn, gather_with_grad
    from fidtool.training.meeting import AbsentRanksError
    from fidtool.training.metric import FrechetInceptionDistance

_HOMES = {
    "AbsentRanksError": "meeting",
    "FeatureExtractor": "features",
    "FrechetInceptionDistance": "metric",
    "dist_sync_fn": "gather",
    "gather_with_grad": "gather",
}

__all__ = [
    "AbsentRanksError",
    "FeatureExtractor",
    "FrechetInceptionDistance",
    "dist_sync_fn",
    "gather_with_grad",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"fidtool.training.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'fidtool.training' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
