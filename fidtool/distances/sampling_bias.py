"""How much a Fréchet distance is too high because it is of few generated images (law of Marchenko & Pastur 1967).

With sigma = L Lᵀ, the distance contains the singular values s of L1ᵀ L2 (see `frechet_distance`). Those of n images are
smaller than those of the population. With λ = s² and m = n - 1 degrees of freedom, the sum of λ / (λ + t²), here called
m a(t), is that of the population at t² / k(t) instead of t². For many independent dimensions, k = 1 - a (Mestre 2008;
Tiomoko & Couillet 2019 derive the same estimate as a contour integral).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.distances.exact import BLOCK_ROWS, parts_of
from fidtool.distances.frechet import covariance_factor, distance_and_overlaps
from fidtool.distances.parallel import linear_algebra_threads, using_threads
from fidtool.distributed.world import World
from fidtool.statistics.moments import Gaussian

_SMALLEST = 1e-8
"""Singular values below this fraction of the largest one are rounding errors."""
_STEP, _FINE_STEP = 0.3, 0.02
"""Steps of the integrals in log t: of smooth ones, for which the trapezoidal rule is exact to 1e-13, and of others."""
_BELOW, _ABOVE = 10.0, 6.0
"""Logarithms of how far the integrals go beyond the singular values; what they omit is less than 1e-7."""
_LARGEST = 1.0 - 1e-6
"""Limit of leverages: that of an image which spans a dimension alone is 1."""

Exponents = tuple[torch.Tensor, torch.Tensor]
"""Values of t, and for each of them the exponent e of k = (1 - a) ** e."""


def exponents(real: Gaussian, fitted: Gaussian, fake: NDArray[np.float32], world: World) -> Exponents:
    """Returns how k differs from 1 - a for these images.

    If the lengths of the feature vectors differ much, k is smaller than 1 - a. The leverage h of an image is its share
    of m a(t), and h / (1 - h) is what it would be if the covariance did not include the image. The ratio of their sums
    is k, because new images have the population's covariance.

    Args:
        fitted: mean and covariance of all images, with ddof 1.
        fake: features of shape (n, D), n > D; one block at a time is read.
        world: the ranks. A single rank calls this function, and returns early if it must stop.
    """
    factor = covariance_factor(real.sigma, real.count)
    with using_threads(linear_algebra_threads()):
        values, vectors = torch.linalg.eigh(factor.T @ torch.from_numpy(fitted.sigma) @ factor)
        t = _grid(values.clamp(min=0.0).sqrt(), _STEP)
        weights = 1.0 / ((len(fake) - 1) * (values.clamp(min=0.0)[:, None] + t.square()))
        root, mu = factor @ vectors, torch.from_numpy(fitted.mu)
        inside, outside = torch.zeros_like(t), torch.zeros_like(t)
        for part in parts_of(len(fake), BLOCK_ROWS):
            away = torch.from_numpy(fake[part].astype(np.float64)) - mu
            leverages = ((away @ root).square() @ weights).clamp(max=_LARGEST)
            inside += leverages.sum(0)
            outside += (leverages / (1.0 - leverages)).sum(0)
            if world.must_stop():
                break
        return t, ((inside / outside).log() / torch.log1p(-inside / len(fake))).nan_to_num(1.0)


def corrected_distances(real: Gaussian, fake: Gaussian, exponents: Exponents) -> tuple[float, float]:
    """Returns the Fréchet distance without the bias due to the number of generated images, to leading order.

    The mean of n images adds tr sigma / n on average. The sum of the singular values is the integral of (2 / π) m a(t)
    dt, and that of the population is the integral of (2 / π) m a(t) d(t / √k(t)). By parts, their difference is the
    integral of (4 / π) b(t) (1 / √k(t) - 1) dt, where b is the sum of λ t² / (λ + t²)².

    Args:
        fake: mean and covariance of more images than dimensions, with ddof 1.

    Returns:
        The distance with k = (1 - a) ** e, and with k = 1 - a.
    """
    count = fake.count or 0
    distance, overlaps = distance_and_overlaps(
        real.mu, real.sigma, fake.mu, fake.sigma, count1=real.count, count2=fake.count
    )
    with using_threads(linear_algebra_threads()):
        t, exponent = exponents
        shares = _shares(overlaps, t)
        left = 1.0 - shares.sum(1) / (count - 1)
        slopes = (shares * (1.0 - shares)).sum(1) * t  # dt = t dlog t
        missing = [(slopes * (left ** (-0.5 * power) - 1.0)).sum().item() * _STEP for power in (exponent, 1.0)]
    distance -= float(np.trace(fake.sigma)) / count
    return distance - 8.0 / math.pi * missing[0], distance - 8.0 / math.pi * missing[1]


def perfect_distance(real: Gaussian, count: int) -> float:
    """Returns about what the Fréchet distance of any number of images from a perfect generator would be.

    It is the expectation for a Gaussian with the mean and covariance of REAL. Features with heavy tails have more.
    """
    with using_threads(linear_algebra_threads()):
        values = torch.linalg.eigvalsh(torch.from_numpy(real.sigma)).clamp(min=0.0)
        t = _grid(values, _FINE_STEP)
        shares = _shares(values, t).sum(1)
        closer = t * (1.0 - (1.0 - shares / max(count - 1, 1)).clamp(min=0.0).sqrt())
        missing = 2.0 / math.pi * torch.trapezoid(shares, closer).item()
        return float(values.sum() / count + 2.0 * missing)


def _grid(values: torch.Tensor, step: float) -> torch.Tensor:
    """Returns values of t that reach beyond all singular values, evenly spaced in log t."""
    largest = values.max().item() or 1.0
    smallest = max(values.min().item(), _SMALLEST * largest)
    return torch.arange(math.log(smallest) - _BELOW, math.log(largest) + _ABOVE, step, dtype=torch.float64).exp()


def _shares(values: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """Returns s² / (s² + t²) for each t and singular value s."""
    squares = values.square()
    return squares / (squares + t.square()[:, None])
