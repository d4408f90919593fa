"""Inception Score: closed forms."""

from __future__ import annotations

import numpy as np
import pytest

from fidtool.distances.inception_score import inception_score
from support.feature_sets import Features


def certain(classes: list[int], sure: float = 1.0) -> tuple[Features, Features]:
    """Returns one-hot features of these classes, and a classifier that is certain of them up to
    exp(-100).
    """
    return np.eye(8, dtype=np.float32)[classes] * np.float32(sure), np.eye(
        8, dtype=np.float32
    ) * np.float32(100)


def test_certain_and_balanced_classes_give_their_number() -> None:
    score = inception_score(*certain(list(range(8)) * 6), splits=6)
    assert score == (pytest.approx(8, rel=1e-12), pytest.approx(0, abs=1e-12), None, 0.0)


def test_one_class_or_equal_probabilities_give_1() -> None:
    assert inception_score(*certain([3] * 20), splits=2)[0] == pytest.approx(1, rel=1e-12)
    features, weight = certain(list(range(8)))
    same = np.repeat(weight[:1], 8, axis=0)
    assert inception_score(features, same, splits=1)[0] == pytest.approx(1, rel=1e-12)


def test_each_split_has_its_own_rows() -> None:
    """Three splits of seven rows, with 2, 2 and 3 rows and 2, 1 and 3 classes."""
    mean, std, *_ = inception_score(*certain([0, 1, 0, 0, 2, 3, 4]), splits=3)
    assert mean == pytest.approx((2 + 1 + 3) / 3, rel=1e-12)
    assert std == pytest.approx((2 / 3) ** 0.5, rel=1e-12)


def test_parts_of_a_size_follow_the_stored_order() -> None:
    """Parts of three rows of seven, the last with one, after sorting by ``order``: 1, 3 and 1
    classes.
    """
    features, weight = certain([4, 0, 0, 3, 2, 0, 1])
    order = np.array([6, 0, 1, 5, 4, 2, 3])
    mean, *_ = inception_score(features, weight, split_size=3, order=order)
    assert mean == pytest.approx((1 + 3 + 1) / 3, rel=1e-12)
    assert inception_score(features, weight, split_size=7)[0] == pytest.approx(
        inception_score(features, weight, splits=1)[0], rel=1e-12
    )
    assert inception_score(features, weight, split_size=100) == inception_score(
        features, weight, splits=1
    )


def test_parts_of_images_stored_by_class_are_compared_with_random_parts() -> None:
    """Seven classes in seven whole parts and a shorter one; their rows are in random order."""
    order = np.random.default_rng(0).permutation(750)
    features, weight = certain((order // 107).tolist())
    mean, _, ratio, _ = inception_score(features, weight, split_size=100, order=order)
    assert ratio == pytest.approx(mean / 7, rel=0.1)
    assert ratio is not None
    assert ratio < 0.4
    shuffled = np.random.default_rng(1).permutation(750)
    assert inception_score(features, weight, split_size=100, order=shuffled)[2] == pytest.approx(
        1, abs=0.03
    )
    small = inception_score(features, weight, split_size=20, order=order)[2]
    assert small is not None
    assert small < 0.3
    assert inception_score(features, weight, split_size=750, order=order)[2] is None


def test_probabilities_that_underflow_do_not_give_nan() -> None:
    features, weight = certain([0, 1], sure=30.0)
    assert inception_score(features, weight, splits=1)[0] == pytest.approx(2, rel=1e-12)
