"""Advice at the end of a run: only where it is known to save much."""

from __future__ import annotations

from typing import Any

import pytest

from fidtool.errors import render
from fidtool.features.protocol import INCEPTION, SPATIAL_EXTRACTOR
from fidtool.run.advice import suggest_precision

LONG: dict[str, Any] = {
    "capability": (9, 0),
    "precision": "fp32",
    "networks": {INCEPTION},
    "seconds": {"list": 2.0, "extract": 110.0, "merge": 1.0, "total": 124.0},
    "extraction": {"decode": 10.0, "network": 100.0},
}
"""A run whose network worked for 100 of 124 seconds."""


def test_a_long_run_is_told_the_time_in_tf32() -> None:
    assert render(suggest_precision(**LONG)) == (
        "precision='tf32' would have taken about 54 s instead of 124 s, estimated from an H100 "
        "with 16 cores, where it changed an FID from 5.933 to 5.930; only compare values with the "
        "same precision (see `fidtool guide speed`)"
    )


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (12, 0)])
def test_gpus_that_have_tf32(capability: tuple[int, int]) -> None:
    assert suggest_precision(**{**LONG, "capability": capability})


def test_spatial_features_are_inceptions() -> None:
    assert suggest_precision(**{**LONG, "networks": {INCEPTION, SPATIAL_EXTRACTOR}})


OTHERS: dict[str, dict[str, Any]] = {
    "a CPU, or a GPU that is not NVIDIA's": {"capability": None},
    "a GPU without TF32": {"capability": (7, 5)},
    "TF32": {"precision": "tf32"},
    "half precision": {"precision": "bf16"},
    "another network": {"networks": {"dinov2"}},
    "a further network": {"networks": {INCEPTION, "dinov2"}},
    "statistics files": {
        "networks": set(),
        "seconds": {"distance": 100.0, "total": 100.0},
        "extraction": {},
    },
    "sets in the cache": {"seconds": {"distance": 100.0, "total": 100.0}, "extraction": {}},
    "pairs of images": {"extraction": {"decode": 10.0, "pairs": 5.0}},
    "a short run": {"seconds": {"extract": 69.9, "total": 75.0}},
    "slow decoding": {"extraction": {"decode": 49.0, "network": 80.0}},
    "a GPU that was seldom busy": {"extraction": {"decode": 10.0, "network": 61.0}},
    "a slow metric": {"seconds": {"extract": 110.0, "total": 201.0}},
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_runs_get_no_advice(name: str) -> None:
    assert suggest_precision(**{**LONG, **OTHERS[name]}) == ""
