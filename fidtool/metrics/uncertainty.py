"""Error bars for the FID: a jackknife over blocks of the generated images, its bias taken out to high order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import stdtrit

from fidtool.distributed.world import World
from fidtool.errors import InputError
from fidtool.metrics.exact import parts_of
from fidtool.metrics.extrapolation import Target
from fidtool.metrics.frechet import frechet_distance, linear_algebra_threads
from fidtool.metrics.parallel import fair_threads, using_threads
from fidtool.statistics.moments import ExactMoments, MeanCovariance

BLOCKS = 20
"""Groups that the generated images are cut into."""
IMAGES_PER_DIMENSION = 5
"""A quarter of the images must still have a covariance of full rank, and not barely."""
FEWEST = 200
"""Where blocks are of fewer than 10 images, a few odd ones decide the standard error."""
_SPLITS = 6
_POINTS = 4
"""Of the curve."""
_PART = 1024
"""Rows that are read at a time. Sums are exact, so it does not show."""
_MANY_DIMS = 256
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """An estimate and how sure it is.

    Attributes:
        value: the estimate. Free of bias, so that of a distance near 0 is as often negative as positive.
        error: its standard error.
        low, high: ends of the 95 % confidence interval.
    """

    value: float
    error: float
    low: float
    high: float


@dataclass(frozen=True)
class PartialDistances:
    """FIDs of all and of parts of a set. All estimates are linear in them, but for the errors.

    Attributes:
        whole: of all images.
        without: of all but block g, shape (BLOCKS,).
        halves: mean of the FIDs of a half and of its complement, for each way of halving, shape (ways,).
        quarters: mean of the FIDs of four quarters.
    """

    whole: float
    without: NDArray[np.float64]
    halves: NDArray[np.float64]
    quarters: float

    def __sub__(self, other: PartialDistances) -> PartialDistances:
        return PartialDistances(
            self.whole - other.whole,
            self.without - other.without,
            self.halves - other.halves,
            self.quarters - other.quarters,
        )


@dataclass(frozen=True)
class ErrorBars:
    """The FID's bias and spread.

    Attributes:
        fid: of all images, as it is.
        bias: what so few images add to it: ``fid - corrected.value``.
        corrected: the FID that infinitely many images of this generator would have.
        parts: what it was estimated from, for `difference`.
        curve: (images, FID) of the first quarter of the images, of the first half, of three quarters, and of all.
    """

    fid: float
    bias: float
    corrected: Interval
    parts: PartialDistances
    curve: tuple[tuple[int, float], ...]


def error_bars(
    real: Target,
    fake: NDArray[np.float32],
    world: World,
    *,
    feature_step: int,
    ddof: int = 1,
    device: torch.device = torch.device("cpu"),  # noqa: B008 (immutable)
) -> ErrorBars:
    """The FID's finite-sample bias, standard error and 95 % interval. A collective.

    The images are cut into 20 blocks of consecutive rows; see `estimate` for what is made of them. The reals are taken
    as given: neither their bias nor their spread is in the result, as both are in every FID against them alike.

    The interval is about the mean over all images that the generator could give, as are FID∞ and its error, and holds
    for independent images. Memory: 20 matrices of D x D in float64, on rank zero. Time: one covariance of all images
    and 40 distances, of about 1.2 s each at D = 2048 on two cores.

    Args:
        real: what to compare with.
        fake: features of shape (n, D), the same on every rank, in random order; read a block at a time.
        world: the ranks, of which rank zero does the work; the results have the same bits at any number of them.
        feature_step: features are rounded to multiples of 2 ** -feature_step.
        ddof: covariances are divided by N - ddof.
        device: where sums are computed; it must have float64.

    Raises:
        InputError: too few generated images, or statistics that do not fit.
        RunError: features that are not finite, or too large or small for the step.
    """
    _check_shape(real, fake)
    check_enough(len(fake), len(real.mu))

    def measured() -> tuple[PartialDistances, tuple[tuple[int, float], ...]] | None:
        blocks = _blocks(fake, BLOCKS, feature_step, world, device)
        return None if blocks is None else (_partial(real, blocks, ddof, world), _curve(real, blocks, ddof, world))

    result = world.on_rank_zero(measured)
    assert result is not None  # a run that was told to stop does not come this far
    parts, curve = result
    corrected = estimate(parts)
    return ErrorBars(parts.whole, parts.whole - corrected.value, corrected, parts, curve)


def difference(one: ErrorBars, other: ErrorBars) -> Interval:
    """How much farther one set is from REAL than another, free of bias: above 0 where ``other`` is the better one.

    The sets are compared block by block, so that what they have in common cancels. That is much where row i of both
    was made from the same latents (give both the same file names, or the same order); where they are independent
    nothing is lost.

    Args:
        one, other: error bars against the same REAL.
    """
    return estimate(one.parts - other.parts)


def fid_curve(
    real: Target,
    fake: NDArray[np.float32],
    world: World,
    *,
    feature_step: int,
    ddof: int = 1,
    device: torch.device = torch.device("cpu"),  # noqa: B008 (immutable)
) -> tuple[tuple[int, float], ...]:
    """(images, FID) of the first quarter of the images, of the first half, of three quarters, of all. A collective.

    As `ErrorBars.curve`, but for any number of images: with fewer than dimensions an FID is no measure of a generator,
    and the curve shows it. Parts without an image are left out. Arguments and errors as in `error_bars`.
    """
    _check_shape(real, fake)

    def measured() -> tuple[tuple[int, float], ...]:
        blocks = _blocks(fake, _POINTS, feature_step, world, device)
        return () if blocks is None else _curve(real, blocks, ddof, world)

    return world.on_rank_zero(measured)


def check_enough(count: int, dims: int) -> None:
    """Refuses a number of generated images that is too small for error bars.

    Raises:
        InputError: see there.
    """
    fewest = max(IMAGES_PER_DIMENSION * dims, FEWEST)
    if count < fewest:
        raise InputError(
            f"error bars for features of {dims} dimensions need at least {fewest} generated images, but there are "
            f"{count}: generate more, take features of fewer dimensions, or leave the error bars out"
        )


def estimate(parts: PartialDistances) -> Interval:
    """The distance of the population, with its standard error and 95 % interval.

    Value. The FID of N images is expected to be d² + a/N + b/N² + c/N³ + …, with d² that of the population. The
    jackknife takes a/N out and leaves -b/N², which for 2048 dimensions and 5 times as many images can be 30 standard
    errors. Halves and quarters tell of the next terms (the generalised jackknife of Schucany, Gray & Owen 1971): with
    them the weights of the FIDs of 20, 19, 10 (and 5) blocks are such that b/N² (and c/N³) is gone too. All terms are
    positive where they are known (Gaussians: the Marchenko-Pastur law), so what is left changes its sign from order to
    order, and the truth lies between the two values: their mean is taken, and the variance of a uniform distribution
    between them is part of error².

    Error. Over the blocks left out, (G - 1) / G times the sum of squares of the FIDs about their mean (the jackknife's
    variance) is right for what is linear in the images. What goes by pairs of images, sum k(x, y), rules where a
    generator is as good as perfect; there it is 1.9 times too large (Efron & Stein 1981). The halves show that part
    alone, as in the mean of a half and its complement all that is linear cancels: their variance s² is 2 / G² times
    that of a pair of blocks, the jackknife's 4 (G - 2) / (G (G - 1)²) and the truth 2 / (G (G - 1)) times, so that
    G (G - 3) / (G - 1)² s² is to be taken off. Never more than half, which is all there can be too much. Those halves
    are 6 of 19 ways that together would have each pair of blocks in one half equally often; what the choice of the 6
    adds to the variance is part of error².

    The interval is by Student's t with G - 1 degrees of freedom. In simulations it has the truth in it in 93 to 98 % of
    the draws: Gaussians with flat and steep spectra and skewed, clustered features, of 8 to 256 dimensions, from 5
    images a dimension, with distances from 0 on. Weak sides. Its misses lie on one side where the features' tails are
    heavy or few dimensions count: the fewer images, the smaller both value and error come out. Where the terms left out
    are large beside the error (above 500 dimensions with a flat spectrum, 5 images a dimension, near perfect) it is
    too wide.

    Args:
        parts: FIDs of a set, or differences of those of two.
    """
    sizes = [parts.whole, float(parts.without.mean()), float(parts.halves.mean()), parts.quarters]
    weights = _weights(20, 19, 10), _weights(20, 19, 10, 5)
    second, third = (math.fsum(w * size for w, size in zip(each, sizes, strict=False)) for each in weights)
    value = 0.5 * (second + third)
    jackknife = (BLOCKS - 1) / BLOCKS * float(((parts.without - parts.without.mean()) ** 2).sum())
    pairs = float(parts.halves.var(ddof=1))
    sampling = max(jackknife - BLOCKS * (BLOCKS - 3) / (BLOCKS - 1) ** 2 * pairs, 0.5 * jackknife)
    on_halves = 0.5 * (weights[0][2] + weights[1][2])
    choice = on_halves**2 * pairs * (1.0 / len(parts.halves) - 1.0 / (BLOCKS - 1))
    error = math.sqrt(sampling + choice + (third - second) ** 2 / 12.0)
    reach = float(stdtrit(BLOCKS - 1, 0.5 + 0.5 * _CONFIDENCE)) * error
    return Interval(value, error, value - reach, value + reach)


def _weights(*blocks: int) -> list[float]:
    """Of the FIDs of so many blocks, for the value at 1/N = 0 of the polynomial in 1/N through them (Lagrange)."""
    x = [BLOCKS / number for number in blocks]
    return [math.prod(other / (other - own) for other in x if other != own) for own in x]


def halvings() -> NDArray[np.bool_]:
    """All ways of a family to halve 20 blocks; any two ways together make four quarters.

    They are the rows of a Hadamard matrix (Paley 1933, from the squares modulo 19): over all of them each pair of
    blocks is in one half equally often, and six of them come closer to that than six at random.

    Returns:
        bool array of shape (19, 20): whether the block is in the first half.
    """
    prime = BLOCKS - 1
    squares = {number * number % prime for number in range(prime)}
    return np.array([[False] + [(column - row) % prime in squares for column in range(prime)] for row in range(prime)])


def _check_shape(real: Target, fake: NDArray[np.float32]) -> None:
    if fake.shape[1:] != real.mu.shape:
        raise InputError(
            f"the features have shape {fake.shape}, but the real statistics have {len(real.mu)} dimensions"
        )


@dataclass(frozen=True)
class Blocks:
    """Count, mean and scatter of each block of images.

    Attributes:
        counts: int64 array of shape (G,).
        means: float64 tensor of shape (G, D).
        scatters: for each block sum (x - mean)(x - mean)ᵀ, float64 tensors of shape (D, D).
    """

    counts: NDArray[np.int64]
    means: torch.Tensor
    scatters: Sequence[torch.Tensor]

    def pooled(self, members: Sequence[int], ddof: int) -> MeanCovariance:
        """The Gaussian of the images of some blocks: the scatter within them and that of their means are added.

        All terms are positive semidefinite, so nothing cancels.
        """
        numbers = list(members)
        counts = torch.from_numpy(self.counts[numbers].astype(np.float64))[:, None]
        total = int(self.counts[numbers].sum())
        mu = (counts * self.means[numbers]).sum(0) / total
        away = counts.sqrt() * (self.means[numbers] - mu)
        scatter = away.T @ away
        for number in numbers:
            scatter += self.scatters[number]
        return MeanCovariance(mu.numpy(), scatter.div_(max(total - ddof, 1)).numpy(), total)


def _blocks(
    fake: NDArray[np.float32], number: int, feature_step: int, world: World, device: torch.device
) -> Blocks | None:
    """The blocks, in order, without those that have no image; None if the run was told to stop."""
    ends = [len(fake) * block // number for block in range(number + 1)]
    found = []
    # Products of few dimensions are done before a second thread has woken up.
    with using_threads(fair_threads(world) if fake.shape[1] >= _MANY_DIMS else 1):
        for start, end in zip(ends, ends[1:], strict=False):
            sums = ExactMoments(fake.shape[1], feature_step, device)
            for part in parts_of(end - start, _PART):
                if world.must_stop():
                    return None
                sums.add(torch.from_numpy(fake[start + part.start : start + part.stop]))
            if sums.count:
                found.append(sums.mean_covariance(0))
    return Blocks(
        np.array([block.count for block in found], dtype=np.int64),
        torch.from_numpy(np.array([block.mu for block in found])),
        [torch.from_numpy(block.sigma).mul_(block.count) for block in found],
    )


def _distance(real: Target, blocks: Blocks, members: Sequence[int], ddof: int, world: World) -> float:
    if world.must_stop():
        return math.nan
    with using_threads(linear_algebra_threads()):
        fake = blocks.pooled(members, ddof)
    return frechet_distance(real.mu, real.sigma, fake.mu, fake.sigma, count1=real.count, count2=fake.count)


def _curve(real: Target, blocks: Blocks, ddof: int, world: World) -> tuple[tuple[int, float], ...]:
    ends = sorted({len(blocks.counts) * point // _POINTS for point in range(1, _POINTS + 1)} - {0})
    return tuple((int(blocks.counts[:end].sum()), _distance(real, blocks, range(end), ddof, world)) for end in ends)


def _partial(real: Target, blocks: Blocks, ddof: int, world: World) -> PartialDistances:
    """The FIDs that the estimate is made from: 1 + 20 + 12 + 4 distances."""

    def of(members: NDArray[np.bool_]) -> float:
        return _distance(real, blocks, np.flatnonzero(members).tolist(), ddof, world)

    every = np.ones(BLOCKS, dtype=np.bool_)
    ways = halvings()
    quarters = [of((ways[0] == first) & (ways[1] == second)) for first in (True, False) for second in (True, False)]
    return PartialDistances(
        of(every),
        np.array([of(np.arange(BLOCKS) != block) for block in range(BLOCKS)]),
        np.array([0.5 * (of(half) + of(~half)) for half in ways[:_SPLITS]]),
        math.fsum(quarters) / len(quarters),
    )
