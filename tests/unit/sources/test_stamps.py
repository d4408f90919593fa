"""Stamps of files, of which several threads ask storage that responds slowly."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from fidtool.sources import contents
from fidtool.sources.contents import MISSING_FILE, Files
from support.processes import PATIENCE

COUNT = 50


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Files of different sizes, of which some do not exist; each is a part of the work by
    itself.
    """
    monkeypatch.setattr(contents, "STAMPED_AT_ONCE", 1)
    for number in range(COUNT):
        (tmp_path / str(number)).write_bytes(bytes(number))
    return [*(str(tmp_path / str(number)) for number in range(COUNT)), f"{tmp_path}/gone", "a\0b"]


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """All storage is slow."""
    monkeypatch.setattr(contents, "SLOW_SECONDS", 0.0)


def sizes(files: Files) -> list[int]:
    return files.stamps[:, 0].tolist()  # type: ignore[no-any-return]


def test_files_are_asked_for_several_at_once(
    paths: list[str], slow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first, there are two threads."""
    stat, together = os.stat, threading.Barrier(2)

    def meeting(path: str, *rest: Any, **more: Any) -> os.stat_result:
        if path in paths[1:3]:
            together.wait(PATIENCE)
        return stat(path, *rest, **more)

    monkeypatch.setattr(os, "stat", meeting)
    files = Files(paths)
    assert sizes(files) == [*range(COUNT), MISSING_FILE, MISSING_FILE]
    monkeypatch.undo()
    assert (files.stamps == Files(paths).stamps).all()
    assert files.find_changed() == []
    os.truncate(paths[7], 3)
    assert files.find_changed() == [paths[7]]


def test_fast_storage_is_asked_by_one_thread(
    paths: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "SLOW_SECONDS", PATIENCE)
    monkeypatch.setattr(contents, "start_in_background", None)
    assert sizes(Files(paths)) == [*range(COUNT), MISSING_FILE, MISSING_FILE]


def test_an_interrupt_stops_all_threads(
    paths: list[str], slow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although those that have asked for a file still wait for it."""
    stat, released, asked = os.stat, threading.Event(), list[str]()

    def interrupted(path: str, *rest: Any, **more: Any) -> os.stat_result:
        if path not in paths:
            return stat(path, *rest, **more)
        asked.append(path)
        if threading.current_thread() is not threading.main_thread():
            released.wait()
        elif len(asked) > 4:
            raise KeyboardInterrupt
        return stat(path, *rest, **more)

    before = {*threading.enumerate()}
    monkeypatch.setattr(os, "stat", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Files(paths)
    threads = {*threading.enumerate()} - before
    assert threads
    assert all(thread.daemon for thread in threads)
    released.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(asked) < COUNT
