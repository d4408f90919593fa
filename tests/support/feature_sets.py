"""Feature arrays for the tests of metrics, and a world of one rank."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fidtool.distributed.launch import Launch
from fidtool.distributed.world import World

Features = NDArray[np.float32]


def alone() -> World:
    """The world of a process without others."""
    return World(Launch())


def normal(count: int, dims: int, seed: int, shift: float = 0.0, spread: float = 1.0) -> Features:
    """Independent normal features."""
    rng = np.random.RandomState(seed)
    return (spread * rng.randn(count, dims) + shift).astype(np.float32)


def mixture(count: int, dims: int, seed: int, centres: int = 5) -> Features:
    """Features in a few clusters of different widths, whose places do not depend on the seed."""
    places = 3.0 * np.random.RandomState(99).randn(centres, dims)
    rng = np.random.RandomState(seed)
    which = rng.randint(0, centres, count)
    return (places[which] + rng.randn(count, dims) * (0.2 + which[:, None] / centres)).astype(np.float32)


def lattice(count: int, dims: int, seed: int, side: int = 3) -> Features:
    """Small integers: many duplicates and many equal distances."""
    return np.random.RandomState(seed).randint(0, side, (count, dims)).astype(np.float32)
