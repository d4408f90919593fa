"""Waiting for other processes, and what they are given."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable

PATIENCE = 900.0
"""Seconds after which what a test waits for is taken for hanging. No busy machine is so slow, and a rank that nothing
but the default of --timeout would end hangs."""


def wait_until(so: Callable[[], bool], what: str) -> None:
    """Waits for something that is sure to come; ``what`` says what has not."""
    deadline = time.monotonic() + PATIENCE
    while not so():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def as_from_a_terminal() -> None:
    """For a process that tests must hit at work: Ctrl-C reaches it, and it sees two cores, as many as anywhere.

    A shell's background jobs, tests among them, ignore SIGINT and would have their processes do so as well.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def clean_environment() -> dict[str, str]:
    """This environment without any launcher's variables or the user's own settings of fidtool."""
    dropped = ("SLURM_", "FIDTOOL_", "TORCHELASTIC", "OMP_NUM_THREADS")
    names = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
    return {name: value for name, value in os.environ.items() if name not in names and not name.startswith(dropped)}
