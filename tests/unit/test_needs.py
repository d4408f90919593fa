"""Layers and features that a run needs of each set: the union of its metrics' needs for REAL, FAKE or both."""

from __future__ import annotations

import pytest

from fidtool.features.protocol import EMBEDDING, FEATURES, SPATIAL
from fidtool.pipeline.needs import SetNeeds, set_needs
from fidtool.settings import Settings

FEATURES_OF_EACH = SetNeeds((FEATURES,), frozenset({FEATURES}))


def needs(real: bool = True, fake: bool = False, **settings: object) -> SetNeeds:
    return set_needs(Settings(**settings), real, fake)  # type: ignore[arg-type]


def test_a_frechet_distance_needs_no_features() -> None:
    assert needs() == needs(real=False, fake=True) == SetNeeds()
    assert needs(metrics="sfid") == SetNeeds((FEATURES, SPATIAL))
    assert SetNeeds().collected == ()


@pytest.mark.parametrize("settings", [{"metrics": "fid-infinity"}, {"uncertainty": True}, {"influence": True}])
def test_only_features_of_fake_are_needed(settings: dict[str, object]) -> None:
    assert needs(**settings) == SetNeeds()
    assert needs(real=False, fake=True, **settings) == FEATURES_OF_EACH
    assert needs(real=True, fake=True, **settings) == FEATURES_OF_EACH


def test_layers_are_in_one_order_regardless_of_the_metrics_order() -> None:
    found = needs(metrics="cmmd,sfid,kid", report="page.html")
    assert found == SetNeeds((FEATURES, SPATIAL, EMBEDDING), frozenset({FEATURES, EMBEDDING}), frozenset({FEATURES}))
    assert found.collected == (FEATURES, EMBEDDING)


def test_cmmd_with_the_extractors_features() -> None:
    assert needs(metrics="fid,cmmd", extractor="clip") == FEATURES_OF_EACH


def test_a_report_uses_features_that_are_available() -> None:
    found = needs(report="page.html")
    assert (found.features, found.collected) == (frozenset(), (FEATURES,))
