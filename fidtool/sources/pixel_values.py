"""Arrays of images: which axis is which, and how numbers become bytes. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fidtool.errors import InputError
from fidtool.sources.contents import ContentError, Pixels

ValueRange = tuple[float, float]
"""What black and white are in an array of floats."""
_CHANNELS = frozenset({1, 3, 4})


@dataclass(frozen=True)
class Layout:
    """How an image lies in an array.

    Attributes:
        shape: of one image as it is stored.
        channels: which of its axes are the channels; -1 where there is none.
    """

    shape: tuple[int, ...]
    channels: int

    def image(self, values: NDArray[Any]) -> NDArray[Any]:
        """One image in the shape (height, width, channels)."""
        return values[..., None] if self.channels < 0 else np.moveaxis(values, self.channels, -1)

    @property
    def words(self) -> str:
        """For people: ``NHWC``, ``NCHW`` or ``NHW``."""
        return {-1: "NHW", 0: "NCHW", 2: "NHWC"}[self.channels]


def layout_of(shape: Sequence[int], what: str) -> Layout:
    """Finds the axes of an array of images by their lengths: 1, 3 or 4 are channels.

    Args:
        shape: of the array.
        what: the array, for the message.

    Raises:
        InputError: no images, or axes that could mean one thing or another.
    """
    text = "x".join(map(str, shape))
    if len(shape) in (3, 4) and min(shape) <= 0:
        raise InputError(f"no images in {what}: it has the shape {text}")
    if len(shape) == 3 and shape[0] not in (3, 4) and shape[1] > 4 and shape[2] > 4:
        return Layout(tuple(shape[1:]), -1)
    if len(shape) == 4:
        first, last = shape[1] in _CHANNELS, shape[3] in _CHANNELS
        if first and last:
            raise InputError(
                f"{what} has the shape {text}, which could be NHWC or NCHW: store it as NHWC with more than 4 rows and "
                "columns, or the images as files"
            )
        if first or last:
            return Layout(tuple(shape[1:]), 2 if last else 0)
    hint = "; one image alone: array[None]" if len(shape) == 3 else ""
    raise InputError(
        f"{what} has the shape {text}, which is none of images: it should be NHWC or NCHW with 1, 3 or 4 channels, or "
        f"NHW{hint}"
    )


def refuse_objects(dtype: np.dtype[Any], what: str) -> None:
    """Raises an InputError where an array would have to be unpickled."""
    if dtype.hasobject:
        raise InputError(
            f"{what} holds pickled Python objects, which are never loaded because loading them can run code: save one "
            "uint8 array of all images, of one size, or the images as files"
        )


def check_values(dtype: np.dtype[Any], layout: Layout, value_range: ValueRange | None, what: str) -> None:
    """Refuses numbers that say nothing about black and white.

    Raises:
        InputError: neither uint8 nor floats whose range was stated; or four channels of floats.
    """
    if dtype == np.uint8:
        return
    if dtype.kind == "f" and layout.channels >= 0 and layout.shape[layout.channels] == 4:
        raise InputError(
            f"{what} holds floats in four channels, as latents do: decode them into images; pictures with "
            "transparency are uint8 here"
        )
    if dtype.kind == "f" and value_range is not None:
        return
    if dtype.kind == "f":
        raise InputError(
            f"{what} holds {dtype.name}, and nothing says which numbers are black and white: pass --value-range 0,1, "
            "or -1,1, or what it is"
        )
    raise InputError(f"{what} holds {dtype.name}; images are uint8, 0 to 255, or floats with --value-range")


def as_pixels(values: NDArray[Any], value_range: ValueRange | None) -> Pixels | ContentError:
    """One image as bytes.

    Floats are scaled to 0..255 and rounded, halves up, and clipped, as torchvision's ``save_image`` does.

    Args:
        values: array of shape (height, width, channels): uint8, or floats.
        value_range: what black and white are among floats.
    """
    if values.dtype == np.uint8:
        return Pixels(np.ascontiguousarray(values))
    assert value_range is not None
    black, white = value_range
    # Python's numbers take an array's own type; half floats would lose digits.
    exact: NDArray[Any] = values.astype(np.float64 if values.dtype.itemsize > 4 else np.float32)
    if not np.isfinite(exact).all():
        return ContentError("it holds NaN or infinite values")
    scaled = (exact - black) * (255.0 / (white - black))
    # What rounding alone pushes over the edge is not clipped.
    clipped = bool(scaled.min() < -0.5 or scaled.max() > 255.5)
    return Pixels(np.floor(scaled + 0.5).clip(0, 255).astype(np.uint8), clipped)
