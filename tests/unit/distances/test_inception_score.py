"""Inception Score: closed forms and properties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fidtool.distances import inception_score as module
from fidtool.distances.inception_score import InceptionScore, inception_score
from fidtool.errors import InputError, RunError
from support.feature_sets import Features, normal

FEATURES = np.abs(normal(530, 256, 1, spread=0.5))

WEIGHT, BIAS = normal(100, 256, 2, spread=0.3), normal(1, 100, 3, spread=0.3)[0]


def certain(classes: list[int], sure: float = 1.0) -> tuple[Features, Features]:
    """Returns one-hot features of these classes, and a classifier that is certain of them up to exp(-100)."""
    return np.eye(8, dtype=np.float32)[classes] * np.float32(sure), np.eye(8, dtype=np.float32) * np.float32(100)


def test_certain_and_balanced_classes_give_their_number() -> None:
    score = inception_score(*certain(list(range(8)) * 6), splits=6)
    assert score == InceptionScore(pytest.approx(8, rel=1e-12), pytest.approx(0, abs=1e-12))


def test_one_class_or_equal_probabilities_give_1() -> None:
    assert inception_score(*certain([3] * 20), splits=2).mean == pytest.approx(1, rel=1e-12)
    features, weight = certain(list(range(8)))
    same = np.repeat(weight[:1], 8, axis=0)
    assert inception_score(features, same, splits=1).mean == pytest.approx(1, rel=1e-12)


def test_each_split_has_its_own_rows() -> None:
    """Three splits of seven rows, with 2, 2 and 3 rows and 2, 1 and 3 classes."""
    score = inception_score(*certain([0, 1, 0, 0, 2, 3, 4]), splits=3)
    assert score.mean == pytest.approx((2 + 1 + 3) / 3, rel=1e-12)
    assert score.std == pytest.approx((2 / 3) ** 0.5, rel=1e-12)


def test_parts_of_a_size_follow_the_stored_order() -> None:
    """Parts of three rows of seven, the last with one, after sorting by ``order``: 1, 3 and 1 classes."""
    features, weight = certain([4, 0, 0, 3, 2, 0, 1])
    order = np.array([6, 0, 1, 5, 4, 2, 3])
    score = inception_score(features, weight, part_size=3, order=order)
    assert score.mean == pytest.approx((1 + 3 + 1) / 3, rel=1e-12)
    assert inception_score(features, weight, part_size=7).mean == pytest.approx(
        inception_score(features, weight, splits=1).mean, rel=1e-12
    )
    assert inception_score(features, weight, part_size=100) == inception_score(features, weight, splits=1)


def test_probabilities_that_underflow_do_not_give_nan() -> None:
    features, weight = certain([0, 1], sure=30.0)
    assert inception_score(features, weight, splits=1).mean == pytest.approx(2, rel=1e-12)


def test_threads_do_not_matter_and_parts_change_only_the_last_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    values = set()
    for threads in (1, 2, 3):
        monkeypatch.setattr(module, "available_cores", lambda threads=threads: threads)
        values.add(inception_score(FEATURES, WEIGHT, BIAS, splits=2))
    (whole,) = values
    monkeypatch.setattr(module, "BLOCK_ROWS", 50)
    assert inception_score(FEATURES, WEIGHT, BIAS, splits=2).mean == pytest.approx(whole.mean, rel=1e-12)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.integers(1, 6), st.integers(0, 2**31), st.floats(0.1, 3))
def test_between_one_and_the_number_of_classes(count: int, classes: int, seed: int, spread: float) -> None:
    features, weight = normal(count, 5, seed, shift=1), normal(classes, 5, seed + 1, spread=spread)
    score = inception_score(features, weight, splits=1)
    assert 1 - 1e-12 <= score.mean <= min(count, classes) + 1e-12


@pytest.mark.parametrize("splits", [0, -2, 531])
def test_more_splits_than_images_are_refused(splits: int) -> None:
    with pytest.raises(InputError, match=r"is_splits=.* there are 530: set is_splits to a number from 1 to 530"):
        inception_score(FEATURES, WEIGHT, splits=splits)


def test_shapes_that_do_not_match_are_refused() -> None:
    with pytest.raises(InputError, match="bias of shape"):
        inception_score(FEATURES, WEIGHT, BIAS[:-1])
    with pytest.raises(InputError, match="256 dimensions, but the classifier takes 255"):
        inception_score(FEATURES, WEIGHT[:, 1:])
    with pytest.raises(RunError, match="NaN"):
        inception_score(FEATURES, WEIGHT * np.float32(np.nan))
