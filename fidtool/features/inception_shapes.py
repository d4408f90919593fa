"""Names and shapes of the 94 convolutions of Inception, in torchvision's order. Imports no torch.

They are those of torchvision's ``Inception3``, stated here because to import torchvision takes two seconds, which is
longer than 40 images take on two cores. A test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass

_FEATURES = 2048


@dataclass(frozen=True)
class ConvolutionShape:
    """One convolution. ``kernel`` and ``padding`` are (height, width)."""

    inputs: int
    outputs: int
    kernel: tuple[int, int]
    stride: int
    padding: tuple[int, int]

    @property
    def weight(self) -> tuple[int, int, int, int]:
        """Shape of its weight."""
        return (self.outputs, self.inputs, *self.kernel)


def _same(inputs: int, outputs: int, height: int = 1, width: int = 1) -> ConvolutionShape:
    """Keeps the resolution."""
    return ConvolutionShape(inputs, outputs, (height, width), 1, (height // 2, width // 2))


def _valid(inputs: int, outputs: int, stride: int = 2) -> ConvolutionShape:
    """3x3 without padding."""
    return ConvolutionShape(inputs, outputs, (3, 3), stride, (0, 0))


_STEM = {
    "Conv2d_1a_3x3": _valid(3, 32),
    "Conv2d_2a_3x3": _valid(32, 32, stride=1),
    "Conv2d_2b_3x3": _same(32, 64, 3, 3),
    "Conv2d_3b_1x1": _same(64, 80),
    "Conv2d_4a_3x3": _valid(80, 192, stride=1),
}


def _mixed_a(inputs: int, pooled: int) -> dict[str, ConvolutionShape]:
    return {
        "branch1x1": _same(inputs, 64),
        "branch5x5_1": _same(inputs, 48),
        "branch5x5_2": _same(48, 64, 5, 5),
        "branch3x3dbl_1": _same(inputs, 64),
        "branch3x3dbl_2": _same(64, 96, 3, 3),
        "branch3x3dbl_3": _same(96, 96, 3, 3),
        "branch_pool": _same(inputs, pooled),
    }


_MIXED_B = {
    "branch3x3": _valid(288, 384),
    "branch3x3dbl_1": _same(288, 64),
    "branch3x3dbl_2": _same(64, 96, 3, 3),
    "branch3x3dbl_3": _valid(96, 96),
}


def _mixed_c(middle: int) -> dict[str, ConvolutionShape]:
    return {
        "branch1x1": _same(768, 192),
        "branch7x7_1": _same(768, middle),
        "branch7x7_2": _same(middle, middle, 1, 7),
        "branch7x7_3": _same(middle, 192, 7, 1),
        "branch7x7dbl_1": _same(768, middle),
        "branch7x7dbl_2": _same(middle, middle, 7, 1),
        "branch7x7dbl_3": _same(middle, middle, 1, 7),
        "branch7x7dbl_4": _same(middle, middle, 7, 1),
        "branch7x7dbl_5": _same(middle, 192, 1, 7),
        "branch_pool": _same(768, 192),
    }


_MIXED_D = {
    "branch3x3_1": _same(768, 192),
    "branch3x3_2": _valid(192, 320),
    "branch7x7x3_1": _same(768, 192),
    "branch7x7x3_2": _same(192, 192, 1, 7),
    "branch7x7x3_3": _same(192, 192, 7, 1),
    "branch7x7x3_4": _valid(192, 192),
}


def _mixed_e(inputs: int) -> dict[str, ConvolutionShape]:
    return {
        "branch1x1": _same(inputs, 320),
        "branch3x3_1": _same(inputs, 384),
        "branch3x3_2a": _same(384, 384, 1, 3),
        "branch3x3_2b": _same(384, 384, 3, 1),
        "branch3x3dbl_1": _same(inputs, 448),
        "branch3x3dbl_2": _same(448, 384, 3, 3),
        "branch3x3dbl_3a": _same(384, 384, 1, 3),
        "branch3x3dbl_3b": _same(384, 384, 3, 1),
        "branch_pool": _same(inputs, 192),
    }


_BLOCKS = {
    "Mixed_5b": _mixed_a(192, 32),
    "Mixed_5c": _mixed_a(256, 64),
    "Mixed_5d": _mixed_a(288, 64),
    "Mixed_6a": _MIXED_B,
    "Mixed_6b": _mixed_c(128),
    "Mixed_6c": _mixed_c(160),
    "Mixed_6d": _mixed_c(160),
    "Mixed_6e": _mixed_c(192),
    "Mixed_7a": _MIXED_D,
    "Mixed_7b": _mixed_e(1280),
    "Mixed_7c": _mixed_e(_FEATURES),
}

CONVOLUTIONS: dict[str, ConvolutionShape] = {
    **_STEM,
    **{f"{block}.{name}": shape for block, shapes in _BLOCKS.items() for name, shape in shapes.items()},
}
"""By torchvision's names; the TorchScript archive of the ``offline`` extra stores them in this order, too."""


def convolutions_of(block: str) -> list[str]:
    """Names of a mixed block's convolutions, within the block."""
    return list(_BLOCKS[block])
