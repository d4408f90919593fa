"""Exact products: equal to integer arithmetic for any number of threads, and the choice of the step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from fidtool.distances import exact
from fidtool.distances.exact import FeatureBlock, inner_products, parts_of, quantize_features, squared_distances
from fidtool.distances.kernel import cmmd, kid
from fidtool.distances.neighbors import nearest_rows, prdc
from fidtool.distances.parallel import share_out, using_threads
from fidtool.errors import InputError, RunError
from support.feature_sets import Features, alone, normal

CPU = torch.device("cpu")


def blocks(x: Features, y: Features, step: int = 18) -> tuple[FeatureBlock, FeatureBlock]:
    """Returns all rows of two sets as blocks."""
    first, second = quantize_features([x, y], step, alone(), CPU)
    return first.block(slice(None)), second.block(slice(None))


def integers(x: Features, step: int) -> list[list[int]]:
    return [[int(value) for value in row] for row in np.rint(x.astype(np.float64) * 2.0**step)]


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 40), st.integers(0, 2**31), st.sampled_from([0.1, 1, 4]))
def test_products_and_distances_equal_those_of_the_integers(n: int, m: int, dims: int, seed: int, scale: float) -> None:
    x, y = normal(n, dims, seed, spread=scale), normal(m, dims, seed + 1, shift=6)
    first, second = blocks(x, y)
    p, q = integers(x, 18), integers(y, 18)
    products = [[sum(a * b for a, b in zip(one, other, strict=True)) for other in q] for one in p]
    distances = [[sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) for other in q] for one in p]
    assert [list(map(int, row)) for row in inner_products(first, second).tolist()] == products
    assert [list(map(int, row)) for row in squared_distances(first, second).tolist()] == distances


@pytest.mark.parametrize("scale", [1.0, 3e3, 2e6, 1e30])
def test_long_vectors_take_the_finest_step_that_is_exact(scale: float) -> None:
    x, y = normal(6, 30, 1, spread=scale), normal(7, 30, 2)
    one, other = quantize_features([x, y], 18, alone(), CPU)
    assert one.step == other.step
    longest = max(sum(value**2 for value in row) for row in integers(x, one.step) + integers(y, one.step))
    assert longest < 2**51
    if one.step < 18:
        finer = max(sum(value**2 for value in row) for row in integers(x, one.step + 1) + integers(y, one.step + 1))
        assert finer >= 2**51
    found = squared_distances(one.block(slice(None)), other.block(slice(None))).tolist()
    p, q = integers(x, one.step), integers(y, one.step)
    expected = [[sum((a - b) ** 2 for a, b in zip(a_row, b_row, strict=True)) for b_row in q] for a_row in p]
    assert [list(map(int, row)) for row in found] == expected


def test_vectors_of_maximum_length_are_exact_with_any_threads() -> None:
    """This test can fail: floating-point products of such vectors depend on the order of the sum."""
    rng = np.random.RandomState(0)
    x = rng.uniform(-1, 1, (300, 2048)).astype(np.float32)
    x *= np.float32(2.0**7 * 0.99) / np.sqrt((x.astype(np.float64) ** 2).sum(1, keepdims=True).astype(np.float32))
    first, _ = blocks(x, x)
    assert 2**49 < first.squares.max().item() < 2**51
    reordered = torch.randperm(2048, generator=torch.Generator().manual_seed(0))
    for threads in (1, 2):
        with using_threads(threads):
            assert torch.equal(inner_products(first, first).diagonal(), first.squares)
            turned = first.integers[:, reordered]
            assert torch.equal(turned @ turned.T, inner_products(first, first))
    plain = torch.from_numpy(x).double() / 3
    assert not torch.equal(plain @ plain.T, plain[:, reordered] @ plain[:, reordered].T)


def test_rows_are_read_from_disk_by_part_and_by_number(tmp_path: Path) -> None:
    x = normal(50, 8, 3)
    np.save(tmp_path / "x.npy", x)
    (on_disk,) = quantize_features([np.load(tmp_path / "x.npy", mmap_mode="r")], 18, alone(), CPU)
    chosen = np.array([40, 3, 3])
    expected = np.rint(x.astype(np.float64) * 2**18)
    np.testing.assert_array_equal(on_disk.block(chosen).integers, expected[chosen])
    np.testing.assert_array_equal(on_disk.block(chosen).squares, (expected[chosen] ** 2).sum(1))
    np.testing.assert_array_equal(on_disk.block(slice(45, 60)).integers, expected[45:])
    assert [(part.start, part.stop) for part in parts_of(5, 2)] == [(0, 2), (2, 4), (4, 5)]


class _Counted(np.ndarray[Any, Any]):
    """Features that count how many of their rows are read."""

    read = 0

    def __getitem__(self, rows: Any) -> Any:
        found = np.asarray(self)[rows]
        _Counted.read += len(found)
        return found


def counted(features: Features) -> Any:
    _Counted.read = 0
    return features.view(_Counted)


@pytest.fixture
def resident(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the integers stay on the device, as on a GPU with enough memory."""
    monkeypatch.setattr(exact, "_resident_bytes", lambda device: 1 << 40)


