"""How much a Fréchet distance is too high because it is of few generated images (law of Marchenko & Pastur 1967).

With sigma = L Lᵀ, the distance contains the sum of the singular values s of L1ᵀ L2 (see `frechet_distance`), which are
smaller for n images than for the population. With λ = s² and m = n - 1 degrees of freedom, the sum of λ / (λ + t²),
called m a(t), is about that of the population at t² / (1 - a(t)) instead of t². The sum of the singular values is the
integral of (2 / π) m a(t) dt, and that of the population the integral of (2 / π) m a(t) d(t / √(1 - a(t))).
"""

from __future__ import annotations

import math

import torch

from fidtool.distances.parallel import linear_algebra_threads, using_threads
from fidtool.statistics.moments import Gaussian

_SMALLEST = 1e-8
"""Singular values below this fraction of the largest one are rounding errors."""
_STEP, _FINE_STEP = 0.3, 0.02
"""Steps of the integrals in log t: of smooth ones, for which the trapezoidal rule is exact to 1e-13, and of others."""
_BELOW, _ABOVE = 12.0, 6.0
"""Logarithms of how far the integrals go beyond the singular values; what they omit is less than 1e-6 of them."""


def corrected_distance(real: Gaussian, factor: torch.Tensor, fake: Gaussian) -> float:
    """Returns the Fréchet distance without the bias due to the number of generated images, to leading order.

    The mean of n images adds tr sigma / n on average. What the sum of the singular values lacks is, integrated by
    parts, (2 m / π) times the integral of (1 - √(1 - a(t)))² dt. Tiomoko & Couillet (2019, from Mestre 2008) have the
    same estimate as a contour integral. It is exact for many independent dimensions; otherwise a small part is left.

    Args:
        factor: L of the covariance of ``real``, see `covariance_factor`.
        fake: mean and covariance of more images than dimensions, with ddof 1.
    """
    m = (fake.count or 0) - 1
    with using_threads(linear_algebra_threads()):
        sigma = torch.from_numpy(fake.sigma)
        gram = factor.T @ sigma @ factor
        odd = len(gram) % 2  # see `frechet_distance`
        values = torch.linalg.eigvalsh(torch.nn.functional.pad(gram, (0, odd, 0, odd))).clamp(min=0.0).sqrt()
        t = _grid(values, _STEP)
        a = _shares(values, t) / m
        lacking = m * ((a / (1.0 + (1.0 - a).sqrt())).square() * t).sum().item() * _STEP  # dt = t dlog t
        shift = torch.from_numpy(fake.mu - real.mu)
        rest = (shift @ shift).item() + real.sigma.trace() + sigma.trace().item() * m / (m + 1)
    return float(rest - 2.0 * (values.sum().item() + 2.0 / math.pi * lacking))


def perfect_distance(real: Gaussian, count: int) -> float:
    """Returns about what the Fréchet distance of any number of images from a perfect generator would be.

    It is the expectation for a Gaussian with the mean and covariance of REAL. Features with heavy tails have more.
    """
    with using_threads(linear_algebra_threads()):
        values = torch.linalg.eigvalsh(torch.from_numpy(real.sigma)).clamp(min=0.0)
        t = _grid(values, _FINE_STEP)
        shares = _shares(values, t)
        closer = t * (1.0 - (1.0 - shares / max(count - 1, 1)).clamp(min=0.0).sqrt())
        lacking = 2.0 / math.pi * torch.trapezoid(shares, closer).item()
        return float(values.sum() / count + 2.0 * lacking)


def _grid(values: torch.Tensor, step: float) -> torch.Tensor:
    """Returns values of t that reach beyond all singular values, evenly spaced in log t."""
    largest = values.max().item() or 1.0
    smallest = max(values.min().item(), _SMALLEST * largest)
    return torch.arange(math.log(smallest) - _BELOW, math.log(largest) + _ABOVE, step, dtype=torch.float64).exp()


def _shares(values: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """Returns the sum of s² / (s² + t²) over the singular values s, for each t."""
    squares = values.square()
    return (squares / (squares + t.square()[:, None])).sum(1)
