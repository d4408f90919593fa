"""Exact sums of fixed features, and the bits of the resulting mean and covariance."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool import RunError
from fidtool.statistics.moments import ExactMoments
from support.exact_sets import bells, lattice, mixed
from support.goldens import Golden

_LISTED = 40
"""Longer arrays are represented by their SHA-256."""


def shown(array: NDArray[Any]) -> Any:
    """Describes an array for a golden: its values to the last bit, or their hash."""
    whole = np.ascontiguousarray(array)
    little = whole.astype(whole.dtype.newbyteorder("<"))
    kind = f"{array.dtype.name} {list(array.shape)}"
    if array.size <= _LISTED:
        return {kind: array.tolist()}
    return {
        kind: hashlib.sha256(little.tobytes()).hexdigest(),
        "begins": array.reshape(-1)[:3].tolist(),
    }


def summed(features: NDArray[np.float32], step: int, batch: int = 50) -> ExactMoments:
    moments = ExactMoments(features.shape[1], step)
    for start in range(0, len(features), batch):
        moments.add(torch.from_numpy(features[start : start + batch]))
    return moments


def totals(moments: ExactMoments) -> dict[str, Any]:
    return {name: shown(array) for name, array in moments.totals().items()}


def gaussian(moments: ExactMoments, ddof: int) -> dict[str, Any]:
    found = moments.mean_covariance(ddof)
    return {"count": found.count, "mu": shown(found.mu), "sigma": shown(found.sigma)}


def everything(moments: ExactMoments) -> dict[str, Any]:
    return {
        "totals": totals(moments),
        "ddof 1": gaussian(moments, 1),
        "ddof 0": gaussian(moments, 0),
    }


def fine(count: int, dims: int, seed: int) -> NDArray[np.float32]:
    """Multiples of 2 ** -20: a quarter of them are halfway between two multiples of 2 ** -18."""
    return (
        np.random.RandomState(seed).randint(-(1 << 22), 1 << 22, (count, dims)) / 2.0**20
    ).astype(np.float32)


SETS = {
    "one image": (lambda: fine(1, 3, 1), 18),
    "two images": (lambda: fine(2, 3, 2), 18),
    "a few of four features": (lambda: fine(7, 4, 3), 18),
    "more than a block": (lambda: fine(301, 5, 4), 18),
    "many features": (lambda: mixed(90, 100, 5), 18),
    "a large mean, a small spread": (lambda: bells(60, 4, 6, shift=24.0, spread=2.0**-6), 18),
    "halves of the step": (lambda: np.arange(-40, 40, dtype=np.float32)[:, None] / 8 + 2.0**14, 2),
    "large features": (lambda: bells(40, 4, 7, spread=2.0**12), 5),
    "small features": (lambda: bells(40, 4, 8, spread=2.0**-8), 28),
    "whole numbers": (lambda: lattice(50, 3, 9) * 4096, 3),
}


def test_sums(golden: Golden) -> None:
    golden(
        "statistics/sums",
        {name: everything(summed(make(), step)) for name, (make, step) in SETS.items()},
    )


def test_merged_sums(golden: Golden) -> None:
    """Parts give the same sums in any order."""
    features = fine(150, 4, 10)
    whole = summed(features, 18)
    for cuts in ((40, 70), (1, 149), (128,)):
        parts = [summed(part, 18, 7) for part in np.split(features, cuts)]
        merged = ExactMoments(4, 18)
        for part in reversed(parts):
            merged.absorb(part.totals())
        assert everything(merged) == everything(whole), cuts
    golden("statistics/merged", everything(whole))


def test_second_limb(golden: Golden) -> None:
    """Sums beyond 2 ** 62, as of millions of photos, which need a second limb."""
    features = bells(500, 3, 11, shift=31.0, spread=2.0**-3)
    moments = summed(features, 18)
    for _ in range(9):
        moments.absorb(moments.totals())
    assert "high" in moments.totals()
    golden("statistics/second_limb", everything(moments))


REFUSED = {
    "not a number": (lambda: np.array([[1.0, np.nan]], np.float32), 18),
    "infinite": (lambda: np.array([[1.0, -np.inf]], np.float32), 18),
    "just too large": (lambda: np.array([[1.0, 32.0 - 2.0**-19]], np.float32), 18),
    "far too large": (lambda: np.array([[1.0, 1e38]], np.float32), 18),
    "too small": (lambda: bells(30, 3, 13, spread=2.0**-8), 18),
    "small beside large": (
        lambda: bells(30, 4, 14) * np.array([8, 1e-7, 1e-7, 1e-7], np.float32),
        18,
    ),
    "none": (lambda: np.zeros((0, 3), np.float32), 18),
}


def refusal(features: NDArray[np.float32], step: int) -> list[str]:
    """Returns the error that each check raises."""
    said = []
    for asked in ("flush", "check_precision", "mean_covariance"):
        try:
            moments = summed(features, step)
            {"flush": moments.flush, "check_precision": moments.check_precision}.get(
                asked, lambda moments=moments: moments.mean_covariance(1)
            )()
            said.append(f"{asked}: fine")
        except RunError as error:
            said.append(f"{asked}: {error}")
    return said


def test_refused_features(golden: Golden) -> None:
    golden(
        "statistics/refused_features",
        {name: refusal(make(), step) for name, (make, step) in REFUSED.items()},
    )


def test_bits_of_features(golden: Golden) -> None:
    """They show whether a step is too coarse."""
    values = torch.tensor(
        [[0.0, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 1023.0, 1024.0, -(2.0**22), 2.0**23 - 1.0]]
    )
    moments = ExactMoments(values.shape[1], 0)
    moments.add(values)
    golden("statistics/bits", {"sizes": moments.totals()["sizes"].tolist()})
