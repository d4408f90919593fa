"""Thresholds for warnings about a result: values just below and just above each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fidtool.diagnose.diagnosis import pair_warnings, set_warnings
from fidtool.errors import merge_warnings
from fidtool.reading.decode import ImageProperties
from fidtool.statistics.set_statistics import Statistics
from support.inside import inception


def statistics(count: int, **traits: int) -> Statistics:
    definition = inception("tensorflow", 64)
    return replace(
        Statistics.of(np.zeros(64), np.eye(64), count, definition), traits=ImageProperties(**traits)
    )


def of_pair(count: int) -> list[str]:
    return [*map(str, pair_warnings(statistics(100), "fake", statistics(count)))]


def test_sizes_that_differ_by_more_than_a_factor_of_2() -> None:
    assert of_pair(200) == of_pair(50) == []
    assert [str(each).partition(":")[0] for each in of_pair(201)] == [
        "fake (201 images against 100)"
    ]
    assert [str(each).partition(":")[0] for each in of_pair(49)] == ["fake (49 images against 100)"]
    assert [str(each).partition(":")[0] for each in of_pair(1)] == ["fake (1 image against 100)"]


@pytest.mark.parametrize(
    ("count", "words"), [(1, "single image"), (2, "2 images"), (64, "64 images"), (65, None)]
)
def test_a_covariance_needs_more_images_than_dims(count: int, words: str | None) -> None:
    found = [*set_warnings("real", statistics(count))]
    assert [words in str(each) for each in found if words] == [True] * len(found)
    assert len(found) == (words is not None)


def test_too_few_images_in_several_sets() -> None:
    for counts, named in (
        ((50, 50), ["a, b (only 50 images)"]),
        ((50, 40, 65), ["a (only 50 images)", "b (only 40 images)"]),
    ):
        every = []
        for name, count in zip("abc", counts, strict=False):
            every += set_warnings(name, statistics(count))
        found = merge_warnings(every)
        assert [str(each).partition(": too few for 64 dimensions: ")[0] for each in found] == named
        assert {each.severity for each in found} == {"high"}


@pytest.mark.parametrize("trait", ["alpha", "deep", "animated", "rotated", "clipped", "bands"])
def test_a_single_image_with_a_property_is_reported(trait: str) -> None:
    (found,) = set_warnings("real", statistics(100, **{trait: 1}))
    assert str(found).startswith("real: 1 ")
