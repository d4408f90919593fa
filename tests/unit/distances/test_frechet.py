"""Fréchet distance: closed forms, symmetry, the reference's square root, and covariances of few
samples.
"""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fidtool import frechet_distance
from fidtool.distances.frechet import factorize

# Tolerances: at full rank, the error is about 1e-16 times the condition number of the covariances
# (1e3 here), so that 1e-9 is generous, and far below the 1e-5 that is promised. A zero eigenvalue
# has a rounding error of 1e-16 times the largest; its square root, with an error of 1e-8, enters
# the distance once per such dimension: hence 1e-6 for singular covariances.
Array = NDArray[np.float64]

dimensions = st.integers(1, 12)

seeds = st.integers(0, 2**32 - 2)


def samples(count: int, dims: int, seed: int, decay: float = 3.0, shift: float = 0.0) -> Array:
    """Samples whose covariance has a spectrum falling over ``decay`` decades."""
    rng = np.random.RandomState(seed)
    rotation, _ = np.linalg.qr(rng.randn(dims, dims))
    result: Array = rng.randn(count, dims) * np.logspace(0, -decay / 2, dims) @ rotation + shift
    return result


def fitted(x: Array) -> tuple[Array, Array]:
    """Mean and covariance of samples."""
    return x.mean(0), np.atleast_2d(np.cov(x, rowvar=False))


def by_sqrtm(mu1: Array, sigma1: Array, mu2: Array, sigma2: Array) -> float:
    """The reference's formula."""
    root = scipy.linalg.sqrtm(sigma1 @ sigma2)
    return float(
        ((mu1 - mu2) ** 2).sum() + np.trace(sigma1) + np.trace(sigma2) - 2 * np.trace(root).real
    )


def by_features(x: Array, y: Array) -> float:
    """From the singular values of the centred features, without forming a covariance."""
    a, b = x - x.mean(0), y - y.mean(0)
    norm = scipy.linalg.svdvals(a @ b.T).sum() / ((len(x) - 1) * (len(y) - 1)) ** 0.5
    spread = (a**2).sum() / (len(x) - 1) + (b**2).sum() / (len(y) - 1)
    return float(((x.mean(0) - y.mean(0)) ** 2).sum() + spread - 2 * norm)


@pytest.mark.parametrize("dims", [2, 64, 129])
@pytest.mark.parametrize("known", [True, False])
def test_equal_to_sqrtm_at_full_rank(dims: int, known: bool) -> None:
    x, y = samples(5 * dims, dims, 1), samples(4 * dims, dims, 2, shift=0.1)
    counts = {"count1": len(x), "count2": len(y)} if known else {}
    ours = frechet_distance(*fitted(x), *fitted(y), **counts)
    assert ours == pytest.approx(by_sqrtm(*fitted(x), *fitted(y)), rel=1e-9)
    assert ours == pytest.approx(by_features(x, y), rel=1e-9)


@pytest.mark.parametrize(("n", "m"), [(40, 40), (40, 2000), (2, 30), (201, 150)])
@pytest.mark.parametrize("known", [True, False])
def test_singular_covariances_equal_the_svd_of_the_features(n: int, m: int, known: bool) -> None:
    x, y = samples(n, 200, 3), samples(m, 200, 4, shift=0.05)
    counts = {"count1": n, "count2": m} if known else {}
    assert frechet_distance(*fitted(x), *fitted(y), **counts) == pytest.approx(
        by_features(x, y), rel=1e-6
    )


@settings(max_examples=60, deadline=None)
@given(dimensions, seeds, st.floats(0.01, 100))
def test_symmetric_and_scales_with_the_square(dims: int, seed: int, factor: float) -> None:
    x, y = samples(dims + 5, dims, seed), samples(2 * dims + 2, dims, seed + 1, shift=0.3)
    forth = frechet_distance(*fitted(x), *fitted(y))
    assert frechet_distance(*fitted(y), *fitted(x)) == pytest.approx(forth, rel=1e-9, abs=1e-12)
    scaled = frechet_distance(*fitted(x * factor), *fitted(y * factor))
    assert scaled == pytest.approx(forth * factor**2, rel=1e-9, abs=1e-12 * factor**2)


@settings(max_examples=60, deadline=None)
@given(dimensions, seeds)
def test_commuting_covariances_have_a_closed_form(dims: int, seed: int) -> None:
    """d² = |mu1 - mu2|² + sum (sqrt(a) - sqrt(b))² for covariances with common eigenvectors; some
    of them zero.
    """
    rng = np.random.RandomState(seed)
    basis, _ = np.linalg.qr(rng.randn(dims, dims))
    a, b = rng.rand(dims) * (rng.rand(dims) > 0.2), rng.rand(dims) * (rng.rand(dims) > 0.2)
    mu1, mu2 = rng.randn(dims), rng.randn(dims)
    expected = ((mu1 - mu2) ** 2).sum() + ((np.sqrt(a) - np.sqrt(b)) ** 2).sum()
    sigma1, sigma2 = (basis * a) @ basis.T, (basis * b) @ basis.T
    assert frechet_distance(mu1, sigma1, mu2, sigma2) == pytest.approx(
        expected, rel=1e-6, abs=1e-12
    )
    diagonal = frechet_distance(mu1, np.diag(a), mu2, np.diag(b))
    assert diagonal == pytest.approx(expected, rel=1e-12, abs=1e-14)


def test_falls_back_where_divide_and_conquer_does_not_converge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, y = fitted(samples(30, 10, 1)), fitted(samples(30, 10, 2))
    expected = frechet_distance(*x, *y)

    def fails(matrix: torch.Tensor) -> torch.Tensor:
        raise torch.linalg.LinAlgError("did not converge")  # type: ignore[attr-defined]

    monkeypatch.setattr(torch.linalg, "svdvals", fails)
    assert frechet_distance(*x, *y) == pytest.approx(expected, rel=1e-12)


def test_eigenvalues_are_not_used_if_squaring_lost_their_digits() -> None:
    """An ill-conditioned pair that is nearly equal: the distance is far below what the eigenvalues
    can resolve.
    """
    rng = np.random.RandomState(0)
    rotation, _ = np.linalg.qr(rng.randn(60, 60))
    values = np.logspace(0, -11, 60)
    sigma1 = (rotation * values) @ rotation.T
    sigma2 = (rotation * (values * (1 + 1e-4 * rng.rand(60)))) @ rotation.T
    sigma1, sigma2 = (sigma1 + sigma1.T) / 2, (sigma2 + sigma2.T) / 2
    factors = [factorize(torch.from_numpy(sigma), None, "any") for sigma in (sigma1, sigma2)]
    assert all(torch.equal(triangle, triangle.tril()) for triangle in factors), (
        "both are of full rank"
    )
    exact = float(torch.linalg.svdvals(factors[0].T @ factors[1]).sum())
    rest = sum(torch.from_numpy(sigma).trace().item() for sigma in (sigma1, sigma2))
    mu = np.zeros(60)
    assert frechet_distance(mu, sigma1, mu, sigma2) == rest - 2 * exact
