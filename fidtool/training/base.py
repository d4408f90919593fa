"""The class that metrics derive from: torchmetrics' where it is installed, else one of the same shape.

Only the shape is used: that an object is a ``torchmetrics.Metric`` lets it stand in a ``MetricCollection`` and be
moved, copied and logged like the others. Nothing of fidtool's synchronising goes through torchmetrics.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class PlainMetric(nn.Module):
    """What is used of ``torchmetrics.Metric``, for programs without it.

    Args:
        sync_on_compute: whether ``compute`` is about all ranks.
        process_group: whose ranks; None is all.
        compute_with_cache: whether torchmetrics keeps the last value; there is nothing of the kind here.
    """

    def __init__(self, sync_on_compute: bool, process_group: Any, compute_with_cache: bool) -> None:
        super().__init__()
        self.sync_on_compute, self.process_group = sync_on_compute, process_group
        self._update_count, self._is_synced, self._to_sync = 0, False, False
        self._anchor = torch.zeros(0, dtype=torch.uint8)

    @property
    def device(self) -> torch.device:
        """Where the metric lives."""
        return self._anchor.device

    @property
    def update_called(self) -> bool:
        """Whether anything was given to ``update`` since the last ``reset``."""
        return self._update_count > 0

    @property
    def update_count(self) -> int:
        """How often something was."""
        return self._update_count

    def reset(self) -> None:
        """Forgets what was seen."""
        self._update_count, self._is_synced = 0, False

    def clone(self) -> PlainMetric:
        """A copy."""
        return copy.deepcopy(self)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> PlainMetric:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._anchor = fn(self._anchor)
        return self


def metric_base() -> type:
    """``torchmetrics.Metric``, or `PlainMetric` where there is none."""
    try:
        return importlib.import_module("torchmetrics").Metric  # type: ignore[no-any-return]
    except ImportError:
        return PlainMetric
