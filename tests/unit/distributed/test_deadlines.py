"""Deadlines documented in the README."""

from __future__ import annotations

from fidtool.cli import main
from fidtool.distributed import rendezvous, watchdog
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
