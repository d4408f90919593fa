"""Error bars for the FID: a jackknife over blocks of the generated images, with the bias removed to high order."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.distances.exact import FeatureSettings
from fidtool.distances.frechet import frechet_distance
from fidtool.distances.jackknife import BLOCKS, Interval, interval, interval_between, members
from fidtool.distances.parallel import linear_algebra_threads, using_threads
from fidtool.distributed.world import World
from fidtool.statistics.moments import Gaussian

IMAGES_PER_DIMENSION = 5
"""Images per dimension that error bars need, so that the covariance of a quarter of the images has full rank with some
margin."""
FEWEST = 200
"""Images that error bars need in any case: in blocks of fewer than 10 images, a few outliers determine the standard
error."""
_POINTS = 4
"""Number of points of the curve."""

Curve = tuple[tuple[int, float], ...]
"""Pairs (number of images, FID) for the first quarter, half and three quarters of the images, and for all."""


@dataclass(frozen=True)
class ErrorBars:
    """Bias and uncertainty of the FID.

    Attributes:
        bias: bias of ``fid`` due to the finite number of images.
        corrected: estimate of the FID of infinitely many images of this generator.
        parts: FIDs of the parts that `members` lists, for `difference`; float64 array of shape (37,).
    """

    fid: float
    bias: float
    corrected: Interval
    parts: NDArray[np.float64]
    curve: Curve


def error_bars(real: Gaussian, fake: NDArray[np.float32], settings: FeatureSettings, world: World) -> ErrorBars:
    """Computes the FID's finite-sample bias, standard error and 95 % confidence interval. A collective.

    The images, which should be independent, are divided into 20 blocks of consecutive rows; `interval` describes the
    estimate. The real images are taken to be fixed: the result does not include their bias or their sampling error.
    Memory: 20 matrices of D x D in float64, on rank zero. Time: the covariance of the images and 41 distances, each of
    which takes 1.2 s at D = 2048 on two cores.

    Args:
        fake: features of shape (n, D), the same on all ranks, in random order; one block at a time is read.
        world: the ranks. Rank zero does the work; the results have the same bits for any number of ranks.
    """

    def measured() -> tuple[NDArray[np.float64], Curve]:
        blocks = _blocks(fake, BLOCKS, settings, world)
        parts = [_distance(real, list(itertools.compress(blocks, part)), settings.ddof, world) for part in members()]
        return np.array(parts), _curve(real, blocks, settings.ddof, world)

    parts, curve = world.on_rank_zero(measured)
    fid, corrected = float(parts[0]), interval(parts)
    return ErrorBars(fid, fid - corrected.value, corrected, parts, curve)


def difference(one: ErrorBars, other: ErrorBars) -> Interval:
    """Returns the bias-corrected FID of ``one`` minus that of ``other``: positive if ``other`` is closer to REAL.

    The sets are compared block by block, so that common variation cancels. This requires that row i of both
    comes from the same latents: equal numbers of images and the same order of names. For independent sets, the interval
    is as narrow as that of an unpaired comparison. It is symmetric and has the same coverage as that of a single set.
    """
    return interval_between(one.parts, other.parts)


def fid_curve(real: Gaussian, fake: NDArray[np.float32], settings: FeatureSettings, world: World) -> Curve:
    """Computes the FID of parts of the images, as in `ErrorBars.curve`, for any number of images. A collective.

    Parts without images are omitted. For the arguments see `error_bars`.
    """
    return world.on_rank_zero(lambda: _curve(real, _blocks(fake, _POINTS, settings, world), settings.ddof, world))


def fewest_images(dims: int) -> int:
    """Returns the number of generated images that error bars need."""
    return max(IMAGES_PER_DIMENSION * dims, FEWEST)


def _blocks(fake: NDArray[np.float32], number: int, settings: FeatureSettings, world: World) -> list[Gaussian]:
    """Returns ``number`` consecutive blocks, with covariances of ddof 0. Blocks without images are omitted."""
    ends = [len(fake) * block // number for block in range(number + 1)]
    return [
        settings.gaussian(fake, np.arange(start, end), world, ddof=0)
        for start, end in itertools.pairwise(ends)
        if start < end
    ]


def pooled(blocks: Sequence[Gaussian], ddof: int) -> Gaussian:
    """Returns the Gaussian of the images of all blocks, by adding the scatter within blocks and that of their means.

    All terms are positive semidefinite, so that no digits are lost. The covariances of the blocks have ddof 0.
    """
    sizes = [block.count or 0 for block in blocks]
    counts = torch.tensor(sizes, dtype=torch.float64)[:, None]
    means = torch.from_numpy(np.array([block.mu for block in blocks]))
    total = sum(sizes)
    mu = (counts * means).sum(0) / total
    away = counts.sqrt() * (means - mu)
    scatter = away.T @ away
    for block, size in zip(blocks, sizes, strict=True):
        scatter.add_(torch.from_numpy(block.sigma), alpha=size)
    return Gaussian(mu.numpy(), scatter.div_(max(total - ddof, 1)).numpy(), total)


def _distance(real: Gaussian, blocks: Sequence[Gaussian], ddof: int, world: World) -> float:
    if world.must_stop():
        return math.nan
    with using_threads(linear_algebra_threads()):
        fake = pooled(blocks, ddof)
    return frechet_distance(real.mu, real.sigma, fake.mu, fake.sigma, count1=real.count, count2=fake.count)


def _curve(real: Gaussian, blocks: Sequence[Gaussian], ddof: int, world: World) -> Curve:
    ends = sorted({len(blocks) * point // _POINTS for point in range(1, _POINTS + 1)} - {0})
    return tuple(
        (sum(block.count or 0 for block in blocks[:end]), _distance(real, blocks[:end], ddof, world)) for end in ends
    )
