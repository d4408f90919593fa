"""Precision, recall, density and coverage: closed forms, and brute force with tied distances."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fidtool.distances import neighbors
from fidtool.distances.exact import FeatureSettings
from support.exact_sets import lattice
from support.feature_sets import Features, normal

TIES = ["strict", "inclusive"]


def zero_radii(real: Features, fake: Features, k: int) -> tuple[int, int]:
    return neighbors.prdc(real, fake, FeatureSettings(18), k=k)[1]


def measured(real: Features, fake: Features, k: int = 5, ties: Any = "strict") -> tuple[float, ...]:
    """Precision, recall, density and coverage."""
    metrics, _ = neighbors.prdc(real, fake, FeatureSettings(18), k=k, ties=ties)
    return tuple(metrics[name] for name in ("precision", "recall", "density", "coverage"))


def brute_force(real: Features, fake: Features, k: int, ties: str) -> tuple[float, ...]:
    """Computes the definitions pair by pair, in integers."""
    x, y = (
        [[int(value * 2**18) for value in row] for row in rows.tolist()] for rows in (real, fake)
    )

    def distance(a: list[int], b: list[int]) -> int:
        return sum((one - other) ** 2 for one, other in zip(a, b, strict=True))

    def radii(rows: list[list[int]]) -> list[int]:
        return [
            sorted(distance(a, b) for j, b in enumerate(rows) if j != i)[k - 1]
            for i, a in enumerate(rows)
        ]

    def inside(a: list[int], b: list[int], radius: int) -> bool:
        return distance(a, b) < radius if ties == "strict" else distance(a, b) <= radius

    in_real = [[inside(a, b, r) for a, r in zip(x, radii(x), strict=True)] for b in y]
    in_fake = [[inside(a, b, r) for b, r in zip(y, radii(y), strict=True)] for a in x]
    precision, recall = sum(map(any, in_real)) / len(y), sum(map(any, in_fake)) / len(x)
    density, coverage = (
        sum(map(sum, in_real)) / (k * len(y)),
        sum(map(any, zip(*in_real, strict=True))) / len(x),
    )
    return precision, recall, density, coverage


@settings(max_examples=60, deadline=None)
@given(
    st.integers(4, 25),
    st.integers(4, 25),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(0, 2**31),
    st.data(),
)
def test_brute_force_where_many_distances_tie(
    n: int, m: int, dims: int, k: int, seed: int, data: st.DataObject
) -> None:
    real, fake = lattice(n, dims, seed), lattice(m, dims, seed + 1)
    ties = data.draw(st.sampled_from(TIES))
    assert measured(real, fake, k, ties) == brute_force(real, fake, k, ties)


@pytest.mark.parametrize("ties", TIES)
def test_blocks_and_threads_do_not_matter(ties: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Including blocks with fewer rows than neighbours to find."""
    real, fake = lattice(60, 3, 5), lattice(53, 3, 6)
    expected = brute_force(real, fake, 4, ties)
    for size, threads in ((3, 1), (7, 2), (1000, 1)):
        monkeypatch.setattr(neighbors, "MIN_BLOCK", size)
        monkeypatch.setattr(neighbors, "MAX_BLOCK", size)
        monkeypatch.setattr(neighbors, "fair_threads", lambda world, threads=threads: threads)
        assert measured(real, fake, 4, ties) == expected


@pytest.mark.parametrize("k", [1, 5])
def test_identical_sets(k: int) -> None:
    x = normal(200, 10, 7)
    assert measured(x, x, k, "strict") == (1, 1, 1, 1)
    assert measured(x, x, k, "inclusive") == (1, 1, (k + 1) / k, 1)


def test_duplicates_are_neighbours_at_distance_zero() -> None:
    """Each real occurs three times: with k = 2 its ball has radius 0, and contains its duplicates
    only if inclusive.
    """
    x = normal(20, 3, 8).repeat(3, axis=0)
    assert measured(x, x, 2, "strict") == (0, 0, 0, 0)
    assert measured(x, x, 2, "inclusive") == (1, 1, 1.5, 1)
    assert zero_radii(x, x[::3], 2) == (60, 0)
    assert zero_radii(x[3:].repeat(2, axis=0), x[2:], 3) == (114, 0)


