"""Pictures for the metric for training."""

from __future__ import annotations

from typing import Any

import torch


def pictures(count: int, seed: int, side: int = 20) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=generator)


def fill(metric: Any, seed: int = 1) -> None:
    metric.update(pictures(20, seed), real=True)
    metric.update(pictures(20, seed + 1) // 2, real=False)
