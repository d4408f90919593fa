"""Exact sums: equal to NumPy's moments, with the same bits for any order and batching of the features."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fidtool.distributed.launch import Launch
from fidtool.distributed.world import World
from fidtool.errors import RunError
from fidtool.statistics import moments as moments_module
from fidtool.statistics.moments import ExactMoments, Gaussian


def features(count: int, dims: int, seed: int = 0, scale: float = 1.0, offset: float = 0.0) -> torch.Tensor:
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


def test_equal_to_numpy_up_to_the_quantisation() -> None:
    x = features(1000, 20)
    result = summed([x]).mean_covariance(ddof=1)
    reference = x.double().numpy()
    # Rounding changes a feature by up to half a step, 2 ** -19, and a product by a few times as much.
    np.testing.assert_allclose(result.mu, reference.mean(0), rtol=0, atol=2.0**-19)
    np.testing.assert_allclose(result.sigma, np.cov(reference, rowvar=False), rtol=0, atol=1e-6)


@pytest.mark.parametrize("ddof", [0, 1])
def test_equal_to_numpy_on_features_that_need_no_rounding(ddof: int) -> None:
    x = (features(500, 12) * 64).round() / 64
    result = summed([x]).mean_covariance(ddof)
    np.testing.assert_allclose(
        result.sigma, np.cov(x.double().numpy(), rowvar=False, ddof=ddof), rtol=1e-12, atol=1e-14
    )


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_same_bits_for_any_permutation_and_batching(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 400))
    x = features(count, 9, seed=count)
    order = data.draw(st.permutations(range(count))) if count < 60 else torch.randperm(count).tolist()
    cuts = sorted(data.draw(st.lists(st.integers(0, count), max_size=12)))
    batches = [x[order[a:b]] for a, b in zip([0, *cuts], [*cuts, count], strict=True)]
    assert same_bits(summed([x]).mean_covariance(1), summed(batches).mean_covariance(1))


def test_float_sums_do_not_have_the_same_bits() -> None:
    """The test above can fail: float64 sums of the same features differ between batchings."""
    x = features(400, 9, seed=400).double()
    assert not torch.equal(x.T @ x, sum(part.T @ part for part in x.split(37)))  # type: ignore[arg-type]


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 40), st.integers(1, 4), st.floats(-30, 30), st.sampled_from([1e-3, 1e-1, 1.0]))
def test_every_entry_is_the_exact_value(count: int, dims: int, offset: float, scale: float) -> None:
    """Compared with rational arithmetic, even if a large mean would cancel all digits of a small spread."""
    x = features(count, dims, seed=count, scale=scale, offset=offset).clamp(-31, 31)
    assume(x.abs().quantile(0.4) > 2**-4)  # smaller ones are refused
    result = summed([x]).mean_covariance(1)
    q = (x.double() * 2**18).round().long().tolist()
    for i in range(dims):
        for j in range(dims):
            total = sum(row[i] * row[j] for row in q) - Fraction(sum(r[i] for r in q) * sum(r[j] for r in q), count)
            exact = float(total / (count - 1) / 2**36)
            variances = (result.sigma[i, i] * result.sigma[j, j]) ** 0.5
            assert abs(result.sigma[i, j] - exact) <= 4e-16 * max(variances, 2.0**-36)


def test_one_image_has_covariance_zero() -> None:
    x = features(1, 5)
    result = summed([x]).mean_covariance(1)
    assert (result.sigma == 0).all()
    np.testing.assert_array_equal(result.mu, (x.double() * 2**18).round().numpy()[0] / 2**18)


def test_no_images_is_an_error() -> None:
    with pytest.raises(RunError, match="no images"):
        ExactMoments(3, 18).mean_covariance(1)


@pytest.mark.parametrize(
    ("value", "message"),
    [(32.0, "outside the range"), (-40.0, "outside the range"), (float("nan"), "NaN"), (float("inf"), "NaN or inf")],
)
def test_features_out_of_range_are_refused(value: float, message: str) -> None:
    x = features(5, 4)
    x[3, 2] = value
    with pytest.raises(RunError, match=message):
        summed([x]).mean_covariance(1)


def test_the_largest_features_do_not_overflow_a_block() -> None:
    """With 128 rows at the limit of the range, all sums of products in float64 are below 2 ** 53."""
    x = torch.full((129, 3), 32 - 2.0**-18, dtype=torch.float64)
    x[:, 1] *= -1
    moments = summed([x])
    moments.mean_covariance(1)
    largest = (2**23 - 1) ** 2 * 129
    assert moments._low.tolist()[0] == [largest, -largest, largest]


def test_sums_beyond_float64_are_moved_to_the_integers() -> None:
    """Large rows after small ones give odd sums beyond 2 ** 53, which float64 would round."""
    small, large = torch.full((300, 2), 2.0**-18), torch.full((501, 2), 32 - 2.0**-18, dtype=torch.float64)
    moments = summed([small, large, small])
    assert moments._recent is not None, "the last rows are held back"
    moments.flush()
    expected = 600 + 501 * (2**23 - 1) ** 2
    assert expected > 2**54
    assert expected % 2, "float64 has no such number"
    assert moments._low.tolist() == [[expected] * 2] * 2


def test_carries_into_a_second_limb_without_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    x = features(1500, 6, offset=3.0)
    plain = summed([x]).mean_covariance(1)
    monkeypatch.setattr(moments_module, "_GRAMS_PER_CARRY", 2)
    monkeypatch.setattr(moments_module, "_EXACT", 0.0)
    carried = summed([x])
    assert same_bits(plain, carried.mean_covariance(1))
    assert carried._high.abs().max() > 0


def test_sums_beyond_64_bits_are_exact() -> None:
    """2 ** 27 times the same batch, with entries of about 2 ** 80. The totals are doubled instead of added again."""
    x = (features(8, 3, offset=20.0) * 64).round() / 64
    moments = summed([x])
    moments.flush()
    for _ in range(27):
        moments._carry()
        moments._low *= 2
        moments._high *= 2
        moments._sum *= 2
        moments.count *= 2
    repeated = moments.mean_covariance(0)
    once = summed([x]).mean_covariance(0)
    np.testing.assert_allclose(repeated.mu, once.mu, rtol=1e-15)
    # Only float64 rounding differs: n and the sums are different numbers with the same quotients.
    np.testing.assert_allclose(repeated.sigma, once.sigma, rtol=1e-12, atol=1e-14)


class _Ranks(World):
    """Two ranks in one process: collectives add the tensors of the other rank."""

    def __init__(self, mine: ExactMoments, other: ExactMoments) -> None:
        super().__init__(Launch("env", 0, 2, 0, 2))
        other._carry()
        self._pair = (mine, other)

    def gather(self, value):  # type: ignore[no-untyped-def]
        other = self._pair[1]
        sizes = (other._sizes.largest, *other._sizes.array().tolist())
        return [value, other.count if isinstance(value, int) else sizes]

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        mine, other = self._pair
        pairs = ((mine._sum, other._sum), (mine._low, other._low), (mine._high, other._high))
        return tensor.add_(next(theirs for ours, theirs in pairs if ours is tensor))


def test_merging_preserves_the_bits() -> None:
    x = features(700, 5, offset=-2.0)
    mine, other = summed([x[:300]]), summed([x[300:]])
    other.flush()
    mine.merge(_Ranks(mine, other))
    assert same_bits(mine.mean_covariance(1), summed([x]).mean_covariance(1))
    # Features may be added after a merge.
    mine.add(x[:5])
    assert same_bits(mine.mean_covariance(1), summed([x, x[:5]]).mean_covariance(1))


def test_a_merge_beyond_64_bits_does_not_wrap() -> None:
    """The entries of both ranks are just below 2 ** 62, so that 64 bits cannot safely hold their sum."""
    x = (features(8, 3, offset=20.0) * 64).round() / 64
    mine, other = summed([x]), summed([x])
    for moments in (mine, other):
        moments.flush()
        doublings = 61 - int(moments._low.max()).bit_length() + 1
        for tensor in (moments._low, moments._sum):
            tensor *= 2**doublings
        moments.count *= 2**doublings
        assert int(moments._low.max()) >= 2**61
    mine.merge(_Ranks(mine, other))
    np.testing.assert_allclose(mine.mean_covariance(0).sigma, summed([x]).mean_covariance(0).sigma, rtol=1e-12)


@pytest.mark.parametrize(("scale", "step"), [(1e-7, 18), (1.0, -3)])
def test_a_step_too_coarse_for_the_features_is_refused(scale: float, step: int) -> None:
    x = features(50, 4, scale=scale)
    with pytest.raises(RunError, match="feature_step") as refused:
        summed([x], step).check_precision()
    with pytest.raises(RunError, match="feature_step"):
        summed([x], step).mean_covariance(1)
    suggested = int(str(refused.value).rpartition("feature_step=")[2])
    result = summed([x], suggested).mean_covariance(1)
    # With the suggested step, the largest feature has at least 20 bits: rounding changes a feature by at most 2 ** -21
    # times the largest, and an entry of sigma by at most this times two standard deviations.
    largest = float(x.abs().max())
    tolerance = 2 * largest * 2.0**-21 * float(x.std(0).max())
    np.testing.assert_allclose(result.sigma, np.cov(x.double().numpy(), rowvar=False), rtol=0, atol=tolerance)


def test_a_few_large_features_do_not_excuse_the_many_small_ones() -> None:
    x = features(50, 4, scale=1e-3)
    x[:, 0] = 1000.0
    with pytest.raises(RunError, match="no step suits both"):
        summed([x], 12).check_precision()
    summed([x], 12).mean_covariance(1)  # not checked for Inception, whose step is fixed


def test_zeros_do_not_count_as_small() -> None:
    """Most features after a ReLU may be 0, and rounding does not change them."""
    x = features(50, 4)
    x[:, :3] = 0.0
    summed([x]).check_precision()


def test_sums_of_an_earlier_version_are_accepted() -> None:
    """They contain neither the sizes of the features nor a high limb."""
    x = features(50, 4)
    totals = summed([x]).totals()
    del totals["sizes"]
    totals["low"] += totals.pop("high") << 32
    loaded = ExactMoments(4, 18)
    loaded.absorb(totals)
    loaded.check_precision()
    assert same_bits(loaded.mean_covariance(1), summed([x]).mean_covariance(1))


def test_features_that_are_all_zero_are_not_too_small() -> None:
    assert (summed([torch.zeros(5, 3)]).mean_covariance(1).sigma == 0).all()
