"""Error bars: the coverage of the intervals in a thousand draws each, and slow reference
implementations.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from fidtool import frechet_distance
from fidtool.distances.error_bars import (
    Curve,
    block_members,
    difference,
    error_bars,
    fid_curve,
    interval,
)
from fidtool.distances.exact import FeatureSettings
from fidtool.result.explanations import Interval
from fidtool.statistics.set_statistics import Gaussian
from support.feature_sets import Features
from support.simulations import AT_ONCE, check_coverage, distance, distances_of_parts, generators

Array = NDArray[np.float64]


def bars(real: Gaussian, fake: Features) -> tuple[Array, Curve]:
    return error_bars(real, fake, FeatureSettings(18))


def drawn(generator: Gaussian, count: int, seed: int) -> Features:
    normal = np.random.default_rng(seed).multivariate_normal
    return normal(generator.mu, generator.sigma, count, method="cholesky").astype(np.float32)


@pytest.mark.parametrize(
    ("dims", "count", "decades", "amount", "latents"),
    [
        (16, 200, 0.0, 0.2, "independent"),
        pytest.param(40, 200, 3.0, 0.02, "the same", marks=pytest.mark.slow),
    ],
)
def test_gaussians_of_known_distance(
    dims: int, count: int, decades: float, amount: float, latents: str
) -> None:
    """Perfect, nearly perfect and worse generators, with flat or steep spectra."""
    real, *fakes = generators(dims, decades, amount)
    factors = [np.linalg.cholesky(fake.sigma).T for fake in fakes]
    rng = np.random.RandomState(1)

    def draw() -> tuple[Array, Array]:
        noise = [rng.randn(AT_ONCE, count, dims) for _ in fakes]
        first, second = noise if latents == "independent" else (noise[0], noise[0])
        return first @ factors[0] + fakes[0].mu, second @ factors[1] + fakes[1].mu

    uncorrected, pairing = check_coverage(real, draw, fakes)
    assert uncorrected < 85
    assert (pairing < 0.5) == (latents == "the same"), "common variation cancels"


REAL, ONE, OTHER = generators(7, 1.0, 0.3)


def slowly(real: Gaussian, fake: Features) -> Array:
    """Computes the FIDs of the parts from the rows, with blocks of different sizes."""
    ends = [len(fake) * block // 20 for block in range(21)]
    blocks = [fake[start:end].astype(np.float64) for start, end in itertools.pairwise(ends)]
    parts = [np.concatenate(list(itertools.compress(blocks, part))) for part in block_members()]
    return np.array([frechet_distance(real.mu, real.sigma, x.mean(0), np.cov(x.T)) for x in parts])


def test_parts_equal_those_computed_from_rows() -> None:
    """Up to the rounding of the features to 2 ** -18. The same holds for `distances_of_parts` of
    several sets.
    """
    fake = drawn(ONE, 313, 1)
    ours, curve = bars(REAL, fake)
    np.testing.assert_allclose(ours, slowly(REAL, fake), rtol=1e-4)
    assert ours[0] == curve[-1][1]
    fakes = np.array([fake[:300], fake[13:]])
    at_once = distances_of_parts(REAL, fakes.astype(np.float64))
    np.testing.assert_allclose(at_once, [bars(REAL, one)[0] for one in fakes], rtol=1e-4)


@pytest.mark.parametrize(("amount", "seed"), [(0.0, 2), (0.3, 2)])
def test_the_estimate_equals_the_textbook_formulas(amount: float, seed: int) -> None:
    """Polynomials through the points, pseudo-values, and an upper end that uses the error at this
    end.
    """
    real, one, _ = generators(7, 1.0, amount)
    parts = slowly(real, drawn(one, 400, seed))
    halves = parts[21:33].reshape(6, 2).mean(1)
    x, y = [1, 20 / 19, 2, 4], [parts[0], parts[1:21].mean(), halves.mean(), parts[33:].mean()]
    second, third = (np.polyfit(x[: n + 1], y[: n + 1], n)[-1] for n in (2, 3))
    weight = np.mean([np.polyfit(x[: n + 1], np.eye(n + 1)[2], n)[-1] for n in (2, 3)])
    jackknife = (20 * parts[0] - 19 * parts[1:21]).var(ddof=1) / 20
    pairs = halves.var(ddof=1)
    linear = jackknife - 720 / 361 * pairs
    variance = max(linear + 20 / 19 * pairs, jackknife / 2) + weight**2 * pairs * (1 / 6 - 1 / 19)
    variance += (third - second) ** 2 / 12
    ours, t = Interval(*interval(parts)), stats.t.ppf(0.975, 19)
    assert (ours.value, ours.error) == pytest.approx(
        ((second + third) / 2, variance**0.5), rel=1e-6
    )
    assert ours.low == pytest.approx(ours.value - t * ours.error, rel=1e-9)
    slope = max(linear, 0) / (max(ours.value, 0) + ours.error)
    there = (variance + slope * (ours.high - ours.value)) ** 0.5
    assert ours.high == pytest.approx(ours.value + t * there, rel=1e-6)


def test_a_difference_is_from_the_same_blocks() -> None:
    one, other = (bars(REAL, drawn(generator, 400, 3))[0] for generator in (ONE, OTHER))
    found, swapped = Interval(*difference(one, other)), Interval(*difference(other, one))
    assert found.value == pytest.approx(interval(one)[0] - interval(other)[0], rel=1e-9)
    assert found.error < 0.5 * interval(one)[1]
    assert (swapped.value, swapped.low, swapped.high) == (-found.value, -found.high, -found.low)
    assert difference(one, one) == (0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("count", [1, 3, 399])
def test_the_curve_of_any_number_of_images(count: int, tmp_path: Path) -> None:
    """Including fewer images than dimensions, with singular covariances, and features mapped from a
    read-only file.
    """
    np.save(tmp_path / "kept.npy", drawn(ONE, count, 7))
    fake = np.load(tmp_path / "kept.npy", mmap_mode="r")
    curve = fid_curve(REAL, fake, FeatureSettings(18))
    assert [images for images, _ in curve] == sorted(
        {count * point // 4 for point in (1, 2, 3, 4)} - {0}
    )
    for images, fid in curve:
        x = fake[:images].astype(np.float64)
        sigma = np.cov(x.T) if images > 1 else np.zeros((7, 7))
        assert fid == pytest.approx(distance(REAL, Gaussian(x.mean(0), sigma, images)), rel=1e-4)
    if count > 200:
        np.testing.assert_allclose(curve, bars(REAL, fake)[1], rtol=1e-12)
