"""The metrics of the preset adm, compared with the arithmetic of ADM's evaluator."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fidtool.distances.exact import FeatureSettings
from fidtool.errors import render
from fidtool.metrics.inception_score import SORTED
from fidtool.metrics.metric import FeatureSet, MetricContext
from fidtool.settings.presets import apply_preset
from fidtool.settings.settings import Settings
from fidtool.statistics.set_statistics import Gaussian
from support import adm_evaluator
from support.feature_sets import Features, mixture, normal

SETTINGS = Settings(**apply_preset({"preset": "adm", "is_split_size": 100}))
"""With smaller parts, of which the last is shorter."""
COUNT, DIMS, SPATIAL_DIMS, CLASSES = 330, 24, 17, 10
WEIGHT = normal(CLASSES, DIMS, 9)
TRAINING, REAL, FAKE = (mixture(count, DIMS, seed) for seed, count in enumerate((900, 200, COUNT)))
SPATIAL_TRAINING, SPATIAL_FAKE = mixture(900, SPATIAL_DIMS, 3), mixture(COUNT, SPATIAL_DIMS, 4)


def computed(
    name: str,
    real: FeatureSet,
    fake: FeatureSet,
    warnings: list[str] | None = None,
    settings: Settings = SETTINGS,
) -> dict[str, float]:
    """Return the values of one metric of the preset. Its warnings are added to ``warnings``."""
    state = {"fc.weight": torch.from_numpy(WEIGHT), "fc.bias": torch.ones(CLASSES)}
    classifier: Any = SimpleNamespace(state=state)
    context = MetricContext(FeatureSettings(feature_step=18), lambda: classifier)
    (metric,) = (each.metric for each in settings.selected_metrics if each.metric.name == name)
    found = dict(metric.compute(real, fake, context))
    if warnings is not None:
        warnings += map(str, context.warnings)
    return found


def as_set(features: Features, statistics: Features, order: Any = None) -> FeatureSet:
    """Return a set whose mean and covariance are of other images than its features, as in ADM's
    references.
    """
    return FeatureSet(
        "set", features, Gaussian(*adm_evaluator.gaussian(statistics), len(statistics)), order
    )


def test_distances() -> None:
    pairs = {"fid": (TRAINING, FAKE), "sfid": (SPATIAL_TRAINING, SPATIAL_FAKE)}
    for name, (real, fake) in pairs.items():
        expected = adm_evaluator.frechet(adm_evaluator.gaussian(real), adm_evaluator.gaussian(fake))
        found = computed(name, as_set(REAL, real), as_set(FAKE, fake))
        assert found[name] == pytest.approx(expected, rel=1e-6)


def test_precision_and_recall_are_of_the_images_and_not_of_the_statistics() -> None:
    found = computed("prdc", as_set(REAL, TRAINING), as_set(FAKE, FAKE))
    precision, recall = adm_evaluator.precision_recall(REAL, FAKE)
    assert found["precision"] == pytest.approx(precision, abs=1e-6)
    assert found["recall"] == pytest.approx(recall, abs=1e-6)
    assert 0 < precision < 1
    assert 0 < recall < 1
    assert precision != adm_evaluator.precision_recall(TRAINING, FAKE)[0]


def test_inception_score_in_stored_order() -> None:
    order = np.random.RandomState(5).permutation(COUNT)
    found = computed("is", as_set(REAL, TRAINING), as_set(FAKE[order], FAKE, order))
    assert found["is"] == pytest.approx(adm_evaluator.inception_score(FAKE, WEIGHT, 100), rel=1e-6)
    assert found["is"] != pytest.approx(
        adm_evaluator.inception_score(FAKE[order], WEIGHT, 100), rel=1e-4
    )


def test_inception_score_of_images_stored_by_class_has_a_warning() -> None:
    by_class = np.argsort((FAKE @ WEIGHT.T).argmax(axis=1), kind="stable")
    order = np.random.RandomState(5).permutation(COUNT)
    warnings: list[str] = []
    found = computed(
        "is", as_set(REAL, TRAINING), as_set(FAKE[by_class][order], FAKE, order), warnings
    )
    short, line = warnings
    assert short.startswith(
        "set: the last split of the Inception Score has 30 of the 330 images, and the other splits have 100 each"
    )
    assert line.startswith(
        f"set: splits of 100 images in stored order have {found['is_order']:.2f} times the Inception"
    )
    assert (
        "or pass splits of InceptionScore(...), which divides them at random, instead of "
        "split_size of" in render(line)
    )
    assert (
        computed("is", as_set(REAL, TRAINING), as_set(FAKE[order], FAKE, order))["is_order"]
        > SORTED
    )


@pytest.mark.parametrize(
    ("count", "ranks", "part"), [(99, 1, 25), (400, 4, 50), (99, 0, 25), (400, 0, 40)]
)
def test_few_images_stored_by_class_have_a_warning_and_shuffled_ones_none(
    count: int, ranks: int, part: int
) -> None:
    """Each rank wrote its images by class; with 0 ranks they are shuffled."""
    random = np.random.RandomState(3)
    share = count // max(ranks, 1)
    classes = np.tile(np.arange(share) * CLASSES // share, max(ranks, 1))
    stored = classes if ranks else random.permutation(classes)
    order = random.permutation(count)
    features = (30 * np.linalg.pinv(WEIGHT).T[stored[order]] + normal(count, DIMS, 4) / 10).astype(
        np.float32
    )
    warnings: list[str] = []
    settings = Settings(**apply_preset({"preset": "adm", "is_split_size": part}))
    computed("is", as_set(REAL, TRAINING), as_set(features, FAKE, order), warnings, settings)
    found = [
        line.startswith(f"set: splits of {part} images in stored order have 0.")
        for line in warnings
    ]
    assert found == [True] * bool(ranks)
