"""Seeds: distinct for each sample, and equal at any number of ranks. `test_golden_order` has their
values.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fidtool


@given(seed=st.integers(-(2**70), 2**70), index=st.integers(0, 2**32 - 1))
def test_torch_generators_accept_the_seeds(seed: int, index: int) -> None:
    for number in (fidtool.sample_seed(seed, index), fidtool.rank_seed(seed, index)):
        assert 0 <= number < 2**63
        torch.Generator().manual_seed(number)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**64), start=st.integers(0, 2**32 - 2001))
def test_seeds_differ_in_the_bits_that_torch_uses(seed: int, start: int) -> None:
    """torch's generator on the CPU only uses the low 32 bits."""
    assert (
        len({fidtool.sample_seed(seed, index) % 2**32 for index in range(start, start + 2000)})
        == 2000
    )


def test_runs_and_purposes_differ() -> None:
    many = [fidtool.sample_seed(seed, index) for seed in range(40) for index in range(40)]
    many += [fidtool.rank_seed(seed, rank) for seed in range(40) for rank in range(40)]
    assert len(set(many)) == len(many)
    # As for random numbers, half of the bits change with the run's seed.
    flipped = [
        (fidtool.sample_seed(seed, 7) ^ fidtool.sample_seed(seed + 1, 7)).bit_count()
        for seed in range(200)
    ]
    assert 28 < sum(flipped) / len(flipped) < 35


def test_the_rank_is_detected(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    assert fidtool.rank_seed(5) == fidtool.rank_seed(5, 0)
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    assert fidtool.rank_seed(5) == fidtool.rank_seed(5, 2)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((0, -1), "index"),
        ((0, 2**32), "index"),
        ((0.5, 1), "seed"),
        ((0, "a"), "index"),
        ((0, 1.0), "index"),
    ],
)
def test_invalid_arguments_are_refused(arguments: tuple[int, int], text: str) -> None:
    with pytest.raises(fidtool.InputError, match=text):
        fidtool.sample_seed(*arguments)
    with pytest.raises(fidtool.InputError, match="rank must be from 0"):
        fidtool.rank_seed(0, -1)
