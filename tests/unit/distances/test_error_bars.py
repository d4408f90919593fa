"""Error bars: the coverage of the intervals in a thousand draws each, and slow reference implementations."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import ImageFilter
from scipy import stats

from fidtool import InputError, demo, frechet_distance
from fidtool.distances.error_bars import ErrorBars, difference, error_bars, fid_curve
from fidtool.distances.exact import FeatureSettings
from fidtool.distances.jackknife import _T, BLOCKS, Interval, halvings, interval, members
from fidtool.statistics.moments import Gaussian
from support.feature_sets import Features, alone
from support.simulations import AT_ONCE, check_coverage, distance, distances_of_parts
from support.tiny_network import network

Array = NDArray[np.float64]


def bars(real: Gaussian, fake: Features) -> ErrorBars:
    return error_bars(real, fake, FeatureSettings(18), alone())


def generators(dims: int, decades: float, amount: float) -> tuple[Gaussian, Gaussian, Gaussian]:
    """REAL with a spectrum over ``decades``, and two Gaussians that deviate by ``amount`` and by less."""
    rng = np.random.RandomState(0)
    real = np.diag(np.logspace(0, -decades, dims))
    rotation, _ = np.linalg.qr(rng.randn(dims, dims))
    other = rotation @ real @ rotation.T
    shift = real.diagonal() ** 0.5 * rng.randn(dims)

    def off(by: float) -> Gaussian:
        sigma = (1 - by / 2) * ((1 - by) * real + by * (other + other.T) / 2)
        return Gaussian(by * shift, sigma, None)

    return Gaussian(np.zeros(dims), real, None), off(amount), off(0.8 * amount)


def drawn(generator: Gaussian, count: int, seed: int) -> Features:
    normal = np.random.default_rng(seed).multivariate_normal
    return normal(generator.mu, generator.sigma, count, method="cholesky").astype(np.float32)


@pytest.mark.parametrize(
    ("dims", "count", "decades", "amount", "latents"),
    [
        pytest.param(40, 200, 0.0, 0.0, "independent", marks=pytest.mark.slow),
        pytest.param(40, 200, 3.0, 0.02, "the same", marks=pytest.mark.slow),
        (16, 200, 0.0, 0.2, "independent"),
        pytest.param(24, 240, 2.0, 0.2, "independent", marks=pytest.mark.slow),
        (24, 240, 2.0, 0.2, "the same"),
    ],
)
def test_gaussians_of_known_distance(dims: int, count: int, decades: float, amount: float, latents: str) -> None:
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


@pytest.mark.parametrize("latents", [pytest.param("independent", marks=pytest.mark.slow), "the same"])
def test_features_of_drawings(latents: str) -> None:
    """The features are skewed, and two or three dimensions have most variance. Fakes are drawn with replacement."""

    def features(first: int, blur: float) -> Array:
        drawings = [demo._drawing(random.Random(number)) for number in range(first, first + 600)]
        small = [np.asarray(one.filter(ImageFilter.GaussianBlur(blur)).resize((32, 32))) for one in drawings]
        with torch.no_grad():
            batch = torch.from_numpy(np.array(small)).permute(0, 3, 1, 2) / 127.5 - 1
            found: Array = network().module(batch).mean((2, 3)).double().numpy()
        return found

    populations = features(0, 0.0), features(1000, 1.0), features(1000, 3.0)
    real, *fakes = (Gaussian(rows.mean(0), np.cov(rows.T, ddof=0), None) for rows in populations)
    rng = np.random.RandomState(2)

    def draw() -> tuple[Array, Array]:
        which = rng.randint(0, 600, (2, AT_ONCE, 600))
        return populations[1][which[0]], populations[2][which[0 if latents == "the same" else 1]]

    _, pairing = check_coverage(real, draw, fakes)
    assert (pairing < 0.2) == (latents == "the same")


@pytest.mark.slow
def test_the_jackknife_alone_would_leave_bias() -> None:
    """At 5 images per dimension the bias exceeds the standard error; it grows with the number of dimensions."""
    real = Gaussian(np.zeros(120), np.eye(120), None)
    rng = np.random.RandomState(3)
    parts = np.concatenate([distances_of_parts(real, rng.randn(1, 600, 120)) for _ in range(60)])
    values = np.array([interval(part).value for part in parts])
    assert abs(values.mean()) < 3 * values.std(ddof=1) / 60**0.5
    assert (20 * parts[:, 0] - 19 * parts[:, 1:21].mean(1)).mean() < -values.std(ddof=1)


REAL, ONE, OTHER = generators(7, 1.0, 0.3)


def slowly(real: Gaussian, fake: Features) -> Array:
    """Computes `ErrorBars.parts` from the rows, with blocks of different sizes."""
    ends = [len(fake) * block // 20 for block in range(21)]
    blocks = [fake[start:end].astype(np.float64) for start, end in itertools.pairwise(ends)]
    parts = [np.concatenate(list(itertools.compress(blocks, part))) for part in members()]
    return np.array([frechet_distance(real.mu, real.sigma, x.mean(0), np.cov(x.T)) for x in parts])


def test_parts_equal_those_computed_from_rows() -> None:
    """Up to the rounding of the features to 2 ** -18. The same holds for `distances_of_parts` of several sets."""
    fake = drawn(ONE, 313, 1)
    ours = bars(REAL, fake)
    np.testing.assert_allclose(ours.parts, slowly(REAL, fake), rtol=1e-4)
    assert (ours.corrected, ours.fid) == (interval(ours.parts), ours.curve[-1][1])
    assert ours.bias == ours.fid - ours.corrected.value
    fakes = np.array([fake[:300], fake[13:]])
    at_once = distances_of_parts(REAL, fakes.astype(np.float64))
    np.testing.assert_allclose(at_once, [bars(REAL, one).parts for one in fakes], rtol=1e-4)


@pytest.mark.parametrize(("amount", "seed"), [(0.0, 2), (0.0, 4), (0.0, 11), (0.3, 2)])
def test_the_estimate_equals_the_textbook_formulas(amount: float, seed: int) -> None:
    """Polynomials through the points, pseudo-values, and an upper end that uses the error at this end."""
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
    ours, t = interval(parts), stats.t.ppf(0.975, 19)
    assert (ours.value, ours.error) == pytest.approx(((second + third) / 2, variance**0.5), rel=1e-6)
    assert ours.low == pytest.approx(ours.value - t * ours.error, rel=1e-9)
    slope = max(linear, 0) / (max(ours.value, 0) + ours.error)
    there = (variance + slope * (ours.high - ours.value)) ** 0.5
    assert ours.high == pytest.approx(ours.value + t * there, rel=1e-6)


def test_variance_due_to_pairs_of_blocks() -> None:
    """The sum of k(g, h) / 20²: its variance, and the estimates of the jackknife and the halves, over 4000 draws."""
    which = members().astype(np.float64)
    rng = np.random.RandomState(4)
    found = []
    for _ in range(4000):
        kernel = np.triu(rng.randn(20, 20), 1)
        values = np.einsum("pg,gh,ph->p", which, kernel + kernel.T, which) / which.sum(1) ** 2
        jackknife = 19 / 20 * ((values[1:21] - values[1:21].mean()) ** 2).sum()
        found.append(((20 / 19 * values[0]) ** 2, jackknife, values[21:33].reshape(6, 2).mean(1).var(ddof=1)))
    true, jackknife, halves = np.mean(found, axis=0)
    # The mean of 4000 chi-squares with one degree of freedom has a relative standard error of 0.022.
    assert true == pytest.approx(2 / (20 * 19), rel=0.07)
    assert jackknife == pytest.approx(4 * 18 / (20 * 19**2), rel=0.03)
    assert halves == pytest.approx(2 / 20**2, rel=0.03)


def test_the_halves_are_balanced() -> None:
    ways = halvings()
    assert (ways.sum(1) == 10).all()
    together = (ways[:, :, None] == ways[:, None, :]).sum(0)
    assert (together[~np.eye(20, dtype=bool)] == 9).all()
    assert all((one & other).sum() == 5 for one, other in itertools.combinations(ways, 2))


def test_a_difference_is_from_the_same_blocks() -> None:
    one, other = bars(REAL, drawn(ONE, 400, 3)), bars(REAL, drawn(OTHER, 400, 3))
    found, swapped = difference(one, other), difference(other, one)
    assert found.value == pytest.approx(one.corrected.value - other.corrected.value, rel=1e-9)
    assert found.error < 0.5 * one.corrected.error
    assert (swapped.value, swapped.low, swapped.high) == (-found.value, -found.high, -found.low)
    assert difference(one, one) == Interval(0.0, 0.0, 0.0, 0.0)


def test_reals_of_low_rank() -> None:
    """Fewer real images than dimensions."""
    rows = np.random.RandomState(5).randn(5, 7)
    real = Gaussian(rows.mean(0), np.cov(rows.T), 5)
    found = bars(real, drawn(ONE, 400, 6)).corrected
    assert abs(found.value - distance(real, ONE)) < 4 * found.error


@pytest.mark.parametrize(("dims", "count", "fewest"), [(7, 199, 200), (41, 204, 205)])
def test_too_few_images_and_different_dimensions_are_refused(dims: int, count: int, fewest: int) -> None:
    real, one, _ = generators(dims, 0.0, 0.1)
    with pytest.raises(InputError, match=f"{dims} dimensions need at least {fewest} .* there are {count}: generate"):
        bars(real, drawn(one, count, 0))
    assert np.isfinite(bars(real, drawn(one, fewest, 0)).corrected.high)
    for measure in (error_bars, fid_curve):
        with pytest.raises(InputError, match=f"{dims} dimensions"):
            measure(real, drawn(one, fewest, 0)[:, 1:], FeatureSettings(18), alone())


@pytest.mark.parametrize("count", [1, 2, 3, 5, 9, 399])
def test_the_curve_of_any_number_of_images(count: int, tmp_path: Path) -> None:
    """Including fewer images than dimensions, with singular covariances, and features mapped from a read-only file."""
    np.save(tmp_path / "kept.npy", drawn(ONE, count, 7))
    fake = np.load(tmp_path / "kept.npy", mmap_mode="r")
    curve = fid_curve(REAL, fake, FeatureSettings(18), alone())
    assert [images for images, _ in curve] == sorted({count * point // 4 for point in (1, 2, 3, 4)} - {0})
    for images, fid in curve:
        x = fake[:images].astype(np.float64)
        sigma = np.cov(x.T) if images > 1 else np.zeros((7, 7))
        assert fid == pytest.approx(distance(REAL, Gaussian(x.mean(0), sigma, images)), rel=1e-4)
    if count > 200:
        np.testing.assert_allclose(curve, bars(REAL, fake).curve, rtol=1e-12)


def test_students_t_is_scipys() -> None:
    assert pytest.approx(stats.t.ppf(0.975, BLOCKS - 1), rel=1e-14) == _T
