"""How much a Fréchet distance is too high because it is of few generated images (law of Marchenko &
Pastur 1967).

With sigma = L Lᵀ, the distance contains the sum of the singular values s of L1ᵀ L2 (see
`frechet_distance`), which are smaller for n images than for the population. With λ = s² and m = n -
1 degrees of freedom, the sum of λ / (λ + t²), called m a(t), is about that of the population at t²
/ (1 - a(t)) instead of t². The sum of the singular values is the integral of (2 / π) m a(t) dt, and
that of the population the integral of (2 / π) m a(t) d(t / √(1 - a(t))).
"""

from __future__ import annotations

import math

import torch

from fidtool.distances.frechet import eigenvalues
from fidtool.distances.parallel import linear_algebra_threads, set_threads
from fidtool.statistics.set_statistics import Gaussian

# Singular values below this fraction of the largest one are rounding errors.
_RELATIVE_TOLERANCE = 1e-8
# Step of smooth integrals in log t, for which the trapezoidal rule is exact to 1e-13.
_STEP = 0.3
# Step of other integrals in log t, for which it is exact to 1e-3.
_FINE_STEP = 0.1
# Enough from the solution at the last step.
_NEWTON_STEPS = 4
# Logarithms of how far the integrals go beyond the singular values; what they omit is less than
# 1e-6 of them.
_LOG_LOWER_MARGIN = 12.0
_LOG_UPPER_MARGIN = 6.0


def corrected_distance(real: Gaussian, factor: torch.Tensor, fake: Gaussian) -> float:
    """Return the Fréchet distance without the bias due to the number of generated images, to
    leading order.

    The mean of n images adds tr sigma / n on average. What the sum of the singular values lacks is,
    integrated by parts, (2 m / π) times the integral of (1 - √(1 - a(t)))² dt. Tiomoko & Couillet
    (2019, from Mestre 2008) have the same estimate as a contour integral. It is exact for many
    independent dimensions; otherwise a small part is left.

    Args:
        factor: L of the covariance of ``real``, see `covariance_factor`.
        fake: mean and covariance of more images than dimensions, with ddof 1.
    """
    m = (fake.count or 0) - 1
    with set_threads(linear_algebra_threads()):
        sigma = torch.from_numpy(fake.sigma)
        values = eigenvalues(factor.T @ sigma @ factor).clamp(min=0.0).sqrt()
        t = _grid(values)
        a = _shares(values, t) / m
        # dt = t dlog t
        missing = m * ((a / (1.0 + (1.0 - a).sqrt())).square() * t).sum().item() * _STEP
        shift = torch.from_numpy(fake.mu - real.mu)
        rest = (shift @ shift).item() + real.sigma.trace() + sigma.trace().item() * m / (m + 1)
    return float(rest - 2.0 * (values.sum().item() + 2.0 / math.pi * missing))


def expected_distance(real: Gaussian, fakes: int, reals: int | None = None) -> float:
    """Return about what the Fréchet distance of a perfect generator's images and of as good real
    ones would be.

    It is the expectation for two samples of one Gaussian. Features with heavy tails have more. A
    sample multiplies t² by 1 - a(t), see above; two independent ones do so one after the other
    (Voiculescu 1987). The distance is therefore an integral of A(u), the sum of λ² / (λ² + u²) over
    the eigenvalues λ of the population's covariance. What this law of many dimensions lacks is tr
    sigma / 4 m: the variance of a direction varies twice as much as a covariance.

    Args:
        real: mean and covariance of a sample from the population, or of the population if the count
            is unknown.
        fakes, reals: numbers of images; by default REAL has those of ``real``.
    """
    count = math.inf if real.count is None else max(real.count, 2)
    sizes = [max(fakes, 2), count if reals is None else max(reals, 2)]
    with set_threads(linear_algebra_threads()):
        values = eigenvalues(torch.from_numpy(real.sigma))
        values = values[values > _RELATIVE_TOLERANCE * values.max()]
        if len(values) == 0:
            return 0.0
        u, shares = _population_curve(values, count - 1, min(sizes) - 1)
        rest, rest_of_other = (1.0 - shares / (size - 1) for size in sizes)
        t = u * (rest * rest_of_other).sqrt()
        # The integral of A du over all u is known, which leaves that of A d(u - t), and A du where
        # A is not known.
        total = float(values.sum())
        known = torch.trapezoid(shares * u, u.log()) + shares[-1] * u[-1]
        missing = math.pi / 2.0 * total - known + torch.trapezoid(shares, u - t) - shares[0] * t[0]
        lower_order = sum(1.0 / size + 0.25 / (size - 1) for size in sizes)
        return total * lower_order + 4.0 / math.pi * float(missing)


def _population_curve(
    values: torch.Tensor, m: float, most: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return values of u, ascending and evenly spaced in log u, at which A(u) is below ``most``,
    and A(u).

    A(u) is the real part of the sum of λ / (λ + iu). That is the sum of the sample's ``values``, of
    m degrees of freedom, of λ / (λ + z), at the z with z = iu (1 - sum / m), as long as A(u) < m
    (Silverstein & Choi 1995).
    """
    points = [(math.inf, 0.0)]
    u = values.max().item() * math.exp(_LOG_UPPER_MARGIN)
    z = 1j * u
    while u > values.min().item() * math.exp(-_LOG_LOWER_MARGIN):
        for _ in range(_NEWTON_STEPS):
            parts = values / (values + z)
            error = z - 1j * u * (1.0 - parts.sum().item() / m)
            z -= error / (1.0 - 1j * u * (parts.square() / values).sum().item() / m)
        share = (values / (values + z)).sum().item().real
        if not points[-1][1] <= share < most:
            break
        points.append((u, share))
        u *= math.exp(-_FINE_STEP)
        z *= math.exp(-_FINE_STEP)
    ascending = torch.tensor(points[:0:-1], dtype=torch.float64)
    return ascending[:, 0], ascending[:, 1]


def _grid(values: torch.Tensor) -> torch.Tensor:
    """Return values of t that reach beyond all singular values, evenly spaced in log t."""
    largest = values.max().item() or 1.0
    smallest = max(values.min().item(), _RELATIVE_TOLERANCE * largest)
    return torch.arange(
        math.log(smallest) - _LOG_LOWER_MARGIN,
        math.log(largest) + _LOG_UPPER_MARGIN,
        _STEP,
        dtype=torch.float64,
    ).exp()


def _shares(values: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """Return the sum of s² / (s² + t²) over the singular values s, for each t."""
    squares = values.square()
    return (squares / (squares + t.square()[:, None])).sum(1)
