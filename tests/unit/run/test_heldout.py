"""What distances to the training set say of memorisation: against SciPy, and how often the
intervals have the truth.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, mannwhitneyu

from fidtool.report.text import heldout_lines
from fidtool.result.evaluation import SetResult
from fidtool.result.explanations import Heldout, Nearest
from fidtool.run.heldout import compare_nearest
from support.report_samples import bare


def test_by_hand() -> None:
    """Two of four are nearer than the nearest held-out image, which another is as near as."""
    found = compare_nearest(np.array([0.0, 1.0, 2.0, 5.0]), np.array([4.0, 2.0]))
    low, high = beta.ppf(0.025, 2, 3), beta.ppf(0.975, 3, 2)
    assert found == Nearest(
        1.5, 3.0, 1, 0, 0.5, pytest.approx(low), pytest.approx(high), 5.5 / 8, (7 / 96) ** 0.5
    )


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**31))
def test_the_probability_is_that_of_mann_and_whitney(n: int, m: int, seed: int) -> None:
    rng = np.random.RandomState(seed)
    fake, heldout = (rng.randint(0, 6, count).astype(float) for count in (n, m))  # with many ties
    found = compare_nearest(fake, heldout)
    assert found.probability == pytest.approx(
        mannwhitneyu(heldout, fake).statistic / (n * m), abs=1e-12
    )
    assert compare_nearest(heldout, fake).probability == pytest.approx(
        1 - found.probability, abs=1e-12
    )
    assert (found.copies, found.heldout_copies) == ((fake == 0).sum(), (heldout == 0).sum())
    assert 0 <= found.low <= found.closer <= found.high <= 1


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3])
def test_how_often_the_intervals_contain_the_truth(share: float) -> None:
    """The distances are uniform, and those of a share are those of copies. The shares of draws are
    400 coin tosses.
    """
    rng, covered, near = np.random.RandomState(7), 0, 0
    for _ in range(400):
        fake, heldout = rng.rand(200), rng.rand(300)
        fake[rng.rand(200) < share] = 0.0
        found = compare_nearest(fake, heldout)
        covered += found.low <= share + (1 - share) * heldout.min() <= found.high
        near += abs(found.probability - (0.5 + share / 2)) < 1.96 * found.error
    assert covered / 400 > 0.93
    assert share > 0 or 0.92 < near / 400 < 0.98


def verdict(fake: np.ndarray, heldout: np.ndarray) -> str:
    """Return what is said of memorisation, without the figures."""
    (result,) = bare("fake").results
    found = Heldout("val", len(heldout), len(heldout), {}, compare_nearest(fake, heldout))
    (line,) = heldout_lines(replace(result, fake=SetResult("fake", len(fake)), heldout=found))
    return line.removeprefix("memorisation (diagnostic, no quality score): ").partition(" (")[0]


def test_the_verdict_is_in_plain_words() -> None:
    rng = np.random.RandomState(3)
    fake, heldout = 0.1 + rng.rand(200), 0.1 + rng.rand(300)
    assert verdict(fake, heldout) == "no sign of it"
    assert verdict(np.append(fake, 0.0), heldout) == "FAKE has 1 copy of images in REAL"
    assert (
        verdict(fake, np.append(heldout, [0.0, 0.0]))
        == "it cannot be judged, because 2 images in val are also in REAL"
    )
    near = np.append(fake, rng.rand(9) / 100)
    assert verdict(near, heldout) == "9 images in FAKE are probably near copies of images in REAL"
    assert (
        verdict(fake * 0.8 + 0.05, heldout) == "FAKE is closer to REAL than other real images are"
    )


def test_chance_alone_is_seldom_memorisation() -> None:
    rng = np.random.RandomState(5)
    found = [verdict(rng.rand(200), rng.rand(300)) != "no sign of it" for _ in range(500)]
    assert sum(found) <= 20, "2 % are expected, of 500 draws 10 with a standard deviation of 3"
