"""Threads of fidtool's own."""

from __future__ import annotations

import subprocess
import sys

from fidtool.system.background import DaemonThreads
from support.processes import PATIENCE


def test_a_pool_can_be_closed_in_one_of_its_threads() -> None:
    """Python may finalize an iterator there."""
    pool = DaemonThreads(1)
    pool.submit(pool.close, 0.0).result(PATIENCE)


def test_only_threads_that_may_be_in_a_library_are_awaited_at_the_end() -> None:
    """A request that was given up may take long, and no program should wait for it."""
    program = """if 1:
        import threading
        import torch
        from fidtool.system.background import DaemonThreads
        DaemonThreads(1, uses_torch=True)
        DaemonThreads(1).submit(threading.Event().wait)
        threading.Thread.join = lambda thread, seconds: print(thread.name)
    """
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (run.stdout, run.stderr) == ("fidtool-0\n", "")