def cosine_distance(real: Features, fake: Features) -> float:
    """Computes the mean distance of the reals to the nearest fake in float64, without features that
    add up to 0.
    """
    x, y = (rows[rows.sum(1) != 0].astype(np.float64) for rows in (real, fake))
    x, y = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (x, y))
    return float((1 - np.abs(x @ y.T).max(1, initial=0)).mean()) if len(x) else 1.0


def test_cosine_distances(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of vectors on a lattice, many of which are 0 or parallel, in blocks of any size."""
    for size in (3, 1000):
        monkeypatch.setattr(neighbors, "MIN_BLOCK", size)
        monkeypatch.setattr(neighbors, "MAX_BLOCK", size)
        for seed in range(8):
            real, fake = lattice(40, 3, seed), lattice(9, 3, seed + 50)
            distance = neighbors.nearest_cosine_distance(real, fake, FeatureSettings(18))
            assert distance == pytest.approx(cosine_distance(real, fake), abs=1e-15)
    none = np.zeros((4, 3), np.float32)
    for sets in ((none, real), (real, none)):
        assert neighbors.nearest_cosine_distance(*sets, FeatureSettings(18)) == 1.0
    copies = normal(50, 7, 3)
    assert neighbors.nearest_cosine_distance(copies, copies * -2, FeatureSettings(18)) < 1e-13


def distances_to_nearest(real: Features, some: Features) -> Any:
    return neighbors.nearest_reals(real, some, FeatureSettings(18))[1]


def test_distances_to_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    """As NumPy gives them, in blocks of any size with the same bits; 0 for copies only."""
    real, some = normal(150, 7, 1), np.concatenate([normal(60, 7, 2), normal(150, 7, 1)[:9]])
    expected = np.sqrt(((some[:, None].astype(float) - real) ** 2).sum(2).min(1))
    results = []
    for size in (7, 64, 1000):
        monkeypatch.setattr(neighbors, "MIN_BLOCK", size)
        monkeypatch.setattr(neighbors, "MAX_BLOCK", size)
        results.append(distances_to_nearest(real, some))
    assert results[0].dtype == np.float64
    assert results[0] == pytest.approx(expected, abs=1e-4)
    assert np.array_equal(np.flatnonzero(results[0] == 0), np.arange(60, 69))
    assert all(np.array_equal(other, results[0]) for other in results)
    grid, points = lattice(40, 3, 1), lattice(9, 3, 2)
    exact = np.sqrt(((points[:, None].astype(float) - grid) ** 2).sum(2).min(1))
    assert np.array_equal(distances_to_nearest(grid, points), exact)
    long = np.float32(2**14) * real  # a coarser step is used
    assert distances_to_nearest(long, long + 1) == pytest.approx(7**0.5, rel=0.02)


def authentic(real: Features, fake: Features) -> float:
    """Computes the percentage with NumPy, from all distances; integers, so that they are exact."""
    x, y = ((rows * 2**18).astype(np.int64) for rows in (real, fake))
    within, between = (((x[:, None] - rows) ** 2).sum(2) for rows in (x, y))
    within[np.arange(len(x)), np.arange(len(x))] = np.iinfo(np.int64).max
    return (
        100
        * sum(between[:, i].min() > within[between[:, i].argmin()].min() for i in range(len(y)))
        / len(y)
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 25), st.integers(1, 25), st.integers(1, 3), st.integers(0, 2**31))
def test_authentic_fakes_where_many_distances_tie(n: int, m: int, dims: int, seed: int) -> None:
    real, fake = lattice(n, dims, seed), lattice(m, dims, seed + 1)
    assert neighbors.authpct(real, fake, FeatureSettings(18)) == authentic(real, fake)


def test_authentic_fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in many blocks; copies are not authentic, nor are fakes near a real that is far from
    others.
    """
    real = np.rint(normal(90, 5, 1) * 1024).astype(np.float32) / 1024
    near, far = real[:20] + np.float32(2**-10), real[:30] + np.float32(64)
    fake = np.concatenate(
        [near, far, real[:10], np.rint(normal(60, 5, 2) * 1024).astype(np.float32) / 1024]
    )
    for size in (7, 1000):
        monkeypatch.setattr(neighbors, "MIN_BLOCK", size)
        monkeypatch.setattr(neighbors, "MAX_BLOCK", size)
        for some, value in ((near, 0), (far, 100), (real, 0), (fake, authentic(real, fake))):
            assert neighbors.authpct(real, some, FeatureSettings(18)) == value
    assert 25 < value < 75
