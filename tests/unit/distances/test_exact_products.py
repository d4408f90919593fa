"""Exact products: equal to integer arithmetic for any number of threads, and the choice of the
step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fidtool.distances import exact
from fidtool.distances.exact import (
    FeatureBlock,
    FeatureSettings,
    quantize_features,
    squared_distances,
)
from fidtool.distances.kernel import cmmd, kid
from fidtool.distances.neighbors import prdc
from fidtool.distances.parallel import set_threads
from support.feature_sets import Features, normal


def blocks(x: Features, y: Features, step: int = 18) -> tuple[FeatureBlock, FeatureBlock]:
    """Returns all rows of two sets as blocks."""
    first, second = quantize_features([x, y], FeatureSettings(step))
    return first.block(slice(None)), second.block(slice(None))


def integers(x: Features, step: int) -> list[list[int]]:
    return [[int(value) for value in row] for row in np.rint(x.astype(np.float64) * 2.0**step)]


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(1, 40),
    st.integers(0, 2**31),
    st.sampled_from([0.1, 1, 4]),
)
def test_products_and_distances_equal_those_of_the_integers(
    n: int, m: int, dims: int, seed: int, scale: float
) -> None:
    x, y = normal(n, dims, seed, spread=scale), normal(m, dims, seed + 1, shift=6)
    first, second = blocks(x, y)
    p, q = integers(x, 18), integers(y, 18)
    products = [[sum(a * b for a, b in zip(one, other, strict=True)) for other in q] for one in p]
    distances = [
        [sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) for other in q] for one in p
    ]
    assert [
        list(map(int, row)) for row in (first.integers @ second.integers.T).tolist()
    ] == products
    assert [list(map(int, row)) for row in squared_distances(first, second).tolist()] == distances


@pytest.mark.parametrize("scale", [1.0, 3e3, 2e6, 1e30])
def test_long_vectors_take_the_finest_step_that_is_exact(scale: float) -> None:
    x, y = normal(6, 30, 1, spread=scale), normal(7, 30, 2)
    one, other = quantize_features([x, y], FeatureSettings(18))
    assert one.step == other.step
    longest = max(
        sum(value**2 for value in row) for row in integers(x, one.step) + integers(y, one.step)
    )
    assert longest < 2**51
    if one.step < 18:
        finer = max(
            sum(value**2 for value in row)
            for row in integers(x, one.step + 1) + integers(y, one.step + 1)
        )
        assert finer >= 2**51
    distances = squared_distances(one.block(slice(None)), other.block(slice(None))).tolist()
    p, q = integers(x, one.step), integers(y, one.step)
    expected = [
        [sum((a - b) ** 2 for a, b in zip(a_row, b_row, strict=True)) for b_row in q] for a_row in p
    ]
    assert [list(map(int, row)) for row in distances] == expected


def test_vectors_of_maximum_length_are_exact_with_any_threads() -> None:
    """This test can fail: floating-point products of such vectors depend on the order of the
    sum.
    """
    rng = np.random.RandomState(0)
    x = rng.uniform(-1, 1, (300, 2048)).astype(np.float32)
    x *= np.float32(2.0**7 * 0.99) / np.sqrt(
        (x.astype(np.float64) ** 2).sum(1, keepdims=True).astype(np.float32)
    )
    first, _ = blocks(x, x)
    assert 2**49 < first.squares.max().item() < 2**51
    reordered = torch.randperm(2048, generator=torch.Generator().manual_seed(0))
    for threads in (1, 2):
        with set_threads(threads):
            products = first.integers @ first.integers.T
            assert torch.equal(products.diagonal(), first.squares)
            turned = first.integers[:, reordered]
            assert torch.equal(turned @ turned.T, products)
    plain = torch.from_numpy(x).double() / 3
    assert not torch.equal(plain @ plain.T, plain[:, reordered] @ plain[:, reordered].T)


def test_distances_have_the_same_bits_if_the_integers_stay_on_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, y = normal(1500, 12, 1), normal(1300, 12, 2, shift=0.2)

    def measured() -> tuple[Any, ...]:
        return (
            prdc(x, y, FeatureSettings(18)),
            kid(x, y, FeatureSettings(18), subset_size=700, subsets=3),
            cmmd(x, y, FeatureSettings(18)),
        )

    read_again = measured()
    # As on a GPU with enough memory.
    monkeypatch.setattr(exact, "resident_bytes", lambda device: 1 << 40)
    assert measured() == read_again
