"""Error bars for the FID: a jackknife over blocks of the generated images, its bias taken out to high order."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.distances.exact import FeatureSettings
from fidtool.distances.frechet import Gaussian, frechet_distance
from fidtool.distances.jackknife import BLOCKS, Interval, interval, interval_between, members
from fidtool.distances.parallel import linear_algebra_threads, using_threads
from fidtool.distributed.world import World
from fidtool.errors import InputError
from fidtool.statistics.moments import MeanCovariance

IMAGES_PER_DIMENSION = 5
"""A quarter of the images must still have a covariance of full rank, and not barely."""
FEWEST = 200
"""Where blocks are of fewer than 10 images, a few odd ones decide the standard error."""
_POINTS = 4
"""Of the curve."""

Curve = tuple[tuple[int, float], ...]
"""(images, FID) of the first quarter of the images, of the first half, of three quarters, and of all."""


@dataclass(frozen=True)
class ErrorBars:
    """The FID's bias and spread.

    Attributes:
        fid: of all images, as it is.
        bias: what too few images add to it.
        corrected: the FID that infinitely many images of this generator would have.
        parts: FIDs of the parts that `members` lists, for `difference`; float64 array of shape (37,).
        curve: the FID against the number of images.
    """

    fid: float
    bias: float
    corrected: Interval
    parts: NDArray[np.float64]
    curve: Curve


def error_bars(real: Gaussian, fake: NDArray[np.float32], settings: FeatureSettings, world: World) -> ErrorBars:
    """The FID's finite-sample bias, standard error and 95 % interval. A collective.

    The images, which should be independent, are cut into 20 blocks of consecutive rows; see `interval` for what is made
    of them. The reals are taken as fixed: neither their bias nor their spread is in the result. Memory: 20 matrices of
    D x D in float64, on rank zero. Time: the images' covariance and 41 distances, of 1.2 s each at D = 2048 on two
    cores.

    Args:
        real: what to compare with.
        fake: features of shape (n, D), the same on every rank, in random order; read a block at a time.
        settings: how features are added up.
        world: the ranks, of which rank zero does the work; the results have the same bits at any number of them.

    Raises:
        InputError: too few generated images, or statistics that do not fit.
        RunError: features that are not finite, or too large or small for the step.
    """
    _check_shape(real, fake)
    check_enough(len(fake), len(real.mu))

    def measured() -> tuple[NDArray[np.float64], Curve]:
        blocks = _blocks(fake, BLOCKS, settings, world)
        parts = [_distance(real, list(itertools.compress(blocks, part)), settings.ddof, world) for part in members()]
        return np.array(parts), _curve(real, blocks, settings.ddof, world)

    parts, curve = world.on_rank_zero(measured)
    fid, corrected = float(parts[0]), interval(parts)
    return ErrorBars(fid, fid - corrected.value, corrected, parts, curve)


def difference(one: ErrorBars, other: ErrorBars) -> Interval:
    """How much farther one set is from REAL than another, free of bias: above 0 where ``other`` is the better one.

    The sets are compared block by block, so that what they have in common cancels: much, where row i of both is of the
    same latents (as with equal numbers of images and the same order of names); where they are independent nothing is
    lost. The interval is symmetric, and holds as often as that of one set.

    Args:
        one, other: error bars against the same REAL.
    """
    return interval_between(one.parts, other.parts)


def fid_curve(real: Gaussian, fake: NDArray[np.float32], settings: FeatureSettings, world: World) -> Curve:
    """The FID of parts of the images, as `ErrorBars.curve`, for any number of images. A collective.

    Parts without an image are left out. Arguments and errors as in `error_bars`.
    """
    _check_shape(real, fake)
    return world.on_rank_zero(lambda: _curve(real, _blocks(fake, _POINTS, settings, world), settings.ddof, world))


def fewest_images(dims: int) -> int:
    """How many generated images error bars need."""
    return max(IMAGES_PER_DIMENSION * dims, FEWEST)


def check_enough(count: int, dims: int) -> None:
    """Raises an InputError where there are too few generated images for error bars."""
    fewest = fewest_images(dims)
    if count < fewest:
        raise InputError(
            f"error bars for features of {dims} dimensions need at least {fewest} generated images, but there are "
            f"{count}:",
            "generate more",
            "take features of fewer dimensions",
            setting="uncertainty",
            joiner=", ",
        ).also("leave the error bars out")


def _check_shape(real: Gaussian, fake: NDArray[np.float32]) -> None:
    if fake.shape[1:] != real.mu.shape:
        raise InputError(
            f"the features have shape {fake.shape}, but the real statistics have {len(real.mu)} dimensions"
        )


def _blocks(fake: NDArray[np.float32], number: int, settings: FeatureSettings, world: World) -> list[MeanCovariance]:
    """So many blocks, in order, with covariances of ddof 0; those without an image are left out."""
    ends = [len(fake) * block // number for block in range(number + 1)]
    return [
        settings.gaussian(fake, np.arange(start, end), world, ddof=0)
        for start, end in itertools.pairwise(ends)
        if start < end
    ]


def pooled(blocks: Sequence[MeanCovariance], ddof: int) -> MeanCovariance:
    """The Gaussian of the images of all blocks: the scatter within them and that of their means are added.

    All terms are positive semidefinite, so nothing cancels. The blocks' covariances are of ddof 0.
    """
    counts = torch.tensor([[float(block.count)] for block in blocks], dtype=torch.float64)
    means = torch.from_numpy(np.array([block.mu for block in blocks]))
    total = sum(block.count for block in blocks)
    mu = (counts * means).sum(0) / total
    away = counts.sqrt() * (means - mu)
    scatter = away.T @ away
    for block in blocks:
        scatter.add_(torch.from_numpy(block.sigma), alpha=block.count)
    return MeanCovariance(mu.numpy(), scatter.div_(max(total - ddof, 1)).numpy(), total)


def _distance(real: Gaussian, blocks: Sequence[MeanCovariance], ddof: int, world: World) -> float:
    if world.must_stop():
        return math.nan
    with using_threads(linear_algebra_threads()):
        fake = pooled(blocks, ddof)
    return frechet_distance(real.mu, real.sigma, fake.mu, fake.sigma, count1=real.count, count2=fake.count)


def _curve(real: Gaussian, blocks: Sequence[MeanCovariance], ddof: int, world: World) -> Curve:
    ends = sorted({len(blocks) * point // _POINTS for point in range(1, _POINTS + 1)} - {0})
    return tuple(
        (sum(block.count for block in blocks[:end]), _distance(real, blocks[:end], ddof, world)) for end in ends
    )
