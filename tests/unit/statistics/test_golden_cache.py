"""The names of the cache's entries: where one changes, everybody's statistics are computed anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fidtool.features.extractors import inception_definition
from fidtool.features.protocol import FEATURES, SPATIAL, protocol_named
from fidtool.statistics.cache import StatisticsCache
from fidtool.statistics.share import Layer
from support.goldens import Golden

ARITHMETIC = {"device": "a processor", "precision": "fp32", "batch_size": 8, "torch": "2.4", "probe": "ab" * 32}


class Pictures:
    """Of a set, what the name of its entry depends on."""

    def __init__(self, identity: str = "names and their order", state: str = "sizes and times") -> None:
        self._identity, self._state = identity, state

    def identity(self) -> str:
        return self._identity

    def state(self) -> str:
        return self._state


def layer(dims: int = 2048, kept: bool = False) -> Layer:
    return Layer(inception_definition(protocol_named("pytorch-fid"), dims, "cd" * 32), kept)


def test_keys(golden: Golden, environment: dict[str, str]) -> None:
    cache = StatisticsCache(print)
    plain = {FEATURES: layer()}
    cases: dict[str, tuple[Any, ...]] = {
        "as they are": (Pictures(), plain, ARITHMETIC, True),
        "no records": (Pictures(), plain, ARITHMETIC, False),
        "features kept": (Pictures(), {FEATURES: layer(kept=True)}, ARITHMETIC, True),
        "another layer": (Pictures(), {**plain, SPATIAL: layer(768)}, ARITHMETIC, True),
        "another layer, kept": (Pictures(), {**plain, SPATIAL: layer(768, True)}, ARITHMETIC, True),
        "other dims": (Pictures(), {FEATURES: layer(64)}, ARITHMETIC, True),
        "another batch size": (Pictures(), plain, {**ARITHMETIC, "batch_size": 9}, True),
        "other names": (Pictures("others"), plain, ARITHMETIC, True),
        "other files": (Pictures(state="others"), plain, ARITHMETIC, True),
    }
    keys = {name: cache.key(*case) for name, case in cases.items()}
    assert len(set(keys.values())) == len(keys)
    golden("statistics/cache_keys", keys)


def test_identity_and_state(golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a set on another machine, by its names, their order and the files' stamps."""
    from fidtool.sources.image_set import ImageSet, hashes_of
    from fidtool.sources.opening import open_images

    monkeypatch.chdir(tmp_path)
    (tmp_path / "real").mkdir()
    for name in ("b.png", "a.png", "é.png"):
        (tmp_path / "real" / name).write_bytes(b"")
    found = open_images("real", True, None)
    monkeypatch.setattr("fidtool.sources.image_set.real_path", lambda path: "/data/real")
    stamps = np.arange(15, dtype=np.int64).reshape(3, 5) * 1_000_000_007
    held = ImageSet(found.source, stamps, found.order)
    golden(
        "statistics/identity",
        {
            "names": hashes_of(list(held.names)).hex(),
            "identity": held.identity(),
            "drawn": held.draw(2, 5).identity(),
            "state": held.state(),
            "marks": [int(mark) for mark in held.marks([[0, 1], [2]])],
        },
    )
