"""The bias due to few images: slow formulas from the literature, simulated means, and the coverage
of the intervals.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.integrate import quad

from fidtool import frechet_distance
from fidtool.distances import error_bars as bars
from fidtool.distances.error_bars import difference, error_bars, fewest_images, interval
from fidtool.distances.exact import FeatureSettings
from fidtool.distances.frechet import covariance_factor
from fidtool.distances.sampling_bias import corrected_distance, expected_distance
from fidtool.statistics.set_statistics import Gaussian
from support.feature_sets import Features
from support.simulations import generators

Array = NDArray[np.float64]


def fitted(rows: Features) -> Gaussian:
    x = rows.astype(np.float64)
    return Gaussian(x.mean(0), np.cov(x.T), len(x))


def drawn(dims: int, images: int, seed: int, heavy: bool = False) -> Features:
    rng = np.random.default_rng(seed)
    lengths = rng.gamma(2.0, 0.5, (images, 1)) ** 0.5 if heavy else 1.0
    return (lengths * rng.standard_normal((images, dims)) * np.logspace(0, -1, dims)).astype(
        np.float32
    )


def target(dims: int) -> Gaussian:
    return Gaussian(np.zeros(dims), np.diag(np.logspace(0, -2, dims)), None)


@pytest.mark.parametrize(("dims", "images"), [(5, 8), (6, 40)])
def test_the_correction_equals_the_contour_integral(dims: int, images: int) -> None:
    """Between each zero η of the Stieltjes transform and the eigenvalue above it (Tiomoko &
    Couillet 2019).
    """
    real, rows = target(dims), drawn(dims, images, 1)
    fake, m = fitted(rows), images - 1
    root = np.sqrt(real.sigma)
    values = np.linalg.eigvalsh(root @ fake.sigma @ root)
    zeros = np.linalg.eigvalsh(np.diag(values) - np.sqrt(np.outer(values, values)) / m)

    total = 0.0
    for low, high in zip(zeros, values, strict=True):

        def at(angle: float, low: float = low, high: float = high) -> float:
            """Return the integrand at a point between the two, times the derivative of the point by
            the angle.
            """
            z = high - (high - low) * math.sin(angle) ** 2
            stieltjes = ((1.0 / (values - z)).sum() - (m - dims) / z) / m
            return (high - low) * math.sin(2.0 * angle) * math.sqrt(max(stieltjes, 0.0))

        total += quad(at, 0.0, math.pi / 2, limit=200)[0]
    expected = fake.mu @ fake.mu + np.trace(real.sigma + fake.sigma) - np.trace(fake.sigma) / images
    expected -= 2.0 * 2.0 * m / math.pi * total
    assert corrected_distance(real, covariance_factor(real), fake) == pytest.approx(
        expected, abs=1e-6
    )


@pytest.mark.parametrize("images", [5, 30, 45, 200])
def test_a_perfect_generator(images: int) -> None:
    """The mean of the distances of few images from a known distribution, also fewer than
    dimensions.
    """
    real = target(40)
    distances = [
        frechet_distance(real.mu, real.sigma, *fit(drawn(40, images, seed))) for seed in range(40)
    ]
    assert expected_distance(real, images) == pytest.approx(np.mean(distances), rel=0.07)


@pytest.mark.parametrize(
    ("reals", "fakes"), [(12, 12), (12, 200), (40, 30), (60, 60), (200, 12), (1000, 100)]
)
def test_two_samples_of_one_distribution(reals: int, fakes: int) -> None:
    """What either sample alone says of the mean of their distances, also of those of smaller
    samples.
    """
    pairs = [
        (fitted(drawn(40, reals, seed)), fitted(drawn(40, fakes, 1000 + seed)))
        for seed in range(40)
    ]
    distances = [frechet_distance(one.mu, one.sigma, other.mu, other.sigma) for one, other in pairs]
    predicted = [expected_distance(one, fakes) for one, _ in pairs[:8]]
    assert np.mean(predicted) == pytest.approx(np.mean(distances), rel=0.1)
    half = [
        expected_distance(fitted(drawn(40, 2 * reals, seed)), fakes, reals) for seed in range(8)
    ]
    assert np.mean(half) == pytest.approx(np.mean(distances), rel=0.1)
    taken_as_true = expected_distance(replace(pairs[0][0], count=None), fakes)
    assert taken_as_true < 0.7 * np.mean(distances) or reals > 5 * fakes


def fit(rows: Features) -> tuple[Array, Array]:
    fake = fitted(rows)
    return fake.mu, fake.sigma


def test_features_without_spread() -> None:
    real, rows = target(3), np.full((200, 3), 0.5, np.float32)
    assert corrected_distance(real, covariance_factor(real), fitted(rows)) == pytest.approx(
        0.75 + 1.11
    )
    assert expected_distance(Gaussian(np.zeros(3), np.zeros((3, 3)), 1), 10) == 0.0


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> Callable[[Gaussian, Features], Array]:
    """Return the function that error bars of few images come from, for any number."""
    monkeypatch.setattr(bars, "MIN_FULL_RANK_PER_DIM", 1000)
    return lambda real, fake: error_bars(real, fake, FeatureSettings(18))[0]


@pytest.mark.parametrize("images", [40, 140])
def test_coverage_of_few_images(images: int, few: Callable[[Gaussian, Features], Array]) -> None:
    """32 dimensions with heavy tails, two generators with the same latents. In 400 draws, it is 95
    to 99 %.
    """
    real, *fakes = generators(32, 1.0, 0.3)
    factors = [np.linalg.cholesky(fake.sigma).T for fake in fakes]
    true = [frechet_distance(real.mu, real.sigma, fake.mu, fake.sigma) for fake in fakes]
    true += [true[0] - true[1], true[0], true[0]]
    rng = np.random.default_rng(1)
    hits = []
    for _ in range(100):
        noise = rng.gamma(2.0, 0.5, (images, 1)) ** 0.5 * rng.standard_normal((images, 32))
        sets = [
            (noise @ own + fake.mu).astype(np.float32)
            for own, fake in zip(factors, fakes, strict=True)
        ]
        one, other = (few(real, rows) for rows in sets)
        value, _, low, high = interval(one)
        bounds = [(low, high), interval(other)[2:], difference(one, other)[2:]]
        bounds += [(low + wrong - value, high + wrong - value) for wrong in (one[0], one[1])]
        hits.append([low <= truth <= high for (low, high), truth in zip(bounds, true, strict=True)])
    first, second, paired, uncorrected, not_jackknifed = 100 * np.mean(hits, 0)
    assert min(first, second, paired) >= 93
    assert uncorrected < 5
    assert not_jackknifed < 70


def test_a_difference_of_few_and_many_images(few: Callable[[Gaussian, Features], Array]) -> None:
    real = target(5)
    one, other = few(real, drawn(5, 200, 1)), np.concatenate([[2.0], 2.0 + 0.01 * np.arange(36)])
    (value, error, low, high), (first, second) = (
        difference(one, other),
        (interval(one), interval(other)),
    )
    assert value == pytest.approx(first[0] - second[0], rel=1e-9)
    assert error == pytest.approx(math.hypot(first[1], second[1]), rel=1e-9)
    assert (low + high) / 2 == pytest.approx(value, rel=1e-9)


def test_most_of_the_blocks_have_more_images_than_dimensions() -> None:
    for dims in (1, 40, 180, 181, 182, 768, 2048):
        images = fewest_images(dims)
        assert images >= 200
        assert images - -(-images // 20) > dims + 1
