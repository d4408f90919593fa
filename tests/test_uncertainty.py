"""Error bars: the interval has the truth in it as often as it says, in thousands of draws; a slow reference; ranks."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import free_port
from feature_sets import Features, alone
from numpy.typing import NDArray
from PIL import Image, ImageFilter
from ranks import RankServer
from scipy import stats
from tiny_network import network

from fidtool import InputError, demo, frechet_distance
from fidtool.metrics.influence import Target
from fidtool.metrics.uncertainty import (
    ErrorBars,
    Interval,
    difference,
    error_bars,
    fid_curve,
    halvings,
    interval,
    interval_between,
    members,
)

Array = NDArray[np.float64]
DRAWS = 1000
AT_ONCE = 100
LOWEST, HIGHEST = 92.0, 98.0
"""Per cent of the draws."""


def bars(real: Target, fake: Features) -> ErrorBars:
    return error_bars(real, fake, alone(), feature_step=18)


def target(features: Array) -> Target:
    """Of a population, which is all there is: not a sample of anything."""
    return Target(features.mean(0), np.cov(features.T, ddof=0), None)


def distance(one: Target, other: Target) -> float:
    return frechet_distance(one.mu, one.sigma, other.mu, other.sigma)


def distances_of_parts(real: Target, rows: Array) -> Array:
    """`ErrorBars.parts` of many sets at once, in a fraction of the time; shape (sets, 37).

    Args:
        real: of full rank.
        rows: features of shape (sets, n, D), n a multiple of 20.
    """
    factor = torch.from_numpy(np.linalg.cholesky(real.sigma))
    middle = rows.mean((0, 1))
    blocks = torch.from_numpy(rows - middle).unflatten(1, (20, -1))
    size = blocks.shape[2]
    which = torch.from_numpy(members().astype(np.float64))
    counts = size * which.sum(1)[:, None]
    sums = torch.einsum("pg,sgd->spd", which, blocks.sum(2))
    products = torch.einsum("pg,sgde->spde", which, blocks.mT @ blocks)
    mean = sums / counts
    sigma = (products - sums[..., None] * mean[..., None, :]) / (counts - 1)[..., None]
    overlap = torch.linalg.eigvalsh(factor.T @ sigma @ factor).clamp(min=0).sqrt().sum(-1)
    traces = sigma.diagonal(dim1=-2, dim2=-1).sum(-1) + np.trace(real.sigma)
    away = (mean + torch.from_numpy(middle - real.mu)).square().sum(-1)
    found: Array = (away + traces - 2 * overlap).numpy()
    return found


def covered(found: list[Interval], true: float) -> float:
    """Per cent of the intervals that have the truth in them."""
    assert len(found) >= DRAWS
    return 100 * float(np.mean([one.low <= true <= one.high for one in found]))


def mean_error(found: list[Interval]) -> float:
    return float(np.mean([one.error for one in found]))


def covered_uncorrected(parts: Array, found: list[Interval], true: float) -> float:
    """The same, were the intervals moved to the FIDs as they are."""
    moved = [(fid - one.value, one) for fid, one in zip(parts[:, 0], found, strict=True)]
    return 100 * float(np.mean([one.low + by <= true <= one.high + by for by, one in moved]))


@dataclass
class Gaussian:
    """A generator of known distance."""

    mu: Array
    sigma: Array

    def __post_init__(self) -> None:
        self.factor = np.linalg.cholesky(self.sigma)

    @property
    def target(self) -> Target:
        return Target(self.mu, self.sigma, None)


def spectrum(dims: int, decades: float) -> Array:
    sigma: Array = np.diag(np.logspace(0, -decades, dims))
    return sigma


def generators(dims: int, decades: float, amount: float) -> tuple[Target, Gaussian, Gaussian]:
    """REAL and two generators whose mean, spread and directions are off by ``amount``, and by less."""
    rng = np.random.RandomState(0)
    real = spectrum(dims, decades)
    rotation, _ = np.linalg.qr(rng.randn(dims, dims))
    other = rotation @ real @ rotation.T
    shift = amount * real.diagonal() ** 0.5 * rng.randn(dims)
    found = [
        Gaussian(
            share * shift,
            (1 - 0.5 * share * amount) * ((1 - share * amount) * real + share * amount * (other + other.T) / 2),
        )
        for share in (1.0, 0.8)
    ]
    return Target(np.zeros(dims), real, None), *found


@pytest.mark.parametrize(
    ("dims", "count", "decades", "amount", "latents"),
    [
        (40, 200, 0.0, 0.0, "independent"),
        (40, 200, 3.0, 0.02, "the same"),
        (16, 200, 0.0, 0.2, "independent"),
        (16, 200, 0.0, 0.2, "the same"),
        (24, 240, 2.0, 0.2, "independent"),
        (24, 240, 2.0, 0.2, "the same"),
    ],
)
def test_gaussians_of_known_distance(dims: int, count: int, decades: float, amount: float, latents: str) -> None:
    """Perfect generators, nearly perfect ones, and others; spectra that are flat, and that fall over ``decades``."""
    real, one, other = generators(dims, decades, amount)
    rng = np.random.RandomState(1)
    drawn: list[list[Array]] = [[], []]
    for _ in range(DRAWS // AT_ONCE):
        noise = rng.randn(2, AT_ONCE, count, dims)
        for number, generator in enumerate((one, other)):
            latent = noise[number if latents == "independent" else 0]
            drawn[number].append(distances_of_parts(real, latent @ generator.factor.T + generator.mu))
    parts = [np.concatenate(own) for own in drawn]
    true = [distance(real, generator.target) for generator in (one, other)]
    for own, truth in zip(parts, true, strict=True):
        found = [interval(part) for part in own]
        assert LOWEST <= covered(found, truth) <= HIGHEST
        assert covered_uncorrected(own, found, truth) < 85, "as if there were no bias"
    differences = [interval_between(*pair) for pair in zip(*parts, strict=True)]
    assert LOWEST <= covered(differences, true[0] - true[1]) <= HIGHEST
    if latents == "the same":
        assert mean_error(differences) < 0.5 * mean_error(found), "what they have in common cancels"


@pytest.fixture(scope="module")
def populations() -> dict[str, Array]:
    """Features of drawings, 600 each: skewed, with tails, in 16 dimensions of which two or three have the spread."""

    def features(first: int, blur: float) -> Array:
        pictures = []
        for number in range(first, first + 600):
            picture = demo._drawing(random.Random(number)).filter(ImageFilter.GaussianBlur(blur))
            pictures.append(np.asarray(picture.resize((32, 32), Image.Resampling.BILINEAR)))
        batch = torch.from_numpy(np.array(pictures)).permute(0, 3, 1, 2) / 127.5 - 1
        with torch.no_grad():
            found: Array = network().module(batch).mean((2, 3)).double().numpy()
        return found

    return {"real": features(0, 0.0), "soft": features(1000, 1.0), "softer": features(1000, 3.0)}


@pytest.mark.parametrize("latents", ["independent", "the same"])
def test_features_of_drawings(populations: dict[str, Array], latents: str) -> None:
    """Fakes are drawn with replacement, so their population is known to the last image."""
    real = target(populations["real"])
    rng = np.random.RandomState(2)
    names = ("soft", "softer")
    drawn: list[list[Array]] = [[], []]
    for _ in range(DRAWS // AT_ONCE):
        which = rng.randint(0, 600, (2, AT_ONCE, 600))
        for number, name in enumerate(names):
            rows = populations[name][which[number if latents == "independent" else 0]]
            drawn[number].append(distances_of_parts(real, rows))
    parts = [np.concatenate(own) for own in drawn]
    true = [distance(real, target(populations[name])) for name in names]
    for own, truth in zip(parts, true, strict=True):
        found = [interval(part) for part in own]
        assert LOWEST <= covered(found, truth) <= HIGHEST
    differences = [interval_between(*pair) for pair in zip(*parts, strict=True)]
    assert LOWEST <= covered(differences, true[0] - true[1]) <= HIGHEST
    if latents == "the same":
        assert mean_error(differences) < 0.2 * mean_error(found)


def test_the_jackknife_alone_would_leave_bias() -> None:
    """More so the more dimensions: here, at 5 images a dimension, more than its error."""
    dims = 120
    real = Target(np.zeros(dims), np.eye(dims), None)
    rng = np.random.RandomState(3)
    parts = np.concatenate([distances_of_parts(real, rng.randn(1, 5 * dims, dims)) for _ in range(60)])
    values = np.array([interval(part).value for part in parts])
    jackknifed = 20 * parts[:, 0] - 19 * parts[:, 1:21].mean(1)
    # The mean of 60 is within 3 of its standard errors of 0; the jackknife's is beyond.
    noise = values.std(ddof=1) / 60**0.5
    assert abs(values.mean()) < 3 * noise
    assert jackknifed.mean() < -8 * noise


REAL, ONE, OTHER = generators(7, 1.0, 0.3)


def drawn(generator: Gaussian, count: int, seed: int) -> Features:
    rows = np.random.RandomState(seed).randn(count, len(generator.mu)) @ generator.factor.T + generator.mu
    return rows.astype(np.float32)


def slowly(real: Target, fake: Features) -> Array:
    """`ErrorBars.parts` from the rows themselves, with blocks whose sizes differ."""
    ends = [len(fake) * block // 20 for block in range(21)]
    blocks = [fake[start:end].astype(np.float64) for start, end in itertools.pairwise(ends)]
    parts = [np.concatenate(list(itertools.compress(blocks, part))) for part in members()]
    return np.array([frechet_distance(real.mu, real.sigma, x.mean(0), np.cov(x.T)) for x in parts])


def test_every_part_is_that_of_its_rows() -> None:
    """Up to the rounding of the features to 2 ** -18."""
    fake = drawn(ONE, 313, 1)
    ours = bars(REAL, fake)
    np.testing.assert_allclose(ours.parts, slowly(REAL, fake), rtol=1e-5)
    assert ours.corrected == interval(ours.parts)
    assert ours.fid == ours.parts[0]
    assert ours.bias == ours.fid - ours.corrected.value
    assert [count for count, _ in ours.curve] == [313 * point // 4 for point in (1, 2, 3, 4)]
    assert ours.curve[-1] == (313, ours.fid)
    for count, fid in ours.curve:
        x = fake[:count].astype(np.float64)
        assert fid == pytest.approx(frechet_distance(REAL.mu, REAL.sigma, x.mean(0), np.cov(x.T)), rel=1e-5)


def test_many_at_once_are_those_of_each() -> None:
    """The draws above stand for `error_bars`."""
    fakes = np.array([drawn(ONE, 400, seed) for seed in range(3)])
    each = [bars(REAL, fake).parts for fake in fakes]
    np.testing.assert_allclose(distances_of_parts(REAL, fakes.astype(np.float64)), each, rtol=1e-4)


@pytest.mark.parametrize("amount", [0.0, 0.3])
def test_the_estimate_as_textbooks_have_it(amount: float) -> None:
    """Polynomials through the points, pseudo-values, and the upper end by trial."""
    real, one, _ = generators(7, 1.0, amount)
    parts = slowly(real, drawn(one, 400, 2))
    halves = parts[21:33].reshape(6, 2).mean(1)
    points = [(1, parts[0]), (20 / 19, parts[1:21].mean()), (2, halves.mean()), (4, parts[33:].mean())]
    second, third = (np.polyfit(*np.transpose(points[: n + 1]), n)[-1] for n in (2, 3))
    jackknife = (20 * parts[0] - 19 * parts[1:21]).var(ddof=1) / 20
    linear = jackknife - 720 / 361 * halves.var(ddof=1)
    weight = np.mean([np.polyfit([1, 20 / 19, 2, 4][: n + 1], np.eye(n + 1)[2], n)[-1] for n in (2, 3)])
    variance = max(linear + 20 / 19 * halves.var(ddof=1), jackknife / 2)
    variance += weight**2 * halves.var(ddof=1) * (1 / 6 - 1 / 19) + (third - second) ** 2 / 12
    ours = interval(parts)
    assert ours.value == pytest.approx((second + third) / 2, rel=1e-6)
    assert ours.error == pytest.approx(variance**0.5, rel=1e-6)
    t = stats.t.ppf(0.975, 19)
    assert ours.low == pytest.approx(ours.value - t * ours.error, rel=1e-9)
    slope = max(linear, 0) / (max(ours.value, 0) + ours.error)
    there = np.sqrt(variance + slope * (ours.high - ours.value))
    assert ours.high == pytest.approx(ours.value + t * there, rel=1e-6)
    assert ours.high - ours.value > 1.02 * (ours.value - ours.low) or linear <= 0


def test_pairs_of_blocks_show_in_the_halves_as_the_estimate_says() -> None:
    """A statistic that goes by pairs alone, sum of k(g, h) / 20²: its three variances, over 4000 draws."""
    which = members().astype(np.float64)
    rng = np.random.RandomState(4)
    found = []
    for _ in range(4000):
        kernel = np.triu(rng.randn(20, 20), 1)
        values = np.einsum("pg,gh,ph->p", which, kernel + kernel.T, which) / which.sum(1) ** 2
        jackknife = 19 / 20 * ((values[1:21] - values[1:21].mean()) ** 2).sum()
        pairs = values[21:33].reshape(6, 2).mean(1).var(ddof=1)
        found.append((jackknife, (20 / 19 * values[0]) ** 2, pairs))
    jackknife, true, pairs = np.mean(found, axis=0)
    # The mean of 4000 chi-squares of one degree of freedom has a relative standard error of 0.022.
    assert true == pytest.approx(2 / (20 * 19), rel=0.07)
    assert pairs == pytest.approx(2 / 20**2, rel=0.03)
    assert jackknife == pytest.approx(4 * 18 / (20 * 19**2), rel=0.03)


def test_the_halves_are_balanced() -> None:
    ways = halvings()
    assert (ways.sum(1) == 10).all()
    together = (ways[:, :, None] == ways[:, None, :]).sum(0)
    assert (together[~np.eye(20, dtype=bool)] == 9).all()
    assert all((ways[i] & ways[j]).sum() == 5 for i in range(19) for j in range(i))


def test_a_difference_is_from_the_same_blocks() -> None:
    first, second = drawn(ONE, 400, 3), drawn(OTHER, 400, 3)
    one, other = bars(REAL, first), bars(REAL, second)
    found = difference(one, other)
    assert found == interval_between(one.parts, other.parts)
    assert found.value == pytest.approx(one.corrected.value - other.corrected.value, rel=1e-9)
    assert found.error < 0.5 * one.corrected.error
    swapped = difference(other, one)
    assert (swapped.value, swapped.low, swapped.high) == (-found.value, -found.high, -found.low)
    assert difference(one, one) == Interval(0.0, 0.0, 0.0, 0.0)


def test_reals_of_low_rank() -> None:
    """Fewer real images than dimensions: the distance is to what they span."""
    rows = np.random.RandomState(5).randn(5, 7)
    real = Target(rows.mean(0), np.cov(rows.T), 5)
    found = bars(real, drawn(ONE, 400, 6))
    true = frechet_distance(real.mu, real.sigma, ONE.mu, ONE.sigma, count1=5)
    assert abs(found.corrected.value - true) < 4 * found.corrected.error


@pytest.mark.parametrize(("dims", "count", "fewest"), [(7, 199, 200), (41, 204, 205)])
def test_too_few_images_are_refused(dims: int, count: int, fewest: int) -> None:
    real, one, _ = generators(dims, 0.0, 0.1)
    with pytest.raises(InputError, match=f"{dims} dimensions need at least {fewest} .* there are {count}: generate"):
        bars(real, drawn(one, count, 0))
    assert np.isfinite(bars(real, drawn(one, fewest, 0)).corrected.high)
    assert [images for images, _ in fid_curve(real, drawn(one, count, 0), alone(), feature_step=18)][-1] == count


def test_other_dimensions_are_refused() -> None:
    for measure in (error_bars, fid_curve):
        with pytest.raises(InputError, match="7 dimensions"):
            measure(REAL, drawn(ONE, 400, 0)[:, 1:], alone(), feature_step=18)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 9, 400])
def test_the_curve_of_any_number_of_images(count: int) -> None:
    """Below the number of dimensions too, where covariances are singular."""
    fake = drawn(ONE, count, 7)
    curve = fid_curve(REAL, fake, alone(), feature_step=18)
    assert [images for images, _ in curve] == sorted({count * point // 4 for point in (1, 2, 3, 4)} - {0})
    for images, fid in curve:
        x = fake[:images].astype(np.float64)
        sigma = np.cov(x.T) if images > 1 else np.zeros((7, 7))
        true = frechet_distance(REAL.mu, REAL.sigma, x.mean(0), sigma, count2=images)
        assert fid == pytest.approx(true, rel=1e-4)
    if count == 400:
        np.testing.assert_allclose(curve, bars(REAL, fake).curve, rtol=1e-12)


def test_features_on_a_disk_that_cannot_be_written(tmp_path: Path) -> None:
    np.save(tmp_path / "kept.npy", drawn(ONE, 400, 8))
    kept = np.load(tmp_path / "kept.npy", mmap_mode="r")
    assert bars(REAL, kept).corrected == bars(REAL, drawn(ONE, 400, 8)).corrected


PROGRAM = """
import pickle, sys
import numpy as np
import torch
from fidtool.distributed.launch import discover
from fidtool.distributed.world import open_world
from fidtool.metrics.influence import Target
from fidtool.metrics.uncertainty import error_bars
fake = np.load("fake.npy")
real = Target(np.zeros(fake.shape[1]), np.eye(fake.shape[1]), None)
with open_world(discover()) as world:
    found = error_bars(real, fake, world, feature_step=18)
    everywhere = world.gather(repr((found.corrected, found.parts.tobytes(), found.curve)))
    if world.rank == 0:
        print(world.size, sorted(set(everywhere)))
"""


def test_the_same_bits_on_any_number_of_ranks(
    rank_server: RankServer, environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    np.save(tmp_path / "fake.npy", np.random.RandomState(9).randn(333, 12).astype(np.float32))
    outputs = []
    for size in (1, 2, 3):
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(size)}
        ranks = [
            rank_server.launch("script", ["program.py"], {**environment, **meeting, "RANK": str(rank)}, tmp_path)
            for rank in range(size)
        ]
        assert rank_server.wait(ranks, 60) == [0] * size, [rank.stderr for rank in ranks]
        said, found = ranks[0].stdout.split(" ", 1)
        assert int(said) == size
        outputs.append(found)
    assert len(set(outputs)) == 1
    assert outputs[0].count("Interval") == 1, "every rank has the same"
