"""A run that must stop leaves every distance at once, with the cause."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fidtool.distances.error_bars import error_bars, fid_curve
from fidtool.distances.exact import FeatureSettings
from fidtool.distances.extrapolation import fid_infinity
from fidtool.distances.frechet import influence
from fidtool.distances.inception_score import inception_score
from fidtool.distances.kernel import cmmd, kid, mind, vendi
from fidtool.distances.neighbors import authpct, nearest_cosine_distance, nearest_reals, prdc
from fidtool.errors import StoppedError
from support.feature_sets import REAL, generated, normal

SETTINGS = FeatureSettings(18)
FAKE = generated(300, 1)
ONE, OTHER = normal(40, 4, 1), normal(30, 4, 2)
DISTANCES: dict[str, Callable[[], Any]] = {
    "kid": lambda: kid(ONE, OTHER, SETTINGS, subset_size=10, subsets=2),
    "cmmd": lambda: cmmd(ONE, OTHER, SETTINGS),
    "mind": lambda: mind(ONE, OTHER, SETTINGS),
    "vendi": lambda: vendi(ONE, SETTINGS),
    "prdc": lambda: prdc(ONE, OTHER, SETTINGS),
    "authpct": lambda: authpct(ONE, OTHER, SETTINGS),
    "nearest": lambda: nearest_reals(ONE, OTHER, SETTINGS),
    "cosine": lambda: nearest_cosine_distance(ONE, OTHER, SETTINGS),
    "inception score": lambda: inception_score(ONE, normal(3, 4, 3)),
    "error bars": lambda: error_bars(REAL, FAKE, SETTINGS),
    "curve": lambda: fid_curve(REAL, FAKE, SETTINGS),
    "fid_infinity": lambda: fid_infinity(REAL, FAKE, SETTINGS, points=3, fewest=100),
    "gaussian": lambda: SETTINGS.gaussian(FAKE, np.arange(300)),
    "influence": lambda: influence(REAL, REAL, FAKE, SETTINGS),
}


@pytest.mark.parametrize("name", DISTANCES)
def test_a_signal_stops_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    DISTANCES[name]()
    monkeypatch.setattr("fidtool.distributed.signals.received", [signal.SIGTERM])
    with pytest.raises(StoppedError, match="SIGTERM"):
        DISTANCES[name]()
