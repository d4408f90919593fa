"""Exact sums, inner products and squared distances of feature vectors: the same bits for any library and threads.

A feature vector is rounded to a vector q of integers, as `fidtool.statistics.moments` does. By Cauchy-Schwarz a sum of
any of the terms of <a, b> is at most |a||b| in size. While every |q|² is below 2 ** 51, all that a matrix product of
such vectors can come across is an integer below 2 ** 51, and all that |a|² + |b|² - 2<a, b> can is one of at most
2 ** 53: float64 holds them, so each order of the sums gives the same, exact, result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.distances.parallel import fair_threads, using_threads
from fidtool.distributed.world import World
from fidtool.errors import InputError, RunError, on_every_rank
from fidtool.features.definition import Definition
from fidtool.features.protocol import INCEPTION_FEATURE_STEP
from fidtool.images.batches import cut_batches, deal
from fidtool.statistics.moments import ExactMoments, MeanCovariance

_LARGEST_SQUARE = 2.0**51
_FEWEST_BITS = 14
"""Bits that the longest vector must keep."""

BLOCK_ROWS = 1024
"""Rows that are read at a time. Sums of floats show it in their last bits, so it never depends on the machine."""
_MANY_DIMS = 256

Rows = slice | NDArray[np.int64]
"""Rows of a set: consecutive ones, or those with these numbers."""


@dataclass(frozen=True)
class FeatureBlock:
    """Some of a set's feature vectors, in units of 2 ** -step.

    Attributes:
        rows: which they are.
        integers: float64 tensor of shape (n, D), all integers.
        squares: float64 tensor of shape (n,), the squared norms of the rows.
    """

    rows: Rows
    integers: torch.Tensor
    squares: torch.Tensor


class QuantizedFeatures:
    """A set's feature vectors as integers, read and rounded a block at a time; made by `quantize_features`.

    Attributes:
        step: the features are multiples of 2 ** -step.
        device: where the blocks are.
    """

    def __init__(
        self, features: NDArray[np.float32], step: int, squares: NDArray[np.float64], device: torch.device
    ) -> None:
        self._features = features
        self.step = step
        self._squares = squares
        self.device = device

    def __len__(self) -> int:
        return len(self._features)

    @property
    def dims(self) -> int:
        """Length D of a feature vector."""
        return int(self._features.shape[1])

    def block(self, rows: Rows) -> FeatureBlock:
        """The vectors of these rows, on the device."""
        integers = torch.from_numpy(_rounded(self._features[rows], self.step))
        squares = torch.from_numpy(self._squares[rows].copy())
        return FeatureBlock(rows, integers.to(self.device), squares.to(self.device))

    def blocks(self, parts: Sequence[Rows], world: World) -> Iterator[FeatureBlock]:
        """The blocks of these parts, until the run is told to stop: then `World.together` raises why."""
        for rows in parts:
            if world.must_stop():
                return
            yield self.block(rows)


def quantize_features(
    sets: Sequence[NDArray[np.float32]], feature_step: int, world: World, device: torch.device
) -> list[QuantizedFeatures]:
    """Sets of features in one unit, so that inner products within and between them are exact. A collective.

    Args:
        sets: arrays of shape (n, D) with one D, the same on every rank, on disk or in memory. Each rank reads its part
            once here.
        feature_step: features are rounded to multiples of 2 ** -feature_step; where a vector is too long for that (an
            Inception feature never is), to the finest coarser step that will do for all vectors of all sets.
        world: the ranks.
        device: where blocks are computed; it must have float64.

    Raises:
        InputError: shapes that do not fit.
        RunError: a feature is not finite, or all are so small that rounding leaves too few of their bits.
    """
    if len({features.shape[1:] for features in sets}) != 1 or any(features.ndim != 2 for features in sets):
        shapes = " and ".join(str(features.shape) for features in sets)
        raise InputError(
            f"the features have shapes {shapes}, which cannot be compared:", "use one network for all sets"
        )
    step = feature_step
    while True:
        squares, largest = _squares(sets, step, world)
        if not np.isfinite(largest):
            raise on_every_rank(RunError("a feature is NaN or infinite:", "check the network's weights and its input"))
        # Exact below 2 ** 53 and never below that where the true value is not, so all ranks decide the same.
        if largest < _LARGEST_SQUARE:
            break
        # At most to where the square is still 2 ** 52: the finest step that will do is not passed over.
        step -= max(1, (math.frexp(largest)[1] - 53) // 2)
    if 0.0 < largest < 4.0**_FEWEST_BITS:
        raise on_every_rank(
            RunError(
                f"the longest feature vector has length {largest**0.5 / 2.0**step:g}, which leaves fewer than "
                f"{_FEWEST_BITS} bits at feature_step {step}:",
                "let the extractor's factory return a larger feature_step",
            )
        )
    for own in squares:
        world.sum_(torch.from_numpy(own))
    return [QuantizedFeatures(features, step, own, device) for features, own in zip(sets, squares, strict=True)]


def _squares(sets: Sequence[NDArray[np.float32]], step: int, world: World) -> tuple[list[NDArray[np.float64]], float]:
    """Squared norms, of this rank's part of the rows (0 for the others), and the largest of all; NaN if any is."""
    squares = [np.zeros(len(features)) for features in sets]
    with world.together():
        for features, own in zip(sets, squares, strict=True):
            for rows in deal(parts_of(len(features), BLOCK_ROWS), world.rank, world.size):
                if world.must_stop():
                    break
                integers = _rounded(features[rows], step)
                own[rows] = np.einsum("ij,ij->i", integers, integers)
    largest = np.array(world.gather([own.max(initial=0.0) for own in squares])).max()  # NaN wins
    return squares, float(largest)


