"""Rows of images that were read as they are stored, brought into the set's own order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fidtool.images.batches import stored_order
from fidtool.sources.contents import BadFile
from fidtool.sources.image_set import ImageSet
from fidtool.statistics.kept import RowFile

_BLOCK_BYTES = 1 << 26


def in_canonical_order(images: ImageSet, rows: NDArray[Any], skipped: Sequence[BadFile]) -> NDArray[Any]:
    """The rows of a set's images in the order of the set, by which samples and groups are drawn.

    Args:
        images: the set.
        rows: one an image in the order of the plan, ``skipped`` ones left out: array of shape (images, dims).
        skipped: images that could not be read.

    Returns:
        The rows themselves where the plan keeps the set's order; else a copy, mapped from a file if it is large.
    """
    if not images.in_order:
        return rows
    planned = stored_order(images)
    if skipped:
        left_out = {bad.file for bad in skipped}
        planned = planned[[images.file(int(index)) not in left_out for index in planned]]
    places = np.argsort(planned)
    sorted_rows = RowFile(len(rows), rows.shape[1], rows.dtype)
    block = max(1, _BLOCK_BYTES // (rows.shape[1] * rows.itemsize))
    for start in range(0, len(rows), block):
        sorted_rows.write(start, rows[places[start : start + block]])
    return sorted_rows.array()
