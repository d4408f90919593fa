"""The command line's handlers for SIGINT and SIGTERM."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.processes import PATIENCE, clean_environment

TAKEN = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN if sys.argv[1] == "ignored" else signal.default_int_handler)
from fidtool.distributed import signals
before = {number: signal.getsignal(number) for number in signals.STOPPING}
signals.take_over()
print(*(number.name for number in before if signal.getsignal(number) != before[number]))
"""


@pytest.mark.parametrize(
    ("before", "taken"), [("default", "SIGINT SIGTERM"), ("ignored", "SIGTERM")]
)
def test_an_ignored_signal_remains_ignored(before: str, taken: str) -> None:
    """A shell starts background jobs with SIGINT ignored, because Ctrl-C is for the foreground
    job.
    """
    command = [sys.executable, "-c", TAKEN, before]
    done = subprocess.run(
        command, env=clean_environment(), capture_output=True, text=True, timeout=PATIENCE
    )
    assert (done.returncode, done.stdout.strip()) == (0, taken), done.stderr
