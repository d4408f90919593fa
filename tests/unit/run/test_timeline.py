"""The timeline of a run: its zero, and when its steps ended."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fidtool.distributed.launch import process_age
from fidtool.run.context import Clock

IMPORTED = time.perf_counter()


def test_the_clock_notes_the_first_and_the_last_end() -> None:
    clock = Clock(time.perf_counter() - 100)
    for _ in range(2):
        with clock("decode"):
            pass
    with clock("merge"):
        pass
    assert (
        100
        <= clock.first["decode"]
        < clock.last["decode"]
        < clock.first["merge"]
        == clock.last["merge"]
    )
    assert clock.started - clock.began >= 100


def test_without_a_zero_it_is_when_the_clock_was_made() -> None:
    clock = Clock()
    assert clock.began == clock.started


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux")
def test_this_process_is_older_than_its_modules() -> None:
    least = time.perf_counter() - IMPORTED
    assert process_age() > least - 0.01  # the resolution


def test_a_system_that_does_not_say_how_old_a_process_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    assert process_age() == 0
