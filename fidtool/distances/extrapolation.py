"""FID∞: the FID that infinitely many generated images would have, by a line through those of fewer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fidtool.distances.exact import FeatureSettings
from fidtool.distances.frechet import Gaussian, frechet_distance, influence
from fidtool.distances.parallel import share_out
from fidtool.distributed.world import World
from fidtool.errors import InputError
from fidtool.seeds import sample_seed
from fidtool.sources.image_set import canonical_order

_SIGNIFICANT = 2.0
"""Standard deviations beyond which a bend of the line is no noise."""


@dataclass(frozen=True)
class Extrapolation:
    """FID∞ and how it was found.

    Attributes:
        value: the line's height at 1/N = 0. An estimate free of the leading bias, so that of a perfect generator is as
            often negative as positive: it is left as it is.
        error: its standard error: sampling of the generated images and of the subsets of them, and how far the points
            are from a line. The real images are taken as fixed.
        slope: of the FID in 1/N.
        bend: how much more a parabola through the points would give. Mostly noise, unless ``fewest`` is only a few
            times the dimensions.
        counts: N of each point, ascending.
        distances: FID of each point.
    """

    value: float
    error: float
    slope: float
    bend: float
    counts: tuple[int, ...]
    distances: tuple[float, ...]


def fid_infinity(
    real: Gaussian,
    fake: NDArray[np.float32],
    settings: FeatureSettings,
    world: World,
    *,
    seed: int = 0,
    points: int,
    fewest: int,
) -> Extrapolation:
    """FID∞ (Chong & Forsyth 2020): the FID of N generated images exceeds its limit by about c / N. A collective.

    The FIDs of random subsets of N = ``fewest`` to n images, evenly spaced, are fitted by ordinary least squares in
    1/N, whose intercept is the value; the authors take 15 sizes from 5000 images on. The bias is taken out for the
    generated images alone: the real side stays as it is.

    The standard error. To first order the FID of all n images is off its expectation by the mean of h(x) over them,
    with h the influence of an image (see `influence`), and that of a subset of N, drawn without replacement, is off
    the former by noise of variance var(h) (1/N - 1/n) of its own. The intercept is a weighted sum of the FIDs with
    weights w that sum to 1: error² = var(h) (1/n + sum w_N² (1/N - 1/n)). The residuals of the line know nothing of the
    first term, which is the larger one, because all subsets are of the same n images. What the law neglects, c' / N²,
    bends the line: where the height that a parabola adds at 1/N = 0 is beyond twice its noise, its square, less that of
    the noise, is added to error². Cost: an eigen-decomposition and n D² operations on rank zero, less than a point.

    Args:
        real: what to compare with.
        fake: features of shape (n, D), the same on every rank; read a block at a time.
        settings: how features are added up, and on which device.
        world: the ranks, which share out the points; the results have the same bits at any number of them.
        seed: of the subsets, which stay the same from version to version.
        points: number of subsets, at least 3.
        fewest: N of the smallest, more than D: the law does not hold for covariances that are singular.

    Raises:
        InputError: too few generated images, or statistics that do not fit.
        RunError: features that are not finite, or too large or small for the step.
    """
    dims = len(real.mu)
    _check(len(fake), fake.shape[1:], dims, points, fewest)
    counts = np.linspace(fewest, len(fake), points).astype(np.int64).tolist()

    def distance(number: int) -> float:
        order = canonical_order(len(fake), sample_seed(seed, number))[: counts[number]]
        # The order does not show in the sums, and the disk likes this one.
        gaussian = settings.gaussian(fake, np.sort(order), world)
        if world.must_stop():
            return math.nan
        return frechet_distance(
            real.mu, real.sigma, gaussian.mu, gaussian.sigma, count1=real.count, count2=counts[number]
        )

    # The largest first, so that the ranks finish together.
    distances = share_out([partial(distance, number) for number in reversed(range(points))], world)[::-1]

    def influences() -> NDArray[np.float64]:
        everything = settings.gaussian(fake, np.arange(len(fake)), world)
        return influence(real, everything, fake, world, settings.device)

    variance = world.on_rank_zero(lambda: float(np.var(influences(), ddof=1)))
    weights = _weights(counts)
    value, slope, bend = (float(w @ np.array(distances)) for w in (weights.value, weights.slope, weights.bend))
    noise = variance * (1.0 / np.array(counts) - 1.0 / len(fake))
    sampling = variance / len(fake) + float(weights.value**2 @ noise)
    bend_noise = float(weights.bend**2 @ noise)
    bent = bend**2 - bend_noise if bend**2 > _SIGNIFICANT**2 * bend_noise else 0.0
    return Extrapolation(value, math.sqrt(sampling + bent), slope, bend, tuple(counts), tuple(distances))


def _check(count: int, shape: tuple[int, ...], dims: int, points: int, fewest: int) -> None:
    if shape != (dims,):
        raise InputError(f"the features have shape {(count, *shape)}, but the real statistics have {dims} dimensions")
    if points < 3:
        raise InputError(f"fid-infinity needs at least 3 points to fit a line and not {points}")
    if fewest <= dims:
        raise InputError(
            f"fid-infinity is extrapolated from subsets of {fewest} images and more, too few for features of {dims} "
            "dimensions: it needs more images than dimensions in each",
            "take a smaller network",
        )
    if count < fewest + points - 1:
        raise InputError(
            f"fid-infinity is extrapolated from subsets of {fewest} to all images, at {points} sizes, so it needs at "
            f"least {fewest + points - 1} generated images, but there are {count}:",
            "generate more (50000 are usual)",
            "leave fid-infinity out",
        )


@dataclass(frozen=True)
class _Weights:
    """What to multiply the points' values with, each of shape (points,).

    Attributes:
        value: for the height at 1/N = 0 of the line by least squares; they sum to 1.
        slope: for its slope in 1/N; they sum to 0.
        bend: for the height there of the parabola by least squares, less that of the line; they sum to 0.
    """

    value: NDArray[np.float64]
    slope: NDArray[np.float64]
    bend: NDArray[np.float64]


def _weights(counts: list[int]) -> _Weights:
    """By orthogonal polynomials of degree 0, 1 and 2 on the points."""
    x = 1.0 / np.array(counts)
    middle = x.mean()
    first = x - middle
    slope = first / (first @ first)
    squares = first * first
    second = squares - squares.mean() - (squares @ slope) * first
    at_zero = middle * middle - squares.mean() + (squares @ slope) * middle
    return _Weights(1.0 / len(x) - middle * slope, slope, at_zero * second / (second @ second))
