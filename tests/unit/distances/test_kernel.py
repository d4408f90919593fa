"""KID and CMMD: reference formulas, unbiasedness and accuracy."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fidtool.distances.exact import FeatureSettings
from fidtool.distances.kernel import cmmd, kid
from support.feature_sets import Features, normal


def measured(real: Features, fake: Features, **options: Any) -> float:
    return kid(real, fake, FeatureSettings(18), **options)[0]


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 8), st.integers(1, 4), st.integers(0, 2**31))
def test_rational_arithmetic(count: int, dims: int, seed: int) -> None:
    """The value equals the definition, computed with fractions."""
    rng = np.random.RandomState(seed)
    x, y = (rng.randint(-8, 8, (count, dims)).astype(np.float32) / 4 for _ in range(2))
    x[0] = 1.0

    def k(a: Features, b: Features) -> Fraction:
        return (
            sum(Fraction(float(p)) * Fraction(float(q)) for p, q in zip(a, b, strict=True)) / dims
            + 1
        ) ** 3

    within = sum(
        k(s[i], s[j]) for s in (x, y) for i in range(count) for j in range(count) if i != j
    )
    between = sum((k(a, b) for a in x for b in y), Fraction(0))
    exact = float(within / (count * (count - 1)) - 2 * between / count**2)
    every = np.arange(count)
    ours = measured(x, y, draws=[(every, every)])
    largest = float(max(k(a, a) for s in (x, y) for a in s))
    assert ours == pytest.approx(exact, rel=1e-12, abs=1e-14 * largest)


def pooled_error(values: list[float]) -> tuple[float, float]:
    return float(np.mean(values)), float(np.std(values, ddof=1)) / math.sqrt(len(values))


def test_unbiased() -> None:
    """For equal distributions the mean is 0. The estimate with diagonals is biased and fails the
    same bound.
    """
    unbiased, biased = [], []
    for seed in range(60):
        x, y = normal(40, 8, 2 * seed), normal(40, 8, 2 * seed + 1)
        value = measured(x, y, draws=[(np.arange(40), np.arange(40))])
        diagonals = sum(
            float((((s.astype(np.float64) ** 2).sum(1) / 8 + 1) ** 3).sum()) for s in (x, y)
        )
        within = value + 2 * float(((x.astype(np.float64) @ y.T / 8 + 1) ** 3).mean())
        unbiased.append(value)
        biased.append(value + (within * 40 * 39 + diagonals) / 40**2 - within)
    # A mean of 60 values is within 4 standard errors except for one in 15000 seeds.
    mean, error = pooled_error(unbiased)
    assert abs(mean) < 4 * error
    mean, error = pooled_error(biased)
    assert abs(mean) > 4 * error


def unit(x: Features) -> Features:
    result: Features = x / np.linalg.norm(x, axis=1, keepdims=True)
    return result.astype(np.float32)


def plain_cmmd(x: Features, y: Features) -> float:
    """The authors' formula in float64: exponentials of squared distances, means over all pairs."""
    a, b = x.astype(np.float64), y.astype(np.float64)

    def mean_kernel(p: Any, q: Any) -> float:
        distances = (p**2).sum(1)[:, None] + (q**2).sum(1)[None] - 2 * p @ q.T
        return float(np.exp(-distances / 200).mean())

    return 1000 * (mean_kernel(a, a) + mean_kernel(b, b) - 2 * mean_kernel(a, b))


@pytest.mark.parametrize("sizes", [(300, 200), (1, 7), (1100, 1030)])
def test_cmmd_equals_the_authors_formula(sizes: tuple[int, int]) -> None:
    x, y = unit(normal(sizes[0], 32, 1, shift=0.3)), unit(normal(sizes[1], 32, 2))
    # Rounding to 2 ** -24 changes squared distances by about 1e-7; the plain formula loses four
    # digits, as k is near 1.
    assert cmmd(x, y, FeatureSettings(24)) == pytest.approx(plain_cmmd(x, y), rel=1e-6, abs=1e-9)


def test_cmmd_is_accurate_for_nearly_equal_sets() -> None:
    """If one vector moves by e, the value is about 1000 e² / (n² sigma²), which the rounding of exp
    would hide.
    """
    x = (np.eye(4)[np.arange(40) % 4]).astype(np.float32)
    y = x.copy()
    y[7, 0] += 2.0**-14
    # Only pairs with vector 7 differ; its pair with itself gives the leading term, 2 (1 - k) / n².
    e = float(y[7, 0] - x[7, 0])
    expected = 1000 * -2 * math.expm1(-(e**2) / 200) / 40**2
    ours = cmmd(x, y, FeatureSettings(24))
    # The terms of other pairs cancel up to 2e-5 (measured).
    assert ours == pytest.approx(expected, rel=1e-4)
    assert cmmd(x, x, FeatureSettings(24)) < 1e-6 * expected
