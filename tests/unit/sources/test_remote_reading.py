"""Extents and whole files from a remote store are read correctly, regardless of how requests are merged."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from fidtool.sources import remote
from fidtool.sources.contents import Extent

pytest.importorskip("fsspec", reason="needs fidtool[remote]")
SIZE = 5000


def content(file: int, start: int, length: int) -> bytes:
    """Returns these bytes of a file."""
    return bytes((31 * file + 7 * byte) % 251 for byte in range(start, start + length))


class Store(remote.RemoteFiles):
    """A store of three objects that needs no network."""

    def __init__(self) -> None:
        stamps = np.zeros((3, 5), dtype=np.int64)
        stamps[:, 0] = SIZE
        super().__init__(["http://host/a", "http://host/b", "http://host/c"], stamps)
        self.requests: list[Extent] = []

    def fetch(self, extents: Sequence[Extent]) -> list[bytes | Exception]:
        self.requests += extents
        return [content(*extent) for extent in extents]


def extents_of(rng: random.Random) -> list[Extent]:
    """Returns extents that ascend in each file. They may be adjacent, occur twice, or overlap as crops do."""
    found = []
    for file in range(3):
        start, span, overlapping = 0, rng.randrange(1, 50), rng.random() < 0.3
        for _ in range(rng.randrange(30)):
            length = span if overlapping else rng.randrange(30)
            found += [(file, start, length)] * rng.choice([1, 1, 1, 2])
            start += rng.randrange(40) if overlapping else length + rng.choice([0, 0, 3, 60])
    return found


@pytest.mark.parametrize(("block", "gap"), [(20, 0), (64, 5), (1000, 40)])
def test_merged_requests_return_each_extent(monkeypatch: pytest.MonkeyPatch, block: int, gap: int) -> None:
    monkeypatch.setattr(remote, "_BLOCK_BYTES", block)
    monkeypatch.setattr(remote, "_MAX_GAP", gap)
    for seed in range(50):
        extents = extents_of(random.Random(seed))
        store = Store()
        assert list(store.stream(extents)) == [content(*extent) for extent in extents]
        assert len(store.requests) <= len(extents)
        assert all(length <= max(block, 50) for _, _, length in store.requests)


def test_adjacent_extents_need_one_request() -> None:
    store = Store()
    assert list(store.stream([(1, 10 * row, 10) for row in range(100)])) == [
        content(1, 10 * row, 10) for row in range(100)
    ]
    assert store.requests == [(1, 0, 1000)]


def test_a_remote_file_can_be_read_at_any_position(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_READ_AHEAD", 600)
    store, rng = Store(), random.Random(0)
    with store.open(2) as handle:
        for _ in range(200):
            start, length = rng.randrange(SIZE), rng.randrange(SIZE)
            assert handle.seek(start) == start
            assert handle.read(length) == content(2, start, min(length, SIZE - start))
        assert handle.seek(0, 2) == SIZE
        assert handle.read() == b""
    assert handle.closed
    store.requests.clear()
    with store.open(0) as handle:
        assert b"".join(iter(lambda: handle.read(100), b"")) == content(0, 0, SIZE)
    assert len(store.requests) < 10
