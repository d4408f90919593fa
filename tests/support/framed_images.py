"""Images of many shapes and modes for crops, the same on every machine."""

from __future__ import annotations

import io
import itertools
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fidtool.sources.crops import Crop

SIZES = (31, 64, 256)
"""Sides of the squares that the images are cropped to."""
_SHAPES: dict[str, tuple[tuple[int, int], ...]] = {
    "exactly a square": ((31, 31), (32, 32), (64, 64), (256, 256), (299, 299)),
    "smaller in both sides": ((20, 20), (17, 29), (30, 12), (1, 1)),
    "smaller in one side": ((40, 20), (25, 70), (300, 200), (100, 290)),
    "landscape and portrait": (
        (320, 240),
        (240, 320),
        (500, 375),
        (375, 500),
        (128, 64),
        (64, 128),
        (640, 427),
    ),
    "odd": ((33, 47), (65, 63), (131, 257), (255, 256), (257, 255), (299, 300), (601, 600)),
    "halved several times": ((512, 512), (513, 512), (700, 130)),
    "extreme": ((300, 9), (9, 200), (1, 12), (610, 31)),
}
"""Widths and heights of images in RGB."""
_MODES = (
    ("L", 90, 60),
    ("L", 64, 64),
    ("P", 90, 120),
    ("P", 257, 129),
    ("RGBA", 80, 80),
    ("RGBA", 300, 150),
)
"""Modes, widths and heights of the other images."""


def _values(width: int, height: int, channels: int, seed: int) -> NDArray[np.uint8]:
    """Return waves with noise, and with black and white parts, which filters with negative weights
    overshoot.
    """
    rng = np.random.RandomState(seed)
    rows, columns = np.arange(height)[:, None, None], np.arange(width)[None, :, None]
    phase = rng.randint(1, 9, channels)
    waves = (rows * phase + columns * (11 - phase) + (rows * columns) // 16) * 3 % 512
    noise = rng.randint(-40, 41, (height, width, channels))
    return (waves - 128 + noise).clip(0, 255).astype(np.uint8)


@cache
def framed_images() -> dict[str, bytes]:
    """Return 40 PNG files by name."""
    shapes = [("RGB", *shape) for shapes in _SHAPES.values() for shape in shapes]
    return {
        f"{mode} {width}x{height}": _png(mode, width, height, seed)
        for seed, (mode, width, height) in enumerate([*shapes, *_MODES])
    }


def _png(mode: str, width: int, height: int, seed: int) -> bytes:
    if mode == "P":
        image = Image.fromarray(_values(width, height, 1, seed)[..., 0], "L")
        image.putpalette(_values(256, 1, 3, seed).tobytes())
    else:
        values = _values(width, height, len(mode), seed)
        image = Image.fromarray(values[..., 0] if mode == "L" else values)
    image.save(target := io.BytesIO(), "PNG", compress_level=1)
    return target.getvalue()


def write_framed(folder: Path, crop: str = "") -> Path:
    """Write every second of these images to a folder, whole or, with ``crop``, as the squares that
    it makes.
    """
    folder.mkdir()
    for name, data in itertools.islice(framed_images().items(), 1, None, 2):
        file = folder / f"{name}.png"
        if crop:
            Image.fromarray(
                Crop.parse(crop).apply(np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))
            ).save(file)
        else:
            file.write_bytes(data)
    return folder
