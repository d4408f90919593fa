"""The Vendi score: NumPy's eigenvalues of the n x n matrix, closed forms, and its warning."""

from __future__ import annotations

import numpy as np
import pytest

import fidtool
from fidtool.distances import exact, kernel
from fidtool.distances.exact import FeatureSettings
from support.feature_sets import Features, context_alone, feature_set, mixture, normal


def measured(features: Features) -> float:
    return kernel.vendi(features, FeatureSettings(18))


def of_similarities(features: Features) -> float:
    """Returns exp of the entropy of the eigenvalues of K / n."""
    rows = features.astype(np.float64)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    values = np.linalg.eigvalsh(rows @ rows.T / len(rows))
    values = values[values > 1e-14]
    return float(np.exp(-(values * np.log(values)).sum()))


@pytest.mark.parametrize(
    "features",
    [
        mixture(700, 40, 1),
        mixture(30, 65, 2),
        np.abs(normal(400, 301, 3)),
        normal(1500, 300, 4, spread=1e-3),
        normal(2, 3, 5),
    ],
)
def test_eigenvalues_of_all_similarities(features: Features) -> None:
    """More images than dimensions and fewer, odd numbers of dimensions, several blocks and jobs."""
    assert measured(features) == pytest.approx(of_similarities(features), rel=1e-8)


def test_closed_forms() -> None:
    directions = (
        np.eye(6, dtype=np.float32).repeat(50, axis=0)
        * np.arange(1, 301, dtype=np.float32)[:, None]
    )
    assert measured(directions) == pytest.approx(6, rel=1e-12)
    assert measured(directions[:50]) == pytest.approx(1, rel=1e-12)
    assert measured(np.concatenate([directions, np.zeros((50, 6), np.float32)])) == pytest.approx(
        7, rel=1e-12
    )
    assert measured(np.zeros((5, 6), np.float32)) == pytest.approx(1, rel=1e-12)


def test_blocks_and_jobs_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    features = mixture(70, 12, 1)
    expected = measured(features)
    for columns, rows in ((1, 1000), (5, 7)):
        monkeypatch.setattr(kernel, "COLUMNS", columns)
        monkeypatch.setattr(exact, "BLOCK_ROWS", rows)
        assert measured(features) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("images", "warned"), [(40, True), (100, False)])
def test_a_score_near_the_number_of_images_has_a_warning(images: int, warned: bool) -> None:
    context, features = context_alone(), np.eye(8, dtype=np.float32)[np.arange(images) % 8]
    values = fidtool.Vendi().compute(
        feature_set("real", features), feature_set("fake", features), context
    )
    assert values["vendi"] == pytest.approx(8, rel=1e-3)
    start = "fake (only 40 images): the Vendi score 8.00 is too low"
    assert [str(line).startswith(start) for line in context.warnings] == [True] * warned
