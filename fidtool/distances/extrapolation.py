"""FID∞: the FID of infinitely many generated images, extrapolated linearly from the FIDs of finite
numbers.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fidtool.distances.exact import Features, FeatureSettings
from fidtool.distances.frechet import distance_between, influence
from fidtool.distances.parallel import share_out
from fidtool.distributed.seeds import sample_seed
from fidtool.sources.image_set import canonical_order
from fidtool.statistics.set_statistics import Gaussian

SIGNIFICANT_ERRORS = 2.0
"""A bend of the line is significant beyond this many standard deviations of its noise."""


def fid_infinity(
    real: Gaussian,
    fake: Features,
    settings: FeatureSettings,
    *,
    seed: int = 0,
    points: int,
    fewest: int,
) -> tuple[float, float]:
    """Compute FID∞ (Chong & Forsyth 2020). A collective.

    The FID of N generated images exceeds its limit by about c / N. The FIDs of random subsets of N
    = ``fewest`` to n images, evenly spaced, are fitted by ordinary least squares in 1/N. The
    intercept is the value. The authors use 15 sizes of at least 5000 images. Only the bias due to
    the generated images is removed.

    Standard error: to first order, the FID of all n images differs from its expectation by the mean
    of h(x) over the images, where h is the influence of an image (see `influence`). The FID of a
    subset of N images, drawn without replacement, differs from that of all images by independent
    noise of variance var(h) (1/N - 1/n). The intercept is a weighted sum of the FIDs with weights w
    that sum to 1, so that error² = var(h) (1/n + sum w_N² (1/N - 1/n)). The residuals of the line
    do not contain the first term, which is the larger one, because all subsets come from the same n
    images. The neglected term c' / N² bends the line: if a parabola changes the value at 1/N = 0 by
    more than twice the noise of this change, its square, minus that of the noise, is added to
    error². Cost: an eigendecomposition and n D² operations on rank 0, which is less than one
    point.

    Args:
        fake: features of shape (n, D), the same on all ranks; one block at a time is read.
        settings: with the ranks, which share the points; the results have the same bits for any
            number of ranks.
        seed: seed of the subsets, which stay the same in future versions.
        points: number of subsets, at least 3.
        fewest: N of the smallest subset, more than D, because the law does not hold for singular
            covariances.

    Returns:
        The value, which has no leading bias: for a perfect generator it is negative as often as
            positive, and is not
        clipped. And its standard error, for fixed real images.
    """
    counts = np.linspace(fewest, len(fake), points).astype(np.int64).tolist()

    world = settings.world

    def distance(number: int) -> float:
        order = canonical_order(len(fake), sample_seed(seed, number))[: counts[number]]
        # The order does not change the sums, and ascending rows are read fastest.
        some = settings.gaussian(fake, np.sort(order))
        world.check_stop()
        return distance_between(real, some)

    # The largest first, so that all ranks finish at about the same time.
    jobs = [partial(distance, number) for number in reversed(range(points))]
    distances = np.array(share_out(jobs, world)[::-1])

    def variance_of_influences() -> float:
        everything = settings.gaussian(fake, np.arange(len(fake)))
        return float(np.var(influence(real, everything, fake, settings), ddof=1))

    variance = world.on_rank_zero(variance_of_influences)
    at_infinity, of_bend = _weights(counts)
    value = float(at_infinity @ distances)
    bend = float(of_bend @ distances)
    noise = variance * (1.0 / np.array(counts) - 1.0 / len(fake))
    sampling = variance / len(fake) + float(at_infinity**2 @ noise)
    bend_noise = float(of_bend**2 @ noise)
    bent = bend**2 - bend_noise if bend**2 > SIGNIFICANT_ERRORS**2 * bend_noise else 0.0
    return value, math.sqrt(sampling + bent)


def _weights(counts: list[int]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return two weights of each point, computed with orthogonal polynomials of degree 0, 1 and 2
    on the points.

    The first ones give the least-squares line at 1/N = 0, and sum to 1. The second ones give the
    difference of the least-squares parabola from the line there, and sum to 0.
    """
    x = 1.0 / np.array(counts)
    middle = x.mean()
    first = x - middle
    slope = first / (first @ first)
    squares = first * first
    second = squares - squares.mean() - (squares @ slope) * first
    at_zero = middle * middle - squares.mean() + (squares @ slope) * middle
    return 1.0 / len(x) - middle * slope, at_zero * second / (second @ second)
