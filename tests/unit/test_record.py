"""The record of a run: changed settings and Inception."""

from __future__ import annotations

import json

from fidtool.record import changed_settings
from fidtool.settings import Settings


def test_a_record_has_the_changed_settings() -> None:
    assert changed_settings(Settings()) == {}
    config = Settings(
        value_range=(0, 1), metrics=("kid",), max_pixels=10, on_error="skip", recursive=False, weights="w"
    )
    changed = changed_settings(config)
    assert json.loads(json.dumps(changed)) == changed
    assert Settings(**changed) == config
    assert changed_settings(Settings(report="page.html")) == {}, "it does not affect any value"


def test_inception_is_recorded_if_requested() -> None:
    """Without a request, the network of a statistics file would be adopted."""
    settings = Settings(extractor="inception")
    assert changed_settings(settings) == {"extractor": "inception"}
