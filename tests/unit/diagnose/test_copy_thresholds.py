"""Thresholds for duplicates and their patterns: values just below and just above each."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from fidtool.diagnose import copies
from fidtool.diagnose.copies import Copies, find_copies, tolerances
from fidtool.diagnose.diagnosis import SetInspection
from fidtool.diagnose.duplicates import (
    CopyPattern,
    Duplicates,
    are_dependent,
    duplicates_of,
    find_pattern,
    has_notable_copies,
)
from support.records import pictures, records, thumbnail


def found(images: int, exact: int = 0, near: int = 0) -> Duplicates:
    return Duplicates(images, images - exact - near, exact, near, {}, None, ())


NOTABLE: dict[str, tuple[Duplicates, Duplicates, Duplicates | None]] = {
    "exact copies": (found(1000, 9), found(1000, 10), None),
    "near copies": (found(1000, 0, 49), found(1000, 0, 50), None),
    "one copy": (found(20, 1), found(20, 2), None),
    "twice REAL's exact ones": (found(1000, 79), found(1000, 81), found(1000, 40)),
    "a tenth more exact ones than REAL": (found(1000, 349), found(1000, 351), found(1000, 250)),
    "twice REAL's near ones": (found(1000, 0, 75), found(1000, 0, 82), found(1000, 0, 40)),
    "a tenth more near ones than REAL": (found(1000, 0, 320), found(1000, 0, 322), found(1000, 0, 250)),
    "REAL is small": (found(10_000, 0, 5990), found(10_000, 0, 6010), found(100, 0, 90)),
    "one near copy in REAL": (found(1000, 0, 49), found(1000, 0, 50), found(10, 0, 1)),
    "two near copies in REAL": (found(1000, 0, 599), found(1000, 0, 601), found(10, 0, 2)),
}
"""A FAKE with as many duplicates as by nature, one with more, and REAL."""


@pytest.mark.parametrize("name", NOTABLE)
def test_more_duplicates_than_in_natural_sets(name: str) -> None:
    by_nature, more, real = NOTABLE[name]
    assert not has_notable_copies(by_nature, real)
    assert has_notable_copies(more, real)


def test_duplicates_that_make_images_dependent() -> None:
    assert not are_dependent(found(1000, 9), None)
    assert are_dependent(found(1000, 10), None)
    assert not are_dependent(found(1000, 0, 49), None)
    assert are_dependent(found(1000, 0, 50), None)
    assert not are_dependent(found(1000, 0, 79), found(1000, 0, 80))
    assert are_dependent(found(1000, 0, 80), found(1000, 0, 80))


def groups(*sizes: int) -> list[int]:
    """Returns image numbers: image i occurs ``sizes[i]`` times in a row."""
    return [number for number, size in enumerate(sizes) for _ in range(size)]


def firsts(numbers: Sequence[int]) -> np.ndarray:
    places: dict[int, int] = {}
    return np.array([places.setdefault(number, place) for place, number in enumerate(numbers)])


def duplicates(images: int, pairs: int) -> Duplicates:
    groups_of = firsts(groups(*[2] * pairs, *[1] * (images - 2 * pairs)))
    return duplicates_of(pictures(images), Copies(groups_of, groups_of))


def test_a_pattern_is_searched_for_from_1_percent_on() -> None:
    assert duplicates(300, 2).pattern is None
    assert duplicates(300, 3).pattern is not None


def test_examples() -> None:
    """Eight files of each of eight images."""
    numbers = firsts(groups(*[9] * 9))
    examples = duplicates_of(pictures(81), Copies(numbers, numbers)).examples
    assert [len(each) for each in examples] == [8] * 8


def lines(images: int, exact: int = 0, near: int = 0) -> list[str]:
    own = found(images, exact, near)
    groups_of = np.arange(images)
    return SetInspection("set", pictures(images), Copies(groups_of, groups_of), own, []).warnings


def test_duplicates_in_a_set_that_is_not_compared() -> None:
    """A warning requires at least 1 % and two exact duplicates, or that half of the images are duplicates."""
    assert lines(1000, 9) == lines(20, 1) == lines(100, 0, 49) == []
    assert len(lines(1000, 10)) == len(lines(20, 2)) == len(lines(100, 0, 50)) == 1


@pytest.mark.parametrize(
    ("contrast", "tolerance"), [(0, 0.05), (0.5, 0.125), (2, 0.5), (3, 0.75), (12, 0.75), (13, 0.78), (50, 3.0)]
)
def test_tolerance_of_near_duplicates(contrast: float, tolerance: float) -> None:
    (found,) = tolerances(np.round(thumbnail(100 + contrast, contrast)))
    assert found == pytest.approx(tolerance)


def test_images_within_the_tolerance_are_duplicates() -> None:
    """The tolerance is 3 levels at a contrast of 50. All parts are shifted, because it is a root mean square."""
    for shift, unique in ((3, 1), (4, 2)):
        thumbs = np.repeat(thumbnail(100, 50), 2, axis=0)
        thumbs[1] += shift
        assert find_copies(records(2, thumb=thumbs)).unique == unique


def test_near_duplicates_of_noise_are_not_searched_for() -> None:
    for roughness, unique in ((79, 1), (80, 9)):
        assert find_copies(records(9, roughness=roughness, thumb=thumbnail(100))).unique == unique


def test_in_very_large_sets_near_duplicates_are_not_searched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert copies._MOST == 500_000
    monkeypatch.setattr(copies, "_MOST", 9)
    assert find_copies(records(9)).complete
    assert not find_copies(records(10)).complete


def pattern(numbers: Sequence[int], names: Sequence[str] | None = None) -> CopyPattern:
    return find_pattern(names or [f"{place}.png" for place in range(len(numbers))], firsts(numbers))


def kind(numbers: Sequence[int], names: Sequence[str] | None = None) -> str:
    return pattern(numbers, names).kind


def test_a_single_image_that_occurs_often() -> None:
    """It must occur at least five times, and be at least 2 % of the set and 80 % of the duplicated images."""
    singles = [1] * 90
    assert kind(groups(4, *singles)) == "none"
    assert kind(groups(5, *singles)) == "one picture"
    assert kind(groups(19, *[1] * 981)) == "none"
    assert kind(groups(20, *[1] * 980)) == "one picture"
    assert kind(groups(79, *[3] * 7, *singles)) == "none"
    assert kind(groups(84, *[3] * 7, *singles)) == "one picture"


def test_processes_or_batches() -> None:
    """More than 64 repetitions are not attributed to processes; batches have at most 512 images."""
    assert kind(groups(*[64] * 40)) == "ranks or batches"
    assert kind(groups(*[65] * 40)) == "batches"
    assert kind([*range(512)] * 4) == "ranks or batches"
    assert kind([*range(513)] * 4) == "ranks"


def test_a_whole_batch() -> None:
    """The set may have 1.5 times as many different images as one batch."""
    assert kind([*range(40)] * 4 + [*range(100, 120)]) == "ranks or batches"
    assert kind([*range(40)] * 4 + [*range(100, 121)]) == "ranks"


def test_half_of_the_set_is_duplicated() -> None:
    """At least half of the set must be duplicated for processes or batches to be blamed."""
    assert kind([*range(40)] * 2 + [*range(100, 180)]) == "ranks"
    assert kind([*range(40)] * 2 + [*range(100, 181)]) == "none"


def test_a_handful() -> None:
    """Up to 10 % different images, in no particular order."""
    sizes = [7, 13] * 10
    order = np.random.RandomState(0).permutation(sum(sizes))
    assert kind(np.array(groups(*sizes))[order].tolist()) == "repeated"
    assert kind(np.array(groups(*sizes, 1))[np.append(order, sum(sizes))].tolist()) == "none"


def test_80_percent_have_the_same_stride() -> None:
    for apart, stride in ((20, 1), (21, None)):
        others = range(1000, 1000 + apart)
        assert pattern([*groups(*[2] * 80), *others, 2000, *reversed(others)]).stride == stride


def test_80_percent_occur_equally_often() -> None:
    """80 % of the duplicated images must occur equally often; one occurrence fewer is accepted for the last batch."""
    assert pattern(groups(*[8] * 10, *[2] * 10)).multiplicity == 8
    assert pattern(groups(*[8] * 10, *[2] * 11)).multiplicity == 2
    assert pattern(groups(*[8] * 5, *[7] * 5, *[2] * 9)).multiplicity == 8
    assert pattern(groups(*[8] * 5, *[7] * 5, *[2] * 10)).multiplicity == 4


def named(strange: int) -> str:
    """Returns the field for 40 pairs that differ in the rank, and ``strange`` pairs that differ in more parts."""
    pairs = list(itertools.product(range(2), range(40)))
    names = [f"rank{rank}_{number}.png" for rank, number in pairs]
    names += [f"{part}_{number}.png" for part in ("a0", "b1") for number in range(strange)]
    return pattern([number for _, number in pairs] + [*range(100, 100 + strange)] * 2, names).field


def test_80_percent_of_the_names_differ_in_one_field() -> None:
    assert named(10) == "rank"
    assert named(11) == ""
