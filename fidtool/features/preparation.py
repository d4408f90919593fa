"""How images of any size become the square that a network takes: framing and resize. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from operator import index
from typing import Literal, NamedTuple, get_args

from fidtool.errors import InputError

Resize = Literal[
    "bilinear", "bilinear-tf1", "bilinear-antialias", "bicubic-antialias", "pillow-bilinear", "pillow-bicubic"
]
"""Interpolations, of float32 values without rounding but for Pillow's:

- ``bilinear``: half-pixel centres, no antialiasing (torch's).
- ``bilinear-tf1``: TensorFlow 1's: source position is index * in / out, upper neighbour clamped.
- ``bilinear-antialias``, ``bicubic-antialias``: the kernel is widened by the scale where it shrinks (torch's; the
  cubic's parameter is -0.5, and what it overshoots is clamped to 0..255).
- ``pillow-bilinear``, ``pillow-bicubic``: Pillow's own on 8-bit RGB, which rounds to whole numbers after each axis.
"""

Framing = Literal["squash", "shorter edge", "largest square"]


class Frame(NamedTuple):
    """A `Preparation` applied to one size of image. All in pixels.

    Attributes:
        source: rows and columns of the image that are taken: (top, left, height, width).
        resized: (height, width) that the taken part is resized to.
        cut: (top, left) of the network's square inside the resized part.
    """

    source: tuple[int, int, int, int]
    resized: tuple[int, int]
    cut: tuple[int, int]


@dataclass(frozen=True)
class Preparation:
    """What happens to an image before its pixels are normalised.

    Attributes:
        resize: the interpolation, see `Resize`.
        framing: ``squash`` resizes to a square whatever the shape; ``shorter edge`` keeps the shape, as torchvision's
            ``Resize(edge)``; ``largest square`` takes the square in the middle and resizes that, as CMMD does.
        edge: side that is resized to before the network's square is cut from the middle; None: that square's side, so
            that nothing of a ``squash`` or ``largest square`` is cut away.

    Raises:
        InputError: an unknown resize or framing, or an edge that is no positive integer; an edge with a resize that is
            not Pillow's.
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
        # Only Pillow's way computes what is cut out and no more: a very long image would fill the memory.
        if self.cuts and not self.rounds:
            raise InputError(
                f"Preparation: edge and framing 'shorter edge' need a resize of Pillow's, not {self.resize}"
            )

    @property
    def rounds(self) -> bool:
        """Whether the result is whole numbers: its gradient is passed straight through the rounding."""
        return self.resize.startswith("pillow-")

    @property
    def cuts(self) -> bool:
        """Whether a part of what was resized is cut away."""
        return self.edge is not None or self.framing == "shorter edge"

    def describe(self, size: int) -> str:
        """How the fingerprint spells it for a network that takes squares of ``size`` pixels a side."""
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
        """What to take, resize to and cut for an image of ``height`` by ``width`` and a square of ``size`` a side."""
        edge = self.edge or size
        source, resized = (0, 0, height, width), (edge, edge)
        if self.framing == "largest square":
            side = min(height, width)
            source = ((height - side) // 2, (width - side) // 2, side, side)
        elif self.framing == "shorter edge":
            # The longer edge is rounded down, as torchvision does it.
            longer = int(edge * max(height, width) / min(height, width))
            resized = (edge, longer) if height <= width else (longer, edge)
        # torchvision's CenterCrop: halves are rounded to even.
        top, left = (round((side - size) / 2.0) for side in resized)
        return Frame(source, resized, (top, left))
