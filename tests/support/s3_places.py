"""A store of objects on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import Run
from support.stores import filled, folders_fid, s3_server


def make_place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return filled(tmp_path_factory.mktemp("store"))


def make_expected(place: Path) -> float:
    return folders_fid(place)


def make_s3(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Variables that lead to a server with all of this in a bucket."""
    with s3_server(place, tmp_path_factory.mktemp("s3") / "log") as variables:
        yield variables


def make_to_s3(s3: dict[str, str], here: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
