"""Images that come as pixels, and need no decoder. Imports no torch."""

from __future__ import annotations

import numpy as np

from fidtool.images.decode import DecodedImage, DecodeError, check_size
from fidtool.sources.contents import Pixels

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def from_pixels(image: Pixels, max_pixels: int) -> DecodedImage:
    """RGB of pixels of 1, 3 or 4 channels, as `decode` gives it of a file: gray is repeated, alpha is dropped.

    Raises:
        DecodeError: more pixels than ``max_pixels``.
    """
    values = image.values
    height, width, channels = values.shape
    if not values.size:
        raise DecodeError(f"it has {width} x {height} pixels")
    check_size((width, height), max_pixels)
    alpha = channels == 4 and bool(values[..., 3].min() < 255)
    pixels = np.repeat(values, 3, axis=2) if channels == 1 else np.ascontiguousarray(values[..., :3])
    return DecodedImage(pixels, False, alpha, False, False, False, image.clipped, "array", _MODES[channels], 0)
