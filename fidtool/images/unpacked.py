"""Contents to images: what is encoded is decoded, and what came as pixels is taken as it is. Imports no torch."""

from __future__ import annotations

import numpy as np

from fidtool.images.decode import DecodedImage, DecodeError, check_size, decode, from_image
from fidtool.sources.contents import Pixels, Read
from fidtool.validation import MAX_PIXELS

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def image_of(content: Read, max_pixels: int = MAX_PIXELS) -> DecodedImage:
    """The image that a content is, as the protocols see it.

    Raises:
        DecodeError: see `fidtool.images.decode.decode`.
        MemoryError: likewise.
        Exception: there is no content, but this reason; see `fidtool.sources.contents.Read`.
    """
    if isinstance(content, Exception):
        raise content
    if isinstance(content, bytes):
        return decode(content, max_pixels)
    return from_pixels(content, max_pixels) if isinstance(content, Pixels) else from_image(content, max_pixels)


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
