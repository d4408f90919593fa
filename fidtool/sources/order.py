"""The order in which the images of a set are taken. Imports no torch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def canonical_order(count: int, seed: int = 0) -> NDArray[np.int64]:
    """A fixed pseudo-random permutation of ``range(count)``; every prefix of it is a fair sample.

    Index ``i`` gets SplitMix64's output at position ``i`` of the stream that ``seed`` starts (Steele, Lea & Flood,
    "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014), and the indices are sorted by it. The generator
    is written out here because no library promises that its permutations stay the same from version to version.

    Args:
        count: number of images, at least 0.
        seed: any integer; equal seeds give equal permutations on every machine.

    Returns:
        int64 array of shape (count,).
    """
    z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z += np.uint64(_mix(seed))
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    # The outputs are distinct (SplitMix64's finaliser is a bijection), so the sort has no ties.
    return np.argsort(z, kind="stable").astype(np.int64)


def _mix(seed: int) -> int:
    """Spreads neighbouring seeds over 64 bits: unmixed, seed k + constant would give seed k's stream, shifted."""
    mask = (1 << 64) - 1
    z = (seed * 0xD1342543DE82EF95 + 0x2545F4914F6CDD1D) & mask
    return (z ^ (z >> 32)) * 0xDABA0B6EB09322E3 & mask
