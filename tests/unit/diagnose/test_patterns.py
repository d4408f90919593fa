"""The pattern of processes that sampled with the same seed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from fidtool.diagnose.duplicates import SameSeed, find_same_seed


def pattern(numbers: Sequence[int], names: Sequence[str] | None = None) -> SameSeed | None:
    """The pattern of files that show the images of these numbers; in a random order, which does not
    matter.
    """
    named = names or [f"{place}.png" for place in range(len(numbers))]
    order = np.random.default_rng(0).permutation(len(numbers))
    shown = np.array(numbers)[order]
    places = {int(number): int(np.flatnonzero(shown == number)[0]) for number in shown}
    return find_same_seed(
        [named[place] for place in order], np.array([places[int(number)] for number in shown])
    )


@pytest.mark.parametrize(
    ("name", "stride"),
    [
        ("rank{rank}/{i:05}.png", 50),
        ("samples/gpu-{rank}_{i}.png", 50),
        ("{rank}_{i}.png", 50),
        ("{i:05}_rank{rank}.png", 1),
        ("{i}/{rank}.png", 1),
    ],
)
def test_processes_that_wrote_the_same_images(name: str, stride: int) -> None:
    pairs = [(rank, i) for rank in range(12) for i in range(50)]
    found = pattern([i for _, i in pairs], [name.format(rank=rank, i=i) for rank, i in pairs])
    assert found == SameSeed(12, stride)


def test_processes_whose_outputs_were_gathered_per_batch() -> None:
    assert pattern(
        [step * 4 + i for step in range(10) for _ in range(8) for i in range(4)]
    ) == SameSeed(8, 4)


@pytest.mark.parametrize(("count", "batch", "times"), [(10_000, 256, 39), (1000, 64, 16)])
def test_a_last_batch_that_is_not_full(count: int, batch: int, times: int) -> None:
    assert pattern([i % batch for i in range(count)]) == SameSeed(times, batch)


def test_images_in_two_formats_are_not_of_one_seed() -> None:
    names = [f"{i:05}.{suffix}" for i in range(60) for suffix in ("png", "webp")]
    assert pattern([place // 2 for place in range(120)], names) is None
    assert pattern([place // 2 for place in range(120)]) == SameSeed(2, 1)


@pytest.mark.parametrize("name", ["[{}]", "part.npz[{}]", "{}", "step.{}"])
def test_images_without_a_suffix(name: str) -> None:
    """Rows of an array and images in memory have no file format."""
    assert pattern(
        [place % 50 for place in range(150)], [name.format(place) for place in range(150)]
    ) == SameSeed(3, 50)


def test_half_of_the_set_is_duplicated() -> None:
    assert pattern([*range(40)] * 2 + [*range(100, 180)]) == SameSeed(2, 40)
    assert pattern([*range(40)] * 2 + [*range(100, 181)]) is None


def test_80_percent_have_the_same_stride() -> None:
    pairs = [number for number in range(80) for _ in range(2)]
    for apart, found in ((20, SameSeed(2, 1)), (21, None)):
        others = range(1000, 1000 + apart)
        assert pattern([*pairs, *others, 2000, *reversed(others)]) == found


def test_80_percent_occur_equally_often() -> None:
    eight = [number for number in range(10) for _ in range(8)]
    for others, found in ((10, SameSeed(8, 1)), (11, None)):
        assert (
            pattern([*eight, *(number for number in range(100, 100 + others) for _ in range(2))])
            == found
        )


def test_one_image_that_occurs_often() -> None:
    assert pattern([*range(40), *[40] * 60]) is None
    assert pattern([0] * 50) is None
