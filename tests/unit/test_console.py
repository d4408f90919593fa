"""Progress lines on stderr."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fidtool.system import console


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that only changes when a test sets ``now``, in seconds."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(console, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


@pytest.mark.parametrize(
    ("total", "line"),
    [
        (40, "real: 30/40 images, 3.0 images/s, 3 s left\n"),
        (None, "real: 30 images, 3.0 images/s\n"),
    ],
)
def test_a_log_file_has_a_line_every_ten_seconds(
    clock: SimpleNamespace, capsys: pytest.CaptureFixture[str], total: int | None, line: str
) -> None:
    with console.Console(progress=True).show_progress("real", total) as advance:
        advance(10)
        clock.now += 9.9
        advance(10)
        assert capsys.readouterr().err == ""
        clock.now += 0.1
        advance(10)
        assert capsys.readouterr().err == line
        clock.now += 9.9
        advance(10)
        assert capsys.readouterr().err == ""
