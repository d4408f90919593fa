"""Exact sums: equal to NumPy's moments, with the same bits for any order and batching of the
features.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any, ClassVar, TypeVar

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fidtool.distributed.launch import Launch
from fidtool.distributed.world import World
from fidtool.errors import RunError
from fidtool.statistics.moments import ExactMoments
from fidtool.statistics.set_statistics import Gaussian
from support.processes import PATIENCE

T = TypeVar("T")


def features(
    count: int, dims: int, seed: int = 0, scale: float = 1.0, offset: float = 0.0
) -> torch.Tensor:
    """Correlated features, float32."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(dims, dims, generator=generator)
    return torch.randn(count, dims, generator=generator) @ mixing * (scale / dims**0.5) + offset


def summed(batches: list[torch.Tensor], step: int = 18) -> ExactMoments:
    """Returns the moments of the batches, added in this order."""
    moments = ExactMoments(batches[0].shape[1], step)
    for batch in batches:
        moments.add(batch)
    return moments


def same_bits(first: Gaussian, second: Gaussian) -> bool:
    """Returns whether two results are equal to the last bit."""
    return (
        first.count == second.count
        and first.mu.tobytes() == second.mu.tobytes()
        and first.sigma.tobytes() == second.sigma.tobytes()
    )


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_same_bits_for_any_permutation_and_batching(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 400))
    x = features(count, 9, seed=count)
    order = (
        data.draw(st.permutations(range(count))) if count < 60 else torch.randperm(count).tolist()
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, count), max_size=12)))
    batches = [x[order[a:b]] for a, b in zip([0, *cuts], [*cuts, count], strict=True)]
    assert same_bits(summed([x]).mean_covariance(1), summed(batches).mean_covariance(1))


@settings(max_examples=25, deadline=None)
@given(
    st.integers(2, 40), st.integers(1, 4), st.floats(-30, 30), st.sampled_from([1e-3, 1e-1, 1.0])
)
def test_every_entry_is_the_exact_value(count: int, dims: int, offset: float, scale: float) -> None:
    """Compared with rational arithmetic, even if a large mean would cancel all digits of a small
    spread.
    """
    x = features(count, dims, seed=count, scale=scale, offset=offset).clamp(-31, 31)
    assume(x.abs().quantile(0.4) > 2**-4)  # smaller ones are refused
    result = summed([x]).mean_covariance(1)
    q = (x.double() * 2**18).round().long().tolist()
    for i in range(dims):
        for j in range(dims):
            total = sum(row[i] * row[j] for row in q) - Fraction(
                sum(r[i] for r in q) * sum(r[j] for r in q), count
            )
            exact = float(total / (count - 1) / 2**36)
            variances = (result.sigma[i, i] * result.sigma[j, j]) ** 0.5
            assert abs(result.sigma[i, j] - exact) <= 4e-16 * max(variances, 2.0**-36)


def test_sums_beyond_float64_are_moved_to_the_integers() -> None:
    """Large rows after small ones give odd sums beyond 2 ** 53, which float64 would round."""
    small, large = (
        torch.full((300, 2), 2.0**-18),
        torch.full((501, 2), 32 - 2.0**-18, dtype=torch.float64),
    )
    moments = summed([small, large, small])
    expected = 600 + 501 * (2**23 - 1) ** 2
    assert expected > 2**54
    assert expected % 2, "float64 has no such number"
    assert moments.totals()["low"].tolist() == [expected] * 3


def test_sums_may_be_moved_to_the_integers_at_any_time() -> None:
    x = features(1500, 6, offset=3.0)
    moved = ExactMoments(6, 18)
    for rows in x.split(100):
        moved.add(rows)
        moved.flush()
    assert same_bits(summed([x]).mean_covariance(1), moved.mean_covariance(1))


def test_sums_beyond_64_bits_are_exact() -> None:
    """2 ** 27 times the same batch, with entries of about 2 ** 80. The totals are doubled instead
    of added again.
    """
    x = (features(8, 3, offset=20.0) * 64).round() / 64
    moments = summed([x])
    for _ in range(27):
        moments.absorb(moments.totals())
    assert "high" in moments.totals()
    assert moments.count == 8 * 2**27
    repeated = moments.mean_covariance(0)
    once = summed([x]).mean_covariance(0)
    np.testing.assert_allclose(repeated.mu, once.mu, rtol=1e-15)
    # Only float64 rounding differs: n and the sums are different numbers with the same quotients.
    np.testing.assert_allclose(repeated.sigma, once.sigma, rtol=1e-12, atol=1e-14)


class Ranks(World):
    """One of two ranks, which are threads of this process."""

    met = threading.Barrier(2, timeout=PATIENCE)
    given: ClassVar[list[Any]] = [None, None]

    def __init__(self, rank: int) -> None:
        super().__init__(Launch(rank, 2, rank, 2))

    def gather(self, value: T) -> list[T]:
        self.given[self.rank] = value
        self.met.wait()
        gathered = list(self.given)
        self.met.wait()
        return gathered

    def all_reduce_sum(self, tensor: torch.Tensor) -> torch.Tensor:
        first, second = self.gather(tensor.clone())
        return tensor.copy_(first + second)


def test_a_merge_beyond_64_bits_does_not_wrap() -> None:
    """The entries of both ranks are just below 2 ** 62, so that 64 bits cannot safely hold their
    sum.
    """
    x = (features(8, 3, offset=20.0) * 64).round() / 64
    of_ranks = [summed([x]), summed([x])]
    for moments in of_ranks:
        while moments.totals()["low"].max() < 2**61:
            moments.absorb(moments.totals())
        assert "high" not in moments.totals()
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(ExactMoments.merge, of_ranks, map(Ranks, range(2))))
    for moments in of_ranks:
        assert "high" in moments.totals()
        np.testing.assert_allclose(
            moments.mean_covariance(0).sigma, summed([x]).mean_covariance(0).sigma, rtol=1e-12
        )


@pytest.mark.parametrize(("scale", "step"), [(1e-7, 18), (1.0, -3)])
def test_a_step_too_coarse_for_the_features_is_refused(scale: float, step: int) -> None:
    x = features(50, 4, scale=scale)
    with pytest.raises(RunError, match="feature_step") as refused:
        summed([x], step).check_precision()
    with pytest.raises(RunError, match="feature_step"):
        summed([x], step).mean_covariance(1)
    suggested = int(str(refused.value).rpartition("feature_step=")[2])
    result = summed([x], suggested).mean_covariance(1)
    # With the suggested step, the largest feature has at least 20 bits: rounding changes a feature
    # by at most 2 ** -21 times the largest, and an entry of sigma by at most this times two
    # standard deviations.
    largest = float(x.abs().max())
    tolerance = 2 * largest * 2.0**-21 * float(x.std(0).max())
    np.testing.assert_allclose(
        result.sigma, np.cov(x.double().numpy(), rowvar=False), rtol=0, atol=tolerance
    )


def test_zeros_do_not_count_as_small() -> None:
    """Most features after a ReLU may be 0, and rounding does not change them."""
    x = features(50, 4)
    x[:, :3] = 0.0
    summed([x]).check_precision()
