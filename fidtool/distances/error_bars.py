"""FIDs of parts of the generated images: for the jackknife of the error bars, and by number of images."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.distances.exact import FeatureSettings
from fidtool.distances.frechet import frechet_distance
from fidtool.distances.jackknife import BLOCKS, members
from fidtool.distances.parallel import linear_algebra_threads, using_threads
from fidtool.distributed.world import World
from fidtool.statistics.moments import Gaussian

_POINTS = 4
"""Number of points of the curve."""

Curve = tuple[tuple[int, float], ...]
"""Pairs (number of images, FID) for the first quarter, half and three quarters of the images, and for all."""


def error_bars(
    real: Gaussian, fake: NDArray[np.float32], settings: FeatureSettings, world: World
) -> tuple[NDArray[np.float64], Curve]:
    """Computes the FIDs of parts of the images, from which `interval` gets the error bars. On rank zero.

    The images, which should be independent, are divided into 20 blocks of consecutive rows. The
    real images are taken to be fixed: the error bars do not include their bias or their sampling error.
    Memory: 20 matrices of D x D in float64, on rank zero. Time: the covariance of the images and 41 distances, each of
    which takes 1.2 s at D = 2048 on two cores.

    Args:
        fake: features of shape (n, D), in random order; one block at a time is read.
        world: the ranks, which share the machine's cores.

    Returns:
        FIDs of the parts that `members` lists, the first of which is all images, for `interval` and `difference`:
        float64 array of shape (37,). And the curve.
    """
    blocks = _blocks(fake, BLOCKS, settings, world)
    parts = [_distance(real, list(itertools.compress(blocks, part)), settings.ddof, world) for part in members()]
    return np.array(parts), _curve(real, blocks, settings.ddof, world)


def fid_curve(real: Gaussian, fake: NDArray[np.float32], settings: FeatureSettings, world: World) -> Curve:
    """Computes the FID of parts of the images, for any number of images. On rank zero.

    Parts without images are omitted. For the arguments see `error_bars`.
    """
    return _curve(real, _blocks(fake, _POINTS, settings, world), settings.ddof, world)


def fewest_images(dims: int) -> int:
    """Returns the number of generated images that error bars need.

    With 5 per dimension, the covariance of a quarter of the images has full rank with some margin. In blocks of fewer
    than 10 images, a few outliers would determine the standard error.
    """
    return max(5 * dims, 10 * BLOCKS)


def _blocks(fake: NDArray[np.float32], number: int, settings: FeatureSettings, world: World) -> list[Gaussian]:
    """Returns ``number`` consecutive blocks, with covariances of ddof 0. Blocks without images are omitted."""
    ends = [len(fake) * block // number for block in range(number + 1)]
    return [
        settings.gaussian(fake, np.arange(start, end), world, ddof=0)
        for start, end in itertools.pairwise(ends)
        if start < end
    ]


def _distance(real: Gaussian, blocks: Sequence[Gaussian], ddof: int, world: World) -> float:
    """Returns the FID of the images of all blocks, from the scatter within blocks and that of their means.

    All terms are positive semidefinite, so that no digits are lost. The covariances of the blocks have ddof 0.
    """
    if world.must_stop():
        return math.nan
    with using_threads(linear_algebra_threads()):
        sizes = [block.count or 0 for block in blocks]
        counts = torch.tensor(sizes, dtype=torch.float64)[:, None]
        means = torch.from_numpy(np.array([block.mu for block in blocks]))
        total = sum(sizes)
        mu = (counts * means).sum(0) / total
        away = counts.sqrt() * (means - mu)
        scatter = away.T @ away
        for block, size in zip(blocks, sizes, strict=True):
            scatter.add_(torch.from_numpy(block.sigma), alpha=size)
        sigma = scatter.div_(max(total - ddof, 1))
    return frechet_distance(real.mu, real.sigma, mu.numpy(), sigma.numpy(), count1=real.count, count2=total)


def _curve(real: Gaussian, blocks: Sequence[Gaussian], ddof: int, world: World) -> Curve:
    ends = sorted({len(blocks) * point // _POINTS for point in range(1, _POINTS + 1)} - {0})
    return tuple(
        (sum(block.count or 0 for block in blocks[:end]), _distance(real, blocks[:end], ddof, world)) for end in ends
    )