def _rounded(features: NDArray[np.float32], step: int) -> NDArray[np.float64]:
    integers = np.multiply(features, 2.0**step, dtype=np.float64)
    return np.rint(integers, out=integers)


def parts_of(count: int, size: int) -> list[slice]:
    """Cuts rows 0 .. count - 1 into consecutive parts of ``size``; the last may be smaller."""
    return [slice(part.start, part.stop) for part in cut_batches(count, size)]


def inner_products(first: FeatureBlock, second: FeatureBlock) -> torch.Tensor:
    """<a, b> for each a of the first block and b of the second, in units of 2 ** (-2 step).

    Returns:
        float64 tensor of shape (len(first), len(second)), exact.
    """
    return first.integers @ second.integers.T


def squared_distances(first: FeatureBlock, second: FeatureBlock) -> torch.Tensor:
    """|a - b|² for each a of the first block and b of the second, in units of 2 ** (-2 step).

    Returns:
        float64 tensor of shape (len(first), len(second)), exact.
    """
    rest = torch.addmm(second.squares, first.integers, second.integers.T, alpha=-2.0)
    return rest.add_(first.squares[:, None])


@dataclass(frozen=True)
class FeatureSettings:
    """How features are added up.

    Attributes:
        feature_step: features are rounded to multiples of 2 ** -feature_step; see `ExactMoments`.
        ddof: covariances are divided by N - ddof.
        device: where sums are computed; it must have float64.
    """

    feature_step: int
    ddof: int = 1
    device: torch.device = torch.device("cpu")  # noqa: RUF009 (immutable)

    @classmethod
    def of(cls, definition: Definition | None, device: torch.device) -> FeatureSettings:
        """The settings of a network; Inception's where a statistics file does not say whose features it holds."""
        if definition is None:
            return cls(INCEPTION_FEATURE_STEP, device=device)
        return cls(definition.feature_step, definition.ddof, device)

    def gaussian(
        self, features: NDArray[np.float32], rows: NDArray[np.int64], world: World, *, ddof: int | None = None
    ) -> MeanCovariance:
        """Mean and covariance of some rows, exact. No collective: each rank may look at other rows.

        Args:
            features: shape (n, D); a block at a time is read.
            rows: int64 array of row numbers. Their order does not show; ascending ones are read quickest.
            world: the ranks, which share the machine's cores. Where one must stop, the result is of the rows so far.
            ddof: replaces that of the settings.

        Raises:
            RunError: features that are not finite, or too large or small for the step.
        """
        moments = ExactMoments(features.shape[1], self.feature_step, self.device)
        # Products of few dimensions are done before a second thread has woken up.
        with using_threads(fair_threads(world) if features.shape[1] >= _MANY_DIMS else 1):
            for part in parts_of(len(rows), BLOCK_ROWS):
                moments.add(torch.from_numpy(features[rows[part]]))
                if world.must_stop():
                    break
            return moments.mean_covariance(self.ddof if ddof is None else ddof)
