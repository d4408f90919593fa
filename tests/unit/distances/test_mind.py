"""MIND: one direction at a time in NumPy, and closed forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fidtool
from fidtool.distances import exact, kernel
from fidtool.distances.exact import FeatureSettings
from fidtool.distances.kernel import mind
from support.feature_sets import Features, context_alone, feature_set, mixture, normal


def measured(real: Features, fake: Features, directions: int = 130, seed: int = 0) -> float:
    return mind(real, fake, FeatureSettings(18), directions=directions, seed=seed)


def independent(real: Features, fake: Features, directions: int, seed: int) -> float:
    """Returns the mean over directions that torch draws, in float64; torch-fidelity's has the same
    directions.
    """
    count, dims = min(len(real), len(fake)), real.shape[1]
    drawn = (
        torch.randn(directions, dims, generator=torch.Generator().manual_seed(seed))
        .numpy()
        .astype(np.float64)
    )
    distances = []
    for row in drawn:
        unit = row / np.sqrt((row**2).sum())
        one, other = (
            np.sort((projections[:count].astype(np.float64) * unit).sum(1))
            for projections in (real, fake)
        )
        distances.append(((one - other) ** 2).mean())
    return 3 * dims * float(np.mean(distances))


@pytest.mark.parametrize("sizes", [(300, 300), (2300, 1100)])
@pytest.mark.parametrize("seed", [0, 7])
def test_one_direction_at_a_time(sizes: tuple[int, int], seed: int) -> None:
    """Also of more images than a block, and of more directions than a job."""
    real, fake = mixture(sizes[0], 12, 1), mixture(sizes[1], 12, 2)
    assert measured(real, fake, 130, seed) == pytest.approx(
        independent(real, fake, 130, seed), rel=1e-9
    )


def test_the_larger_set_is_cut() -> None:
    real, fake = normal(90, 5, 1), normal(60, 5, 2)
    assert measured(real, fake) == measured(real[:60], fake)
    assert measured(fake, real) == pytest.approx(measured(real, fake), rel=1e-12)


def test_equal_sets_and_a_shift() -> None:
    """A shift by s moves the projection on u by <s, u>, whose mean square is |s|² / D."""
    real = normal(200, 8, 3)
    assert measured(real, real[::-1].copy()) == pytest.approx(0, abs=1e-25)
    shift = np.float32(0.5)
    assert measured(real, real + shift, 20_000) == pytest.approx(3 * 8 * 0.25, rel=0.02)


def test_blocks_and_jobs_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    real, fake = mixture(70, 6, 1), mixture(70, 6, 2)
    expected = measured(real, fake)
    for directions, rows in ((1, 1000), (130, 7)):
        monkeypatch.setattr(kernel, "DIRECTIONS", directions)
        monkeypatch.setattr(exact, "BLOCK_ROWS", rows)
        assert measured(real, fake) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("images", "warned"), [(999, True), (1000, False)])
def test_few_images_have_a_warning(images: int, warned: bool) -> None:
    context = context_alone()
    real, fake = feature_set("real", normal(1200, 3, 1)), feature_set("fake", normal(images, 3, 2))
    value = fidtool.MIND(directions=5, seed=2).compute(real, fake, context)
    assert value == {"mind": pytest.approx(independent(real.rows, fake.rows, 5, 2), rel=1e-9)}
    assert [str(line).startswith("fake (only 999 images): MIND") for line in context.warnings] == [
        True
    ] * warned
