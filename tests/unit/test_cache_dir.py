"""Where the cache is."""

from __future__ import annotations

from pathlib import Path

import pytest

from fidtool.cache_dir import cache_dir


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nearest variable wins, and one that is empty does not count."""
    for name, value in {"FIDTOOL_CACHE": "/own", "XDG_CACHE_HOME": "/xdg", "HOME": "/home/me"}.items():
        monkeypatch.setenv(name, value)
    assert cache_dir() == Path("/own")
    monkeypatch.setenv("FIDTOOL_CACHE", "")
    assert cache_dir() == Path("/xdg/fidtool")
    monkeypatch.delenv("FIDTOOL_CACHE")
    assert cache_dir() == Path("/xdg/fidtool")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_dir() == Path("/home/me/.cache/fidtool")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == Path("/home/me/.cache/fidtool")
