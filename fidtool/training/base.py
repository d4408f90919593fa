"""The class that metrics derive from: torchmetrics' if it is installed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fidtool.errors import InputError

__all__ = ["Base", "PlainMetric"]


class PlainMetric(nn.Module):
    """The parts of ``torchmetrics.Metric`` that are used here, for programs without torchmetrics.

    As a subclass of ``torchmetrics.Metric`` a metric can be in a ``MetricCollection`` and be moved, copied and logged
    like any other. Its state is not registered with torchmetrics, which does not synchronise it.
    """

    def __init__(self, sync_on_compute: bool, process_group: Any, compute_with_cache: bool) -> None:
        super().__init__()
        self.sync_on_compute, self.process_group = sync_on_compute, process_group
        self._anchor = torch.zeros(0, dtype=torch.uint8)

    @property
    def device(self) -> torch.device:
        """The device on which the network runs."""
        return self._anchor.device

    def reset(self) -> None:
        """For ``super().reset()``."""

    def _plot(self, value: Any, ax: Any) -> Any:
        raise InputError("plot() is torchmetrics':", "pip install 'torchmetrics[visual]'")

    def clone(self) -> PlainMetric:
        return copy.deepcopy(self)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> PlainMetric:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._anchor = fn(self._anchor)
        return self


if TYPE_CHECKING:
    from torchmetrics import Metric as Base
else:
    try:
        from torchmetrics import Metric as Base
    except ImportError:
        Base = PlainMetric
