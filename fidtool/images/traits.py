"""What was seen of image files while they were decoded, counted. Imports no torch."""

from __future__ import annotations

from dataclasses import astuple, dataclass


@dataclass(frozen=True)
class Traits:
    """What was seen of the image files while they were decoded.

    Attributes:
        lossy: number of images in a lossy file format.
        alpha: number of images with transparent pixels.
        deep: number of images with more than 8 bits a channel, scaled to 8.
        animated: number of files with further frames, of which the first was taken.
        rotated: number of images with an EXIF orientation, which was not applied.
        clipped: number of images in an array with values outside the range that was stated, which were clipped.
    """

    lossy: int = 0
    alpha: int = 0
    deep: int = 0
    animated: int = 0
    rotated: int = 0
    clipped: int = 0

    def __add__(self, other: Traits) -> Traits:
        return Traits(*(mine + more for mine, more in zip(astuple(self), astuple(other), strict=True)))
