"""Coverage of intervals: computations on many draws at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool import frechet_distance
from fidtool.distances.error_bars import Estimate, block_members, difference, interval
from fidtool.statistics.set_statistics import Gaussian

Array = NDArray[np.float64]
DRAWS = 1000
AT_ONCE = 100


def generators(dims: int, decades: float, amount: float) -> tuple[Gaussian, Gaussian, Gaussian]:
    """REAL with a spectrum over ``decades``, and two Gaussians that deviate by ``amount`` and by
    less.
    """
    rng = np.random.RandomState(0)
    real = np.diag(np.logspace(0, -decades, dims))
    rotation, _ = np.linalg.qr(rng.randn(dims, dims))
    other = rotation @ real @ rotation.T
    shift = real.diagonal() ** 0.5 * rng.randn(dims)

    def off(by: float) -> Gaussian:
        sigma = (1 - by / 2) * ((1 - by) * real + by * (other + other.T) / 2)
        return Gaussian(by * shift, sigma, None)

    return Gaussian(np.zeros(dims), real, None), off(amount), off(0.8 * amount)


def distance(one: Gaussian, other: Gaussian) -> float:
    return frechet_distance(
        one.mu, one.sigma, other.mu, other.sigma, count1=one.count, count2=other.count
    )


def distances_of_parts(real: Gaussian, rows: Array) -> Array:
    """Return the result of `error_bars` for many sets at once, which is faster. ``rows`` has shape
    (sets, n, D).
    """
    factor = torch.from_numpy(np.linalg.cholesky(real.sigma))
    middle = rows.mean((0, 1))
    # A few sets at a time, so that their matrices stay in the processor's cache.
    some = (rows[start : start + 5] for start in range(0, len(rows), 5))
    return np.concatenate([_distances_of_parts(real, factor, middle, own) for own in some])


def _distances_of_parts(real: Gaussian, factor: torch.Tensor, middle: Array, rows: Array) -> Array:
    """Return the parts of some sets. ``middle`` is a point near their means, for numerical
    accuracy.
    """
    blocks = torch.from_numpy(rows - middle).reshape(len(rows), 20, -1, len(middle))
    which = torch.from_numpy(block_members().astype(np.float64))
    counts = blocks.shape[2] * which.sum(1)[:, None]
    mean = torch.einsum("pg,sgd->spd", which, blocks.sum(2)) / counts
    products = torch.einsum("pg,sgde->spde", which, blocks.mT @ blocks) / counts[..., None]
    sigma = (products - mean[..., None] * mean[..., None, :]) * (counts / (counts - 1))[..., None]
    overlap = torch.linalg.eigvalsh(factor.T @ sigma @ factor).clamp(min=0).sqrt().sum(-1)
    traces = sigma.diagonal(dim1=-2, dim2=-1).sum(-1) + np.trace(real.sigma)
    away = (mean + torch.from_numpy(middle - real.mu)).square().sum(-1)
    found: Array = (away + traces - 2 * overlap).numpy()
    return found


def covered(found: list[Estimate], true: float, moved: Array | float = 0.0) -> float:
    """Return the percentage of the intervals, shifted by ``moved``, that contain the true value."""
    assert len(found) == DRAWS
    low, high = np.array(found)[:, 2:].T + moved
    return 100 * float(np.mean((low <= true) & (true <= high)))


def check_coverage(
    real: Gaussian, draw: Callable[[], tuple[Array, Array]], fakes: list[Gaussian]
) -> tuple[float, float]:
    """Check the coverage for two generators and their difference. ``draw`` returns `AT_ONCE` sets
    of each.

    Returns:
        The coverage of the second generator if its intervals were centred on the uncorrected FIDs;
        the relative error of the difference's standard error.
    """
    batches = [[distances_of_parts(real, rows) for rows in draw()] for _ in range(DRAWS // AT_ONCE)]
    one, other = (np.concatenate(own) for own in zip(*batches, strict=True))
    found = [[*map(interval, one)], [*map(interval, other)], [*map(difference, one, other)]]
    true = [distance(real, fake) for fake in fakes]
    for own, truth in zip(found, [*true, true[0] - true[1]], strict=True):
        assert 92 <= covered(own, truth) <= 98
    values, errors = np.array(found)[..., :2].T
    return covered(found[1], true[1], other[:, 0] - values[:, 1]), errors[:, 2].mean() / errors[
        :, 1
    ].mean()
