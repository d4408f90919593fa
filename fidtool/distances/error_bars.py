"""Error bars: FIDs of parts of the generated images, and a jackknife of them; the FID by number of
images.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.distances.exact import Features, FeatureSettings
from fidtool.distances.frechet import covariance_factor, distance_between
from fidtool.distances.parallel import linear_algebra_threads, set_threads
from fidtool.distances.sampling_bias import corrected_distance
from fidtool.statistics.set_statistics import Gaussian

BLOCKS = 20
"""Blocks that the generated images are divided into."""
# Ways in which the blocks are divided into halves.
_SPLITS = 6
# Student's t for 95 % and BLOCKS - 1 degrees of freedom. It is a constant because importing
# scipy.special is slow.
_T_QUANTILE = 2.093024054408263
# Images per dimension that error bars need.
_MIN_IMAGES_PER_DIM = 1.1
MIN_FULL_RANK_PER_DIM = 5
"""Images per dimension with which the covariance of a quarter has full rank with a margin."""
# Number of points of the curve.
_POINTS = 4

Distances = NDArray[np.float64]
"""Fréchet distances of the parts of a set, as `error_bars` returns them."""
Estimate = tuple[float, float, float, float]
"""An estimate, its standard error, and the ends of its 95 % confidence interval."""
Curve = tuple[tuple[int, float], ...]
"""Pairs (number of images, FID) for the first quarter, half and three quarters of the images, and
for all.
"""


def error_bars(
    real: Gaussian, fake: Features, settings: FeatureSettings
) -> tuple[Distances, Curve]:
    """Compute the FIDs of parts of the images, from which `interval` gets the error bars. On rank
    0.

    The images, which should be independent, are divided into 20 blocks of consecutive rows. The
    real images are taken to be fixed: the error bars do not include their bias or their sampling
    error. Memory: 20 matrices of D x D in float64, on rank 0. Time: the covariance of the images
    and 41 distances, each of which takes 1.2 s at D = 2048 on two cores; for fewer than 5 images
    per dimension, 25.

    Args:
        fake: features of shape (n, D), in random order, of at least `fewest_images`; one block at a
            time is read.

    Returns:
        Distances for `interval` and `difference`; and the curve. The distances are the FIDs of the
        parts that `block_members` lists, the first of which is all images: float64 array of shape
        (37,). With fewer than 5 images per dimension, they are the FID of all images, and the
        `corrected_distance` of all and of all but each
        block: shape (22,).
    """
    blocks = _blocks(fake, BLOCKS, settings)
    curve = _curve(real, blocks, settings)
    parts = [list(itertools.compress(blocks, part)) for part in block_members()]
    if len(fake) >= MIN_FULL_RANK_PER_DIM * fake.shape[1]:
        return np.array([_distance(real, part, settings) for part in parts]), curve
    factor = covariance_factor(real)
    distances = [curve[-1][1]]
    for part in parts[: BLOCKS + 1]:
        settings.world.check_stop()
        distances.append(corrected_distance(real, factor, _pool(part, 1)))
    return np.array(distances), curve


def fid_curve(real: Gaussian, fake: Features, settings: FeatureSettings) -> Curve:
    """Compute the FID of parts of the images, for any number of images. On rank 0.

    Parts without images are omitted. For the arguments see `error_bars`.
    """
    return _curve(real, _blocks(fake, _POINTS, settings), settings)


def fewest_images(dims: int) -> int:
    """Return the number of generated images that error bars need.

    The law of `sampling_bias` needs more images than dimensions, also without one of the blocks:
    1.06 per dimension. In blocks of fewer than 10 images, a few outliers would determine the
    standard error.
    """
    return max(math.ceil(_MIN_IMAGES_PER_DIM * dims), 10 * BLOCKS)


def _blocks(fake: Features, number: int, settings: FeatureSettings) -> list[Gaussian]:
    """Return ``number`` consecutive blocks, with covariances of ddof 0. Blocks without images are
    omitted.
    """
    by_count = replace(settings, ddof=0)
    starts = len(fake) * np.arange(1, number) // number
    blocks = np.split(np.arange(len(fake)), starts)
    return [by_count.gaussian(fake, rows) for rows in blocks if len(rows)]


def _distance(real: Gaussian, blocks: Sequence[Gaussian], settings: FeatureSettings) -> float:
    settings.world.check_stop()
    return distance_between(real, _pool(blocks, settings.ddof))


def _pool(blocks: Sequence[Gaussian], ddof: int) -> Gaussian:
    """Return mean and covariance of all blocks, from the scatter within blocks and that of their
    means.

    All terms are positive semidefinite, so that no digits are lost. The covariances of the blocks
    have ddof 0.
    """
    with set_threads(linear_algebra_threads()):
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


def _curve(real: Gaussian, blocks: Sequence[Gaussian], settings: FeatureSettings) -> Curve:
    ends = {len(blocks) * point // _POINTS for point in range(1, _POINTS + 1)}
    curve = []
    for end in sorted(ends - {0}):
        count = sum(block.count or 0 for block in blocks[:end])
        curve.append((count, _distance(real, blocks[:end], settings)))
    return tuple(curve)


def interval(parts: Distances) -> Estimate:
    """Return a set's distance without the bias due to the generated images, its standard error and
    95 % interval.

    The linear part of the variance grows with the distance, because it comes from the gradient of a
    square. The upper end u is therefore computed with the error at u: u - value = t error(u), where
    error(u)² = error² + c (u - value), and c is the linear part divided by the distance. The
    distance is approximated by value + error, because near 0 the value may be small by chance.

    The guide's page on uncertainty has its coverage in simulations, of which `scripts/coverage.py`
    repeats some. Where it is lower, value and error are small together; where it is higher, the
    error includes a bias of its size.

    ``parts`` are distances as `error_bars` returns them.
    """
    value, error, linear = _estimate(parts)
    width = _T_QUANTILE * error
    bend = 0.0
    if linear > 0.0:
        bend = 0.5 * _T_QUANTILE**2 * linear / (max(value, 0.0) + error)
    return value, error, value - width, value + bend + math.hypot(width, bend)


def difference(one: Distances, other: Distances) -> Estimate:
    """Return the bias-corrected FID of one set minus that of another: positive if the other is
    closer to REAL.

    The sets are compared block by block, so that common variation cancels. This requires that image
    i of both comes from the same latents: equal numbers of images and the same order of names. For
    independent sets, the interval is as narrow as that of an unpaired comparison. It is symmetric
    and has the same coverage as that of a single set.
    """
    if len(one) == len(other):
        value, error, _ = _estimate(one - other)
    else:  # one of them has few images, and other parts
        value_of_one, error_of_one, _ = _estimate(one)
        value_of_other, error_of_other, _ = _estimate(other)
        value = value_of_one - value_of_other
        error = math.hypot(error_of_one, error_of_other)
    return value, error, value - _T_QUANTILE * error, value + _T_QUANTILE * error


def _estimate(parts: Distances) -> tuple[float, float, float]:
    """Return the population's distance or difference, its standard error, and the part of error²
    linear in the images.

    Value: on average, the FID of N images is d² + a/N + b/N² + c/N³ + … The jackknife removes a/N
    and leaves -b/N², which can be many standard errors at 5 images per dimension. Halves and
    quarters determine the next terms (the generalised jackknife of Schucany, Gray & Owen 1971): a
    weighted sum of the FIDs of 20, 19 and 10 blocks has no b/N², and one that includes 5 blocks has
    no c/N³. If the terms are known (for Gaussians, from the law of Marchenko & Pastur), all are
    positive. The remainder then alternates in sign from order to order, and the true value is
    between the two sums. The value is their mean, and error² includes the variance of a uniform
    distribution between them.

    Error: the jackknife's variance, over the blocks left out, is correct for the part that is
    linear in the images. It counts twice the part that depends on pairs of images (Efron & Stein
    1981), which is nearly all of it if the generator is almost perfect. The halves show the
    pairwise part alone, because the linear part cancels in the mean of a half and its complement.
    With G blocks, the variance of a pair of blocks contributes 2 / G² to the variance of the
    halves, 4 (G - 2) / (G (G - 1)²) to the jackknife's, and 2 / (G (G - 1)) to the true one. The
    jackknife's share is replaced accordingly, but the variance is reduced by half at most. Only
    some of the 19 ways of halving that would balance all pairs of blocks are used; error² includes
    the variance due to this choice.
    """
    if len(parts) == BLOCKS + 2:
        return _estimate_from_few(float(parts[1]), parts[2:])
    without = parts[1 : BLOCKS + 1]
    halves = parts[BLOCKS + 1 : -4].reshape(-1, 2).mean(1)
    means = np.array([parts[0], without.mean(), halves.mean(), parts[-4:].mean()])
    three = _weights(20, 19, 10)
    four = _weights(20, 19, 10, 5)
    second = math.fsum(three * means[:3])
    third = math.fsum(four * means)
    jackknife = _jackknife(without)
    pairs = float(halves.var(ddof=1))
    linear = jackknife - 2.0 * BLOCKS * (BLOCKS - 2) / (BLOCKS - 1) ** 2 * pairs
    sampling = max(linear + BLOCKS / (BLOCKS - 1) * pairs, 0.5 * jackknife)
    on_halves = 0.5 * float(three[2] + four[2])
    choice = on_halves**2 * pairs * (1.0 / len(halves) - 1.0 / (BLOCKS - 1))
    error = math.sqrt(sampling + choice + (third - second) ** 2 / 12.0)
    return 0.5 * (second + third), error, max(linear, 0.0)


def _estimate_from_few(corrected: float, without: Distances) -> tuple[float, float, float]:
    """Return the same as `_estimate` for fewer than 5 images per dimension, whose halves and
    quarters say too little.

    Value: the corrected distance has a bias left: none for Gaussians, about c/n if the lengths of
    feature vectors vary. For photos it falls a bit faster, and the jackknife removes 1.1 to 1.2
    times the bias. The value takes 0.9 of the jackknife's change, and error² includes the variance
    of a uniform distribution from 0.8 to 1. The pairwise part of the variance is counted twice: the
    error is too large near a perfect generator.
    """
    change = (BLOCKS - 1) * (corrected - float(without.mean()))
    error = math.sqrt(_jackknife(without) + (0.2 * change) ** 2 / 12.0)
    return corrected + 0.9 * change, error, 0.0


def _jackknife(without: Distances) -> float:
    return (BLOCKS - 1) / BLOCKS * float(((without - without.mean()) ** 2).sum())


def _weights(*blocks: int) -> NDArray[np.float64]:
    """Return the weights of the FIDs of these numbers of blocks in their extrapolation to 1/N = 0.

    The extrapolation is the value at 0 of the polynomial in 1/N through the FIDs (Lagrange).
    """
    weights = []
    for block in blocks:
        x = BLOCKS / block
        others = [BLOCKS / other for other in blocks if other != block]
        weights.append(math.prod(other / (other - x) for other in others))
    return np.array(weights)


def block_members() -> NDArray[np.bool_]:
    """Return which blocks are in each part: all; all but one; six halves, each with its
    complement; four quarters.

    It is a bool array of shape (1 + 20 + 2 * 6 + 4, 20). The halves are rows of a Hadamard matrix,
    constructed from the squares modulo 19 (Paley 1933): any two give four quarters, and in all 19
    of them, all pairs of blocks share a half equally often.
    """
    numbers = np.arange(BLOCKS - 1)
    is_square = np.isin(numbers, numbers**2 % len(numbers))
    halves = []
    for row in range(_SPLITS):
        half = np.append(False, np.roll(is_square, row))
        halves += [half, ~half]
    pairs = itertools.product(halves[:2], halves[2:4])
    quarters = [first & second for first, second in pairs]
    all_but_one = ~np.eye(BLOCKS, dtype=np.bool_)
    return np.vstack([np.ones(BLOCKS, dtype=np.bool_), all_but_one, halves, quarters])
