"""Whether images that are compared in pairs are in the same order as their partners, by their
thumbnails.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fidtool.diagnose.findings import Finding
from fidtool.errors import option
from fidtool.reading.records import ImageRecords

Thumbnails = NDArray[np.uint8]
"""Shape (images, bytes of a thumbnail)."""

OTHER_ORDER = "other order"
"""Code of the finding."""
SAMPLE = 256
"""Largest number of images that are compared with all others."""
_CLOSER = 0.8
"""A better partner is nearer than this share of the distances to both partners."""
_NOTABLE = 0.15
_FEWEST = 2
"""Share, and number, of images with a better partner from which on the order is in doubt. Of photos
of flowers and of CIFAR-10, no reconstruction by JPEG at quality 10, blur, noise, 8-fold
super-resolution or their mean colour has one, nor have frames of a video; 40 % to 90 % have one in
another order.
"""
_BLOCK = 1 << 14
"""Number of images of REAL to compare at a time."""


def order_findings(real: ImageRecords, fake: ImageRecords) -> list[Finding]:
    """Returns a finding if many images of FAKE belong to another image of REAL than their partner,
    in the same row.
    """
    found, others = misplaced(real.records["thumb"], fake.records["thumb"])
    if not len(found):
        return []
    first = int(found[0])
    other = int(others[0])
    example = f"{fake.file(first)} fits {real.file(other)} and not {real.file(first)}"
    sample = " of a sample" if len(fake) > SAMPLE else ""
    message = (
        f"{len(found)} of {min(len(fake), SAMPLE)} images{sample} fit another image of REAL "
        f"better than their partner ({example}): the two sets are probably in different orders, "
        "and the values of their pairs are then meaningless; put both into the same order, or "
        f"choose the pairs in another way ({option('pairs', ...)})"
    )
    return [Finding(OTHER_ORDER, "high", len(found), fake.file(first), message, "pair")]


def misplaced(real: Thumbnails, fake: Thumbnails) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns which of the first `SAMPLE` images of FAKE belong to another image of REAL, and to
    which.

    Image i of FAKE is compared with image i of REAL, its partner. Another image of REAL fits
    clearly better if both are nearer to each other than to their partners, and if exchanging the
    two partners makes the pairs more alike as well: a generator that loses detail or colour, or
    that changes brightness, makes no two images of FAKE fit better so.

    Both arrays have shape (n,); (0,) unless so many are misplaced that the order is in doubt. The
    distances are exact integers, so the result is the same on any machine.
    """
    some = fake[:SAMPLE].astype(np.float32)
    rows = np.arange(len(some))
    nearest = np.zeros(len(some), dtype=np.int64)
    least = np.full(len(some), np.inf)
    for start in range(0, len(real), _BLOCK):
        block = real[start : start + _BLOCK].astype(np.float32)
        # Sums below 2 ** 24, which are exact in float32.
        squares = (
            np.square(some).sum(axis=1)[:, None]
            + np.square(block).sum(axis=1)
            - 2 * (some @ block.T)
        )
        if start == 0:
            squares[rows, rows] = np.inf  # the partners
        closest = squares.argmin(axis=1)
        nearer = squares[rows, closest] < least
        nearest[nearer] = start + closest[nearer]
        least[nearer] = squares[rows, closest][nearer]
    own = _squares(real[: len(some)], fake[: len(some)])
    others = _squares(real[nearest], fake[nearest])
    exchanged = least + _squares(real[: len(some)], fake[nearest])
    better = (least < _CLOSER**2 * np.minimum(own, others)) & (exchanged < own + others)
    found = np.flatnonzero(better)
    if len(found) < max(_FEWEST, _NOTABLE * len(some)):
        found = found[:0]
    return found, nearest[found]


def _squares(one: Thumbnails, other: Thumbnails) -> NDArray[np.int64]:
    """The squared distance of each thumbnail from that in the same row."""
    result: NDArray[np.int64] = np.square(one.astype(np.int64) - other).sum(axis=1)
    return result
