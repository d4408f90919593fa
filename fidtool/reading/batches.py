"""Batches of the images of a set, and their assignment to ranks; every frame of image files.

The assignment depends only on the number of images and the seed. Images are divided into batches
before batches are distributed to ranks, so that every forward pass processes the same images at any
world size.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from fidtool.errors import InputError, option
from fidtool.names import format_count
from fidtool.sources.contents import Read
from fidtool.sources.image_set import ImageSet, Indices, SetPart

T = TypeVar("T")


class Batch(NamedTuple):
    """A batch before it is decoded, or some of its images.

    Attributes:
        images: their positions in the set, or in what an iterable yields on this rank.
        last: whether they include the last ones of the batch.
        contents: the images with their names if they have been read, as those of an iterable.
    """

    number: int
    images: Indices
    last: bool = True
    contents: Sequence[tuple[str, Read]] | None = None

    def slice(self, start: int, stop: int) -> Batch:
        """Return the images from ``start`` to ``stop``."""
        contents = None if self.contents is None else self.contents[start:stop]
        return Batch(
            self.number, self.images[start:stop], self.last and stop >= len(self.images), contents
        )


def plan_batches(images: ImageSet, batch_size: int) -> list[Batch]:
    """Divide a set as `cut_batches` does. If images can only be read sequentially, those of a
    batch are stored next to each other instead.
    """
    positions: Indices = range(len(images))
    if images.reader.in_order:
        positions = np.argsort(images.order, kind="stable")
    parts = cut_batches(len(images), batch_size)
    return [Batch(number, positions[part.start : part.stop]) for number, part in enumerate(parts)]


def cut_batches(count: int, batch_size: int) -> list[range]:
    """Divide the positions 0 .. count - 1 into consecutive batches. The last may be smaller; none
    is empty.
    """
    return [range(start, min(start + batch_size, count)) for start in range(0, count, batch_size)]


def deal(batches: Sequence[T], rank: int, world_size: int, in_order: bool = False) -> list[T]:
    """Return the batches of one rank. Each batch is assigned to exactly one rank, and all ranks
    get similar numbers.

    A rank gets every ``world_size``-th batch. If images can only be read sequentially
    (``in_order``), it gets consecutive batches, so that it need not read past its own last image.
    """
    if not in_order:
        return list(batches[rank::world_size])
    start = len(batches) * rank // world_size
    stop = len(batches) * (rank + 1) // world_size
    return list(batches[start:stop])


def select_part(images: ImageSet, part: str, batch_size: int) -> ImageSet:
    """Return a part of a set, such as ``3/16``: consecutive batches of its plan, so that forward
    passes are the same.

    Raises:
        InputError: if there is no such part, or there are fewer batches than parts.
    """
    match = re.fullmatch(r"(\d+)/(\d+)", f"{part}")
    number, count = map(int, match.groups()) if match else (0, 0)
    if not 1 <= number <= count:
        raise InputError(
            f"there is no part {part!r}:", "pass its number and how many there are, such as 3/16"
        )
    batches = plan_batches(images, batch_size)
    if count > len(batches):
        raise InputError(
            f"there is no part {part} of {images.path}, which has "
            f"{format_count(len(images), 'image')} in {format_count(len(batches), 'batch')} of "
            f"{batch_size}:",
            f"pass at most {len(batches)} as the number of parts",
            f"a smaller {option('batch_size')}",
        )
    own = deal(batches, number - 1, count, in_order=True)
    places = np.sort(np.concatenate([batch.images for batch in own]))
    return images.take_part(SetPart(f"{number}/{count}", images.digest(), len(images), places))
