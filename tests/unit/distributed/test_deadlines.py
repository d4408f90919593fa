"""Deadlines documented in the README."""

from __future__ import annotations

import threading
import time

import pytest

from fidtool.cli import main
from fidtool.distributed import rendezvous, watchdog
from fidtool.distributed.watchdog import Process, Watchdog
from fidtool.settings.settings import Settings


def test_deadlines_equal_those_in_the_readme() -> None:
    """Checks the constants, not elapsed time, so that a slow machine does not fail the test."""
    assert watchdog.SIGNAL_GRACE_SECONDS + watchdog.PRINT_SECONDS <= 5.0
    assert main.STOPPING_SECONDS <= 5.0
    assert watchdog.GRACE_SECONDS <= 5.0
    assert (Settings().peer_timeout, rendezvous.START_SECONDS, Settings().timeout) == (
        20.0,
        120.0,
        1800.0,
    )


class SilentStore:
    """A store that answers once, when the watchdog is attached."""

    def set(self, key: str, value: str) -> None:
        pass

    def check(self, keys: list[str]) -> bool:
        return False


@pytest.mark.parametrize("rank", [0, 1])
def test_a_silent_store_is_lost_on_every_rank(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on rank zero, which watches only the others: the store may be served elsewhere."""
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    monkeypatch.setattr(threading.Thread, "start", lambda self: None)  # the guard does not run
    guard = Watchdog(rank, 2, peer_timeout=1.0, timeout=10.0)
    guard.attach(SilentStore())  # type: ignore[arg-type]
    guard.start([Process("here", 1), Process("there", 2)])
    assert guard.detect_failure(time.monotonic()) is None
    failure = guard.detect_failure(time.monotonic() + 5.0)
    assert failure is not None
    assert (failure.rank, failure.lost) == (0, True)
    assert "rank 0 (process 1 on here) sent no heartbeat for 1 s" in str(failure.error)
