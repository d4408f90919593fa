"""Waiting for processes, and their environment."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable

PATIENCE = 900.0
"""Seconds after which a process is considered to hang. No busy machine is this slow, and a rank
that only the default of --timeout would end does hang.
"""


def wait_until(so: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds; fail with ``what`` if it never does."""
    deadline = time.monotonic() + PATIENCE
    while not so():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def as_from_a_terminal() -> None:
    """Prepare a process that tests interrupt: Ctrl-C reaches it, and it sees two cores, as on any
    test machine.

    Background jobs of a shell, and thus tests, may ignore SIGINT, and their processes would inherit
    this.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])


def free_port() -> int:
    """Return a port that is currently free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def clean_environment() -> dict[str, str]:
    """Return the environment without variables of launchers and without the user's settings of
    fidtool.
    """
    dropped = ("SLURM_", "FIDTOOL_", "TORCHELASTIC", "OMP_NUM_THREADS")
    names = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
    return {
        name: value
        for name, value in os.environ.items()
        if name not in names and not name.startswith(dropped)
    }
