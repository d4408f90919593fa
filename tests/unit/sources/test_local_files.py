"""Reading local files."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from fidtool.sources import contents
from fidtool.sources.contents import ContentError, Files


def test_a_system_that_returns_less_than_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux returns at most 2 GiB - 4096 bytes, and network file systems may return less."""
    file = tmp_path / "file"
    file.write_bytes(bytes(range(100)))

    class Hesitant(io.FileIO):
        def readinto(self, buffer: Any, /) -> int:
            return super().readinto(memoryview(buffer)[:7])

    def hesitant(path: str, mode: str, opener: Any) -> Any:
        return io.BufferedReader(Hesitant(path, opener=opener))

    monkeypatch.setattr(contents, "open", hesitant, raising=False)
    files = Files([str(file)])
    assert [files.read_bytes(0, *extent) for extent in ((0, -1), (30, 50), (98, 2), (100, 0))] == [
        bytes(range(100)),
        bytes(range(30, 80)),
        bytes([98, 99]),
        b"",
    ]
    error = files.read_bytes(0, 50, 60)
    assert isinstance(error, ContentError)
    assert str(error) == "the file ends after 100 of 110 bytes"
