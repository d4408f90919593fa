"""Thresholds for duplicates: values just below and just above each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from fidtool.diagnose import duplicates
from fidtool.diagnose.diagnosis import SetInspection, find_problems, warnings_from_findings
from fidtool.diagnose.duplicates import (
    Duplicates,
    are_dependent,
    find_duplicates,
    has_notable_copies,
    tolerances,
)
from fidtool.errors import ResultWarning
from support.records import pictures, thumbnail


def found(images: int, exact: int = 0, near: int = 0) -> Duplicates:
    return Duplicates(images, images - exact - near, exact, near, {}, None, ())


NOTABLE: dict[str, tuple[Duplicates, Duplicates, Duplicates | None]] = {
    "exact copies": (found(1000, 9), found(1000, 10), None),
    "near copies": (found(1000, 0, 49), found(1000, 0, 50), None),
    "one copy": (found(20, 1), found(20, 2), None),
    "twice REAL's exact ones": (found(1000, 79), found(1000, 81), found(1000, 40)),
    "a tenth more exact ones than REAL": (found(1000, 349), found(1000, 351), found(1000, 250)),
    "twice REAL's near ones": (found(1000, 0, 75), found(1000, 0, 82), found(1000, 0, 40)),
    "a tenth more near ones than REAL": (
        found(1000, 0, 320),
        found(1000, 0, 322),
        found(1000, 0, 250),
    ),
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


def of_images(numbers: Sequence[int]) -> Duplicates:
    """The duplicates in a set of images, equal ones of which have the same number."""
    return find_duplicates(pictures(len(numbers), digest=np.array(numbers), roughness=100))


def test_a_pattern_is_searched_for_from_1_percent_on() -> None:
    assert of_images([*range(100)] * 2).pattern is not None
    assert of_images([*range(298), 0, 1]).pattern is None


def test_examples() -> None:
    """Eight files of each of eight images."""
    duplicates = of_images([*range(9)] * 9)
    assert [len(files) for files in duplicates.examples] == [8] * 8
    assert duplicates.multiplicities == {9: 9}


def lines(images: int, exact: int = 0, near: int = 0) -> list[ResultWarning]:
    inspection = SetInspection("set", pictures(images), found(images, exact, near), [])
    return warnings_from_findings(inspection, find_problems(inspection, None))


def test_duplicates_in_a_set_that_is_not_compared() -> None:
    """A warning requires at least 1 % and two exact duplicates, or that half of the images are
    duplicates.
    """
    assert lines(1000, 9) == lines(20, 1) == lines(100, 0, 49) == []
    assert len(lines(1000, 10)) == len(lines(20, 2)) == len(lines(100, 0, 50)) == 1


@pytest.mark.parametrize(
    ("contrast", "tolerance"),
    [(0, 0.05), (0.5, 0.125), (2, 0.5), (3, 0.75), (12, 0.75), (13, 0.78), (50, 3.0)],
)
def test_tolerance_of_near_duplicates(contrast: float, tolerance: float) -> None:
    (level,) = tolerances(np.round(thumbnail(100 + contrast, contrast)))
    assert level == pytest.approx(tolerance)


def test_images_within_the_tolerance_are_duplicates() -> None:
    """The tolerance is 3 levels at a contrast of 50. All parts are shifted, because it is a root
    mean square.
    """
    for shift, unique in ((3, 1), (4, 2)):
        thumbs = np.repeat(thumbnail(100, 50), 2, axis=0)
        thumbs[1] += shift
        assert find_duplicates(pictures(2, thumb=thumbs)).unique == unique


def test_near_duplicates_of_noise_are_not_searched_for() -> None:
    for roughness, unique in ((79, 1), (80, 9)):
        assert (
            find_duplicates(pictures(9, roughness=roughness, thumb=thumbnail(100))).unique == unique
        )


def test_in_very_large_sets_near_duplicates_are_not_searched_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert duplicates.MAX_NEAR_SEARCH_IMAGES == 500_000
    monkeypatch.setattr(duplicates, "MAX_NEAR_SEARCH_IMAGES", 9)
    assert find_duplicates(pictures(9)).complete
    many = find_duplicates(pictures(10))
    assert not many.complete
    (warning,) = warnings_from_findings(SetInspection("set", pictures(10), many, []), [])
    assert "only exact duplicates were searched for" in str(warning)
