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
# A better partner is nearer than this share of the distances to both partners.
_MAX_DISTANCE_RATIO = 0.8
# Share, and number, of images with a better partner from which on the order is in doubt. Of photos
# of flowers and of CIFAR-10, no reconstruction by JPEG at quality 10, blur, noise, 8-fold
# super-resolution or their mean colour has one, nor have frames of a video; 40 % to 90 % have one
# in another order.
_MIN_SHARE = 0.15
_MIN_COUNT = 2
# Number of images of REAL to compare at a time.
_BLOCK = 1 << 14


def order_findings(real: ImageRecords, fake: ImageRecords) -> list[Finding]:
    """Return a finding if many images of FAKE belong to another image of REAL than their partner,
    in the same row.
    """
    images, partners = find_misplaced(real.records["thumb"], fake.records["thumb"])
    if not len(images):
        return []
    first = int(images[0])
    file = fake.file(first)
    example = f"{file} fits {real.file(int(partners[0]))} and not {real.file(first)}"
    sample = " of a sample" if len(fake) > SAMPLE else ""
    message = (
        f"{len(images)} of {min(len(fake), SAMPLE)} images{sample} fit another image of REAL "
        f"better than their partner ({example}): the two sets are probably in different orders, "
        "which makes the values of the pairs meaningless; put both sets into the same order, or "
        f"choose the pairs in another way ({option('pairs', ...)})"
    )
    return [Finding(OTHER_ORDER, "high", len(images), file, message, "pair")]


def find_misplaced(
    real: Thumbnails, fake: Thumbnails
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return which of the first `SAMPLE` images of FAKE belong to another image of REAL, and to
    which.

    Image i of FAKE is compared with image i of REAL, its partner. Another image of REAL fits
    clearly better if both are nearer to each other than to their partners, and if exchanging the
    two partners makes the pairs more alike as well: a generator that loses detail or colour, or
    that changes brightness, makes no two images of FAKE fit better so.

    Both arrays have shape (n,); (0,) unless so many are misplaced that the order is in doubt. The
    distances are exact integers, so the result is the same on any machine.
    """
    sample = fake[:SAMPLE]
    partners = real[: len(sample)]
    rows = np.arange(len(sample))
    values = sample.astype(np.float32)
    nearest = np.zeros(len(sample), dtype=np.int64)
    least = np.full(len(sample), np.inf)
    for start in range(0, len(real), _BLOCK):
        block = real[start : start + _BLOCK].astype(np.float32)
        # Sums below 2 ** 24, which are exact in float32.
        squares = np.square(values).sum(axis=1)[:, None] + np.square(block).sum(axis=1)
        squares -= 2 * (values @ block.T)
        if start == 0:
            squares[rows, rows] = np.inf  # the partners
        closest = squares.argmin(axis=1)
        distance = squares[rows, closest]
        nearest = np.where(distance < least, start + closest, nearest)
        least = np.minimum(distance, least)
    own = _squared_distances(partners, sample)
    others = _squared_distances(real[nearest], fake[nearest])
    exchanged = least + _squared_distances(partners, fake[nearest])
    is_closer = least < _MAX_DISTANCE_RATIO**2 * np.minimum(own, others)
    images = np.flatnonzero(is_closer & (exchanged < own + others))
    if len(images) < max(_MIN_COUNT, _MIN_SHARE * len(sample)):
        images = images[:0]
    return images, nearest[images]


def _squared_distances(one: Thumbnails, other: Thumbnails) -> NDArray[np.int64]:
    """The squared distance of each thumbnail from that in the same row."""
    return np.asarray(np.square(one.astype(np.int64) - other).sum(axis=1))
