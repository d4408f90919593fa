"""How images of any size are cropped and resized to the square input of a network."""

from __future__ import annotations

from dataclasses import dataclass
from operator import index
from typing import Literal, NamedTuple, get_args

from fidtool.errors import InputError

Resize = Literal[
    "bilinear", "bilinear-tf1", "bilinear-antialias", "bicubic-antialias", "pillow-bilinear", "pillow-bicubic"
]
"""Interpolations. All but Pillow's compute in float32 without rounding:

- ``bilinear``: torch's, with half-pixel centres and no antialiasing.
- ``bilinear-tf1``: TensorFlow 1's: the source position is index * in / out, and the upper neighbour is clamped.
- ``bilinear-antialias``, ``bicubic-antialias``: torch's, with a kernel widened by the scale when downsampling. The
  cubic kernel has a = -0.5, and its result is clamped to 0..255.
- ``pillow-bilinear``, ``pillow-bicubic``: Pillow's on 8-bit RGB, which rounds to integers after each axis.
"""

Framing = Literal["squash", "shorter edge", "largest square"]


class Frame(NamedTuple):
    """A `Preparation` applied to one size of image. All in pixels.

    Attributes:
        source: the part of the image that is used: (top, left, height, width).
        resized: (height, width) to which this part is resized.
        cut: (top, left) of the network's square inside the resized part.
    """

    source: tuple[int, int, int, int]
    resized: tuple[int, int]
    cut: tuple[int, int]


@dataclass(frozen=True)
class Preparation:
    """How an image is cropped and resized before its pixels are normalised.

    Attributes:
        resize: the interpolation, see `Resize`.
        framing: ``squash`` resizes to a square without keeping the aspect ratio; ``shorter edge`` keeps the aspect
            ratio, as torchvision's ``Resize(edge)``; ``largest square`` crops the largest centre square and resizes it,
            as CMMD does.
        edge: side to which images are resized before the network's square is cropped from the centre. None is the side
            of the network's square: then nothing of a ``squash`` or ``largest square`` is cropped.

    Raises:
        InputError: if resize or framing is unknown, edge is not a positive integer, or an edge is combined with a
            resize that is not Pillow's.
    """

    resize: Resize
    framing: Framing = "squash"
    edge: int | None = None

    def __post_init__(self) -> None:
        for name, known in (("resize", get_args(Resize)), ("framing", get_args(Framing))):
            if getattr(self, name) not in known:
                raise InputError(f"Preparation.{name} {getattr(self, name)!r} is none of {', '.join(known)}")
        if self.edge is not None:
            try:
                object.__setattr__(self, "edge", index(self.edge))
            except TypeError:
                raise InputError(f"Preparation.edge cannot be {self.edge!r}") from None
            if self.edge < 1:
                raise InputError(f"Preparation.edge must be at least 1 pixel, not {self.edge}")
        # Only Pillow's resize computes just the cropped part. With others, a very long image would exhaust the memory.
        if self.cuts and not self.rounds:
            raise InputError(
                f"Preparation: edge and framing 'shorter edge' need one of Pillow's resizes, not {self.resize}"
            )

    @property
    def rounds(self) -> bool:
        """Whether the result consists of integers. Gradients pass straight through the rounding."""
        return self.resize.startswith("pillow-")

    @property
    def cuts(self) -> bool:
        """Whether the resized image is cropped."""
        return self.edge is not None or self.framing == "shorter edge"

    def describe(self, size: int) -> str:
        """Return the description for the fingerprint, for a network with a square input of side ``size``."""
        if self.framing == "squash" and (self.edge or size) == size:
            return self.resize
        edge = self.edge or size
        how = {
            "squash": f"{self.resize}, squashed to {edge}",
            "shorter edge": f"{self.resize}, shorter edge {edge}",
            "largest square": f"centre square, {self.resize} to {edge}",
        }[self.framing]
        return how if edge == size and self.framing != "shorter edge" else f"{how}, centre {size}"

    def frame(self, height: int, width: int, size: int) -> Frame:
        """Return the frame of an image of ``height`` by ``width`` pixels, for a square input of side ``size``."""
        edge = self.edge or size
        source, resized = (0, 0, height, width), (edge, edge)
        if self.framing == "largest square":
            side = min(height, width)
            source = ((height - side) // 2, (width - side) // 2, side, side)
        elif self.framing == "shorter edge":
            # The longer edge is rounded down, as in torchvision.
            longer = int(edge * max(height, width) / min(height, width))
            resized = (edge, longer) if height <= width else (longer, edge)
        # As in torchvision's CenterCrop, halves are rounded to even.
        top, left = (round((side - size) / 2.0) for side in resized)
        return Frame(source, resized, (top, left))