def test_integers_that_stay_on_the_device_are_read_once(resident: None) -> None:
    x = normal(50, 8, 3)
    (features,) = quantize_features([counted(x)], 18, alone(), CPU)
    expected = np.rint(x.astype(np.float64) * 2**18)
    for rows in (slice(0, 20), slice(45, 60), np.array([40, 3, 3]), np.arange(50)[::-1], np.arange(0)):
        block = features.block(rows)
        assert block.integers.dtype == torch.float64
        np.testing.assert_array_equal(block.integers, expected[rows])
        np.testing.assert_array_equal(block.squares, (expected[rows] ** 2).sum(1))
    assert _Counted.read == 100, "once for the squares, once for the integers"
    longest = normal(6, 30, 1, spread=3e3)  # up to 2 ** 25.5
    (features,) = quantize_features([longest], 18, alone(), CPU)
    expected = np.rint(longest.astype(np.float64) * 2.0**features.step)
    np.testing.assert_array_equal(features.block(slice(None)).integers, expected)


def test_distances_have_the_same_bits_if_the_integers_stay_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = counted(normal(1500, 12, 1)), normal(1300, 12, 2, shift=0.2).view(_Counted)

    def measured() -> tuple[Any, ...]:
        _Counted.read = 0
        values = (
            prdc(x, y, alone(), feature_step=18),
            kid(x, y, alone(), feature_step=18, subset_size=700, subsets=3),
            cmmd(x, y, alone(), feature_step=18),
        )
        return (*values, _Counted.read)

    *read_again, many = measured()
    monkeypatch.setattr(exact, "_resident_bytes", lambda device: 4 * 12 * 1500)
    *stayed, few = measured()
    assert stayed == read_again
    assert few == 3 * 2 * (1500 + 1300) < many
    monkeypatch.setattr(exact, "_resident_bytes", lambda device: 4 * 12 * 1300 - 1)
    assert measured() == (*read_again, many), "sets that are too large are read as on the CPU"


def test_a_device_without_room_is_not_asked_again(resident: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several ranks on one GPU see the same free memory."""

    def refuse(*_: object, **__: object) -> None:
        raise torch.cuda.OutOfMemoryError

    x = normal(50, 8, 3)
    (features,) = quantize_features([x], 18, alone(), CPU)
    monkeypatch.setattr(exact.torch, "empty", refuse)
    block = features.block(slice(0, 20))
    np.testing.assert_array_equal(block.integers, np.rint(x[:20].astype(np.float64) * 2**18))


def test_a_quarter_of_the_free_memory_of_a_gpu_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (4000 + device.index, 9000))
    assert exact._resident_bytes(torch.device("cuda", 3)) == 1000
    assert exact._resident_bytes(CPU) == 0, "features on disk are not read into main memory"


def test_features_are_rounded_alike_on_the_host_and_on_the_device() -> None:
    x = np.concatenate([normal(300, 7, 1, spread=scale) for scale in (1e-6, 1.0, 1e6, 1e30)])
    x[:3] = np.array([[0.5], [1.5], [-2.5]]) / 2**18  # ties, rounded to even
    for step in (-3, 0, 18):
        there = exact._rounded_there(x[::-1], step, CPU)
        assert torch.equal(there, exact._rounded(x[::-1], step, CPU))


def test_the_nearest_rows_are_found_without_waiting_for_an_accelerator() -> None:
    class Waits(TorchDispatchMode):
        def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            assert call.overloadpacket not in (torch.ops.aten.index, torch.ops.aten.index_put_, torch.ops.aten.nonzero)
            return call(*args, **kwargs or {})

    x = normal(3000, 4, 1)
    with Waits():
        rows, distances = nearest_rows(x[[2500, 7]] + np.float32(1e-4), x, CPU)
    assert rows.tolist() == [2500, 7]
    assert distances == pytest.approx(2e-4, rel=0.01)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("row", [0, 1500])
def test_features_that_are_not_finite_are_refused(bad: float, row: int) -> None:
    x = normal(2000, 3, 0)
    x[row, 1] = bad
    with pytest.raises(RunError, match="NaN or infinite"):
        quantize_features([normal(5, 3, 1), x], 18, alone(), CPU)


def test_features_that_the_step_rounds_away_and_other_shapes_are_refused() -> None:
    with pytest.raises(RunError, match="fewer than 14 bits"):
        quantize_features([normal(5, 3, 1, spread=1e-3)], 18, alone(), CPU)
    with pytest.raises(InputError, match=r"\(5, 3\) and \(5, 4\)"):
        quantize_features([normal(5, 3, 1), normal(5, 4, 1)], 18, alone(), CPU)
    (zeros,) = quantize_features([np.zeros((4, 3), np.float32)], 18, alone(), CPU)
    assert zeros.step == 18


def test_jobs_are_returned_in_order() -> None:
    assert share_out([lambda number=number: number for number in range(5)], alone()) == [0, 1, 2, 3, 4]
    with pytest.raises(ZeroDivisionError):
        share_out([lambda: 1 // 0], alone())
