"""Error bars, FID∞ and influence for fixed features."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from fidtool.distances.error_bars import difference, fewest_images, interval
from fidtool.result.explanations import Interval
from support.exact_sets import bells, mixed
from support.goldens import Golden, near
from support.inside import blocks, error_bars, fid_curve, fid_infinity, influences

DIMS = 6
REAL, NEAR, FAR = mixed(400, DIMS, 1), mixed(240, DIMS, 2), bells(240, DIMS, 3, 0.25, 1.5)
DIGITS = 1e-12
BEHIND = 1e-9
"""Tolerance for sums and differences of many distances, in which digits cancel."""


def test_error_bars(golden: Golden) -> None:
    """Bias, corrected value with its interval, curve, and the difference of two sets."""
    bars = {name: error_bars(REAL, fake) for name, fake in (("near", NEAR), ("far", FAR))}
    found: dict[str, Any] = {
        name: {
            "fid": near(float(parts[0]), DIGITS),
            "bias": near(float(parts[0]) - interval(parts)[0], BEHIND),
            "corrected": near(asdict(Interval(*interval(parts))), BEHIND),
            "parts": near([float(part) for part in parts], 1e-11),
            "curve": near([list(point) for point in curve], 1e-11),
        }
        for name, (parts, curve) in bars.items()
    }
    found["far less near"] = near(
        asdict(Interval(*difference(bars["far"][0], bars["near"][0]))), BEHIND
    )
    golden("metrics/error_bars", found)


def test_blocks(golden: Golden) -> None:
    """Which images are in each block."""
    golden("metrics/blocks", blocks())


def test_curve_of_few(golden: Golden) -> None:
    """The curve for small numbers of images, and the number of images that error bars need."""
    curves = {str(count): fid_curve(REAL, FAR[:count]) for count in (3, 7, 40)}
    found = near({name: [list(point) for point in curve] for name, curve in curves.items()}, 1e-11)
    golden(
        "metrics/curve_of_few",
        {"curves": found, "fewest": {str(d): fewest_images(d) for d in (1, 40, 64, 2048)}},
    )


def test_fid_infinity(golden: Golden) -> None:
    found = {}
    for name, seed in (("seed 0", 0), ("seed 5", 5)):
        value, error = fid_infinity(REAL, FAR, seed=seed, points=6, fewest=60)
        found[name] = {"value": near(value, BEHIND), "error": near(error, BEHIND)}
    golden("metrics/fid_infinity", found)


def test_influence(golden: Golden) -> None:
    """Influence of the first images, and the images with the largest."""
    fake = FAR[:50]
    found: dict[str, Any] = {}
    for name, real in (("full rank", REAL), ("of few", REAL[:4])):
        values = influences(real, fake)
        worst = np.argsort(-values)[:5].tolist()
        found[name] = {"worst": worst, "of the first ten": near(values[:10].tolist(), 1e-10)}
    golden("metrics/influence", found)
