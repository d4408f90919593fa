"""Exact sums, inner products and squared distances of feature vectors: the same bits for any
library and threads.

Feature vectors are rounded to integer vectors q, as in `fidtool.statistics.moments`. By
Cauchy-Schwarz, the absolute value of any partial sum of <a, b> is at most |a||b|. If all |q|² are
below 2 ** 51, all intermediate results of a matrix product of such vectors are integers below 2 **
51, and those of |a|² + |b|² - 2<a, b> are at most 2 ** 53. float64 represents these exactly, so
that sums in any order give the same, exact result.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.distances.parallel import fair_threads, set_threads
from fidtool.distributed.launch import Launch
from fidtool.distributed.world import World
from fidtool.errors import InputError, mark_agreed
from fidtool.features.protocol import INCEPTION_FEATURE_STEP, Definition
from fidtool.statistics.moments import (
    ExactMoments,
    not_finite_error,
    step_error,
    suggest_step,
)
from fidtool.statistics.set_statistics import Gaussian

# Length of a vector in units of the step whose square is 2 ** 51.
_MAX_NORM = 2.0**25.5
# Bits that the length of the longest vector must have.
_MIN_BITS = 14

MAX_STEP = 100
"""Finer than exact products allow: `quantize_features` then takes the finest step that does."""
BLOCK_ROWS = 1024
"""Rows that are read at a time. It affects the last bits of floating-point sums, so it must not
depend on the machine.
"""

Features = NDArray[np.float32]
"""Feature vectors of images, of shape (n, D)."""
Rows = slice | NDArray[np.int64]
"""Rows of a set: a slice, or row numbers."""


@dataclass(frozen=True)
class FeatureBlock:
    """Some of a set's feature vectors, in units of 2 ** -step.

    Attributes:
        rows: rows of the set that the block contains.
        integers: float64 tensor of shape (n, D), all integers.

    ``a.integers @ b.integers.T`` are the inner products of two blocks in units of 2 ** (-2 step),
    exact.
    """

    rows: Rows
    integers: torch.Tensor

    @functools.cached_property
    def squares(self) -> torch.Tensor:
        """The squared norms of the rows: float64 tensor of shape (n,)."""
        return self.integers.square().sum(1)


@dataclass(eq=False)
class QuantizedFeatures:
    """A set's feature vectors as integers, one block at a time. Created by `quantize_features`.

    If they fit into the memory of a GPU, they are read once, at the first block. On the CPU, where
    reading and rounding a block takes little time compared with its products, they are read for
    each block.

    Attributes:
        world: the ranks that share the work.
    """

    features: Features
    step: int
    device: torch.device
    world: World

    def __len__(self) -> int:
        return len(self.features)

    def full(self, value: float, dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor on the device with this value for each row, shape (n,)."""
        return torch.full((len(self),), value, dtype=dtype, device=self.device)

    def block(self, rows: Rows) -> FeatureBlock:
        """Return the vectors of these rows, on the device, within a `World.together` block."""
        self.world.check_stop()
        if self._resident is None:
            return FeatureBlock(rows, _round(self.features[rows], self.step, self.device))
        places: slice | torch.Tensor
        if isinstance(rows, slice):
            places = rows
        else:
            places = torch.tensor(np.ascontiguousarray(rows), device=self.device)
        return FeatureBlock(rows, self._resident[places].double())

    @functools.cached_property
    def _resident(self) -> torch.Tensor | None:
        """All integers on the device, as int32 because they are below 2 ** 26; None if they take
        too much memory.
        """
        if 4 * self.features.size > resident_bytes(self.device):
            return None
        integers = torch.empty(self.features.shape, dtype=torch.int32, device=self.device)
        for rows in row_blocks(len(self)):
            integers[rows] = _round(self.features[rows], self.step, self.device).int()
        return integers


def quantize_features(
    sets: Sequence[Features], settings: FeatureSettings
) -> list[QuantizedFeatures]:
    """Round sets of features to a common step, so that inner products within and between them are
    exact. A collective.

    Args:
        sets: arrays of shape (n, D) with the same D, the same on all ranks, on disk or in memory.
            Each rank reads its part once.
        settings: with the ranks, the device of the blocks and the step. If a vector is too long for
            that step, which Inception features never are, the finest step that suits all vectors of
            all sets is used instead.
    """
    dims = {features.shape[1:] for features in sets}
    if len(dims) != 1 or sets[0].ndim != 2:
        shapes = " and ".join(str(features.shape) for features in sets)
        raise InputError(
            f"the features have shapes {shapes}, which cannot be compared:",
            "use the same network for all sets",
        )
    length = _max_norm(sets, settings.world)
    if not math.isfinite(length):
        raise mark_agreed(not_finite_error())
    step = settings.feature_step
    if length > 0.0:
        rounding = 0.5 * math.sqrt(sets[0].shape[1])  # at most, of a vector
        step = min(step, math.floor(math.log2((_MAX_NORM - rounding) / length)))
        if length * 2.0**step < 2.0**_MIN_BITS:
            raise mark_agreed(
                step_error(
                    f"the longest feature vector has length {length:g}, which leaves fewer than "
                    f"{_MIN_BITS} bits at feature_step {step}:",
                    "feature_step",
                    suggest_step(0, length),
                )
            )
    return [QuantizedFeatures(features, step, settings.device, settings.world) for features in sets]


