"""Pillow's resize, for comparison with fidtool's."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image

from fidtool.features.resize import Preparation, Resize, resize

FILTERS: dict[Resize, Image.Resampling] = {
    "pillow-bilinear": Image.Resampling.BILINEAR,
    "pillow-bicubic": Image.Resampling.BICUBIC,
}
BLANK = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}


def noise(height: int, width: int) -> Image.Image:
    rng = np.random.RandomState(height * 1000 + width)
    return Image.fromarray(rng.randint(0, 256, (height, width, 3)).astype(np.uint8))


def ours(picture: Image.Image, size: int, preparation: Preparation) -> torch.Tensor:
    """Return fidtool's pixel values, of shape (3, size, size)."""
    return resize(torch.from_numpy(np.array(picture))[None], size, preparation)[0]


def widths_first(picture: Image.Image, width: int, height: int, method: Resize) -> Image.Image:
    """Resize with Pillow in the order that it used before version 13."""
    return picture.resize((width, picture.height), FILTERS[method]).resize(
        (width, height), FILTERS[method]
    )
