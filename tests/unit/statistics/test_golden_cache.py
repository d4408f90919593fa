"""Keys of the cache's entries: if one changes in a new version, all users' statistics are computed
again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fidtool.features.protocol import Definition
from support.goldens import Golden
from support.inside import cache_key, inception, marks_of


def defined(dims: int = 2048) -> Definition:
    return inception("pytorch-fid", dims, "cd" * 32)


PROBE = f"{defined().fingerprint}_probe"
ARITHMETIC: dict[str, Any] = {
    "device": "a processor",
    "precision": "fp32",
    "batch_size": 8,
    "torch": "2.4",
}
ARITHMETIC |= {PROBE: "ab" * 32, f"{defined(64).fingerprint}_probe": "ab" * 32}


def key(
    identity: str = "names and their order",
    state: str = "sizes and times",
    definition: Definition | None = None,
    arithmetic: dict[str, Any] = ARITHMETIC,
) -> str:
    return cache_key(identity, state, definition or defined(), arithmetic)


def test_keys(golden: Golden, environment: dict[str, str]) -> None:
    keys = {
        "as they are": key(),
        "another network": key(arithmetic={**ARITHMETIC, PROBE: "ef" * 32}),
        "other dims": key(definition=defined(64)),
        "another batch size": key(arithmetic={**ARITHMETIC, "batch_size": 9}),
        "other names": key("others"),
        "other files": key(state="others"),
    }
    assert len(set(keys.values())) == len(keys)
    assert key(arithmetic={**ARITHMETIC, "other_probe": "ef" * 32}) == key()
    golden("statistics/cache_keys", keys)


def stamps(count: int) -> NDArray[np.int64]:
    return np.arange(5 * count, dtype=np.int64).reshape(count, 5) * 1_000_000_007


def test_identity_and_state(
    golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a set on a different machine, from its names, their order and the time stamps of its
    files.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "real").mkdir()
    for name in ("b.png", "a.png", "é.png"):
        (tmp_path / "real" / name).write_bytes(b"")
    golden("statistics/identity", marks_of("real", "/no-such-place/real", stamps, (2, 5)))