def _max_norm(sets: Sequence[Features], world: World) -> float:
    """Return the length of the longest vector, NaN if any is NaN. Each rank reads its rows. A
    collective.
    """
    lengths = [0.0]
    with world.together():
        for features in sets:
            for rows in row_blocks(len(features))[world.rank :: world.size]:
                world.check_stop()
                lengths.append(np.linalg.norm(features[rows].astype(np.float64), axis=1).max())
    return float(np.max(world.gather(np.max(lengths))))  # the built-in max does not propagate NaN


def _round(features: Features, step: int, device: torch.device) -> torch.Tensor:
    """Return the integers as float64, with the same bits on any device."""
    if device.type == "cpu":
        integers = np.multiply(features, 2.0**step, dtype=np.float64)
        return torch.from_numpy(np.rint(integers, out=integers))
    # Half as many bytes are copied to the device as in float64.
    on_device = torch.tensor(np.ascontiguousarray(features), device=device)
    return on_device.double().mul_(2.0**step).round_()


def resident_bytes(device: torch.device) -> int:
    """Return how much may stay on the device: a quarter of a GPU's free memory, 0 on the CPU,
    which must not grow.
    """
    if device.type != "cuda":
        return 0
    free, _ = torch.cuda.mem_get_info(device)
    return free // 4


def row_blocks(count: int, size: int = BLOCK_ROWS) -> list[slice]:
    """Divide rows 0 to count - 1 into consecutive parts of ``size`` rows; the last may be
    smaller.
    """
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def iterate_blocks(features: Features, device: torch.device) -> Iterator[torch.Tensor]:
    """Yield the vectors as float64, one block at a time."""
    for rows in row_blocks(len(features)):
        yield torch.from_numpy(features[rows].astype(np.float64)).to(device)


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the population standard deviation (ddof 0), from sums that are rounded
    once.
    """
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / len(values)
    return mean, math.sqrt(variance)


def squared_distances(first: FeatureBlock, second: FeatureBlock) -> torch.Tensor:
    """Return |a - b|² in units of 2 ** (-2 step) for each a and b of the blocks: exact, float64 of
    shape (n, m).
    """
    rest = torch.addmm(second.squares, first.integers, second.integers.T, alpha=-2.0)
    return rest.add_(first.squares[:, None])


@dataclass(frozen=True)
class FeatureSettings:
    """How features are summed, and by which ranks.

    Attributes:
        feature_step: features are rounded to multiples of 2 ** -feature_step; see `ExactMoments`.
        ddof: covariances are divided by N - ddof.
        device: device of the sums; it must support float64.
        world: the ranks that share the work, and the cores of the machine; by default, this process
            alone.
    """

    feature_step: int
    ddof: int = 1
    device: torch.device = torch.device("cpu")  # noqa: RUF009 (immutable)
    world: World = field(default_factory=lambda: World(Launch()))

    def gaussian(self, features: Features, rows: NDArray[np.int64]) -> Gaussian:
        """Return the exact mean and covariance of some rows. Not a collective: ranks may use
        different rows.

        Args:
            features: shape (n, D); one block at a time is read.
            rows: int64 array of row numbers. Their order does not change the result; ascending
                order is fastest.
        """
        dims = features.shape[1]
        moments = ExactMoments(dims, self.feature_step, self.device)
        # Products of few dimensions take less time than waking up a second thread.
        with set_threads(fair_threads(self.world) if dims >= 256 else 1):
            for part in row_blocks(len(rows)):
                moments.add(torch.from_numpy(features[rows[part]]))
                self.world.check_stop()
            return moments.mean_covariance(self.ddof)


def feature_settings(
    definition: Definition | None, device: torch.device, world: World
) -> FeatureSettings:
    """Return the settings for a network; Inception's if ``definition`` is None, as in files of
    other tools.
    """
    if definition is None:
        return FeatureSettings(INCEPTION_FEATURE_STEP, device=device, world=world)
    return FeatureSettings(definition.feature_step, definition.ddof, device, world)
