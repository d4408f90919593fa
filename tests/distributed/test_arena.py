"""The fault tests' detection of processes and shared memory that a run leaves behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from multiprocessing import shared_memory as own
from pathlib import Path

import pytest

from support.arena import Arena, shared_memory
from support.processes import PATIENCE, wait_until
from support.ranks import left_of

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds left-over processes in /proc")


@pytest.mark.parametrize("forked", [True, False])
def test_processes_left_running_would_be_found(arena: Arena, forked: bool) -> None:
    """A separate process with the mark, or a worker of a forked rank."""
    code = "import time; time.sleep(10000)"
    before = shared_memory()  # memory of other programs, or left by killed ones
    if forked:
        child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
        assert arena.left("", {child.pid}, before, 0.0) == [child.pid]
    else:
        child = subprocess.Popen(
            [sys.executable, "-c", code], env={**arena.environment, "FIDTOOL_TEST_MARK": "planted"}
        )
        # Between fork and exec the child still has its parent's environment.
        wait_until(lambda: left_of("planted") == [child.pid], "a marked process is not found")
        assert arena.left("planted", set(), before, 0.0) == [child.pid]
    assert child.wait(PATIENCE) == -signal.SIGKILL


def test_unmapped_shared_memory_would_be_found(arena: Arena) -> None:
    """Memory that a live process has mapped is not reported: it may be another test's."""
    before = shared_memory()
    segment = own.SharedMemory(create=True, size=1)
    try:
        assert segment.name not in arena.left("", set(), before, 0.0)
        segment.close()
        assert segment.name in arena.left("", set(), before, 0.0)
    finally:
        segment.unlink()
