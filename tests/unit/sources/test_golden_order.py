"""Goldens of image order and seeds. They must never change: publications and users' samples depend
on them.
"""

from __future__ import annotations

import hashlib

import numpy as np

import fidtool
from fidtool.sources.image_set import canonical_order
from support.goldens import Golden


def test_order(golden: Golden) -> None:
    cases = [(count, seed) for count in (1, 2, 24) for seed in (0, 7)]
    found = {
        f"{count} images, seed {seed}": canonical_order(count, seed).tolist()
        for count, seed in cases
    }
    for seed in (0, 1, -3, 2**40):
        order = np.ascontiguousarray(canonical_order(5000, seed), dtype="<i8")
        found[f"5000 images, seed {seed}"] = [
            *order[:6].tolist(),
            hashlib.sha256(order.tobytes()).hexdigest(),
        ]
    golden("sources/order", found)


def test_seeds(golden: Golden) -> None:
    cases = [(0, 0), (0, 1), (1, 0), (7, 123_456), (-1, 5), (2**40, 2**32 - 1)]
    found = {f"sample_seed{case}": fidtool.sample_seed(*case) for case in cases}
    found |= {f"rank_seed{case}": fidtool.rank_seed(*case) for case in cases}
    golden("sources/seeds", found)
