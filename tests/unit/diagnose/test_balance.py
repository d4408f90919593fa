"""Warnings about the shares of classes: none for labels that are drawn at random."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi2_contingency

from fidtool.diagnose.balance import balance_warnings, homogeneity

REAL, FAKE, CLASSES = 1_281_167, 50_000, 1000


def warned(real: NDArray[np.int64], fake: NDArray[np.int64]) -> list[str]:
    return balance_warnings(
        {f"c{place}": (int(a), int(b)) for place, (a, b) in enumerate(zip(real, fake, strict=True))}
    )


@pytest.mark.parametrize("unbalanced", [False, True])
def test_labels_drawn_at_random_give_no_warning(unbalanced: bool) -> None:
    """50,000 images of 1,000 classes, with equal shares, or with a long tail of which some are
    missing by chance.
    """
    shares = 1.0 / np.arange(1, CLASSES + 1) ** (1.5 if unbalanced else 0.0)
    rng, lacking = np.random.default_rng(0), 0
    for _ in range(200):
        real, fake = (rng.multinomial(count, shares / shares.sum()) for count in (REAL, FAKE))
        assert warned(real, fake) == []
        lacking += int(((fake == 0) & (real > 0)).sum())
    assert (lacking > 0) == unbalanced


def test_the_p_value_is_uniform_for_labels_drawn_at_random() -> None:
    rng = np.random.default_rng(1)
    found = [
        homogeneity(
            np.stack([rng.multinomial(count, np.full(50, 0.02)) for count in (5000, 800)], axis=1)
            * 1.0
        )
        for _ in range(2000)
    ]
    assert np.abs(np.quantile(found, [0.01, 0.1, 0.5, 0.9]) - [0.01, 0.1, 0.5, 0.9]).max() < 0.03


def test_the_test_is_that_of_scipy() -> None:
    numbers = np.random.default_rng(2).integers(20, 200, (30, 2)) * 1.0
    expected = chi2_contingency(numbers, correction=False).pvalue
    assert homogeneity(numbers) == pytest.approx(expected, rel=1e-9)
    rare = np.vstack([numbers, [[1, 2], [3, 0], [0, 2]]])
    assert homogeneity(rare) == pytest.approx(expected, rel=1e-9)


def test_a_missing_class_is_named() -> None:
    rng = np.random.default_rng(3)
    real, fake = (rng.multinomial(count, np.full(CLASSES, 1 / CLASSES)) for count in (REAL, FAKE))
    fake[[7, 300]] = 0
    assert warned(real, fake) == ["it has no images of 2 classes that REAL has: c7, c300"]
    fake[:20] = 0
    (line,) = warned(real, fake)
    assert line.startswith("it has no images of 21 classes that REAL has: c0, c1, c2, c3, c4, ")


def test_other_shares_are_named() -> None:
    real, fake = np.full(10, 5000), np.full(10, 5000)
    fake[4] = 6250
    assert warned(real, fake) == [
        "its classes are distributed differently from REAL's: 2.2% of its images would have to be "
        "of another class (c4 has 12.20% instead of 10.00%)"
    ]
    fake[4] = 6000
    assert warned(real, fake) == [], "not notable"
    assert warned(real // 250, np.where(np.arange(10) == 4, 25, 20)) == [], "by chance"


def test_the_shares_of_imagenet_and_equal_ones_are_alike() -> None:
    """ImageNet's training set has 732 to 1,300 images a class, samples for a paper mostly 50 of
    each.
    """
    real = np.full(CLASSES, 1300)
    real[:104] = np.linspace(732, 1299, 104).astype(np.int64)
    assert warned(real, np.full(CLASSES, 50)) == []


def test_rare_classes_alone_are_not_tested() -> None:
    assert homogeneity(np.array([[3.0, 2.0], [1.0, 4.0]])) == 1.0
