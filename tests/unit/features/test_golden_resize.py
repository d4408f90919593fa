"""Pixels after each way of resizing, before they are normalised for a network."""

from __future__ import annotations

import hashlib
from typing import Any, get_args

import numpy as np
import torch

from fidtool import Preparation
from fidtool.features.resize import Resize, resize
from support.goldens import Golden, near

SIZES = ((20, 13), (7, 9), (16, 16), (5, 40))
SIDE = 16


def picture(height: int, width: int) -> torch.Tensor:
    """Return random integers from 0 to 255: float32 tensor of shape (1, height, width, 3)."""
    random = np.random.RandomState(height * 100 + width)
    return torch.from_numpy(random.randint(0, 256, (1, height, width, 3)).astype(np.float32))


def shown(resized: torch.Tensor, whole: bool) -> Any:
    """Return the SHA-256 of integers; otherwise the mean and some values, whose last bits depend on
    the processor.
    """
    values = resized.numpy()
    if whole:
        assert np.array_equal(values, np.rint(values))
        return [
            list(values.shape),
            hashlib.sha256(np.ascontiguousarray(values.astype(np.uint8))).hexdigest(),
        ]
    some = [float(value) for value in values[0, :, ::5, ::5].reshape(-1)[:12]]
    return [
        list(values.shape),
        near(some, 1e-6, 1e-3),
        near(float(values.astype(np.float64).mean()), 1e-6),
    ]


def test_each_resize(golden: Golden) -> None:
    found: dict[str, Any] = {}
    for way in get_args(Resize):
        preparation = Preparation(way)
        found[way] = {
            f"{height}x{width}": shown(
                resize(picture(height, width), SIDE, preparation), preparation.rounds
            )
            for height, width in SIZES
        }
    golden("features/resize", found)


def test_framings(golden: Golden) -> None:
    """The cropped regions, resized in Pillow's ways, which give integers."""
    found: dict[str, Any] = {}
    for framing, edge in (
        ("squash", 20),
        ("shorter edge", 18),
        ("largest square", None),
        ("largest square", 24),
    ):
        for way in ("pillow-bilinear", "pillow-bicubic"):
            preparation = Preparation(way, framing, edge)  # type: ignore[arg-type]
            name = f"{way}, {preparation.describe(SIDE)}"
            found[name] = [
                shown(resize(picture(*size), SIDE, preparation), True)[1] for size in SIZES
            ]
    golden("features/framings", found)
