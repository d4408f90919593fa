"""The fault tests' detection of processes and shared memory that a run leaves behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from multiprocessing import shared_memory as own
from pathlib import Path

import pytest

from support.arena import left_behind, shared_memory
from support.processes import PATIENCE

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds left-over processes in /proc")


def test_processes_left_running_would_be_found() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(10000)"], start_new_session=True)
    assert left_behind({child.pid}, shared_memory(), 0.0) == [child.pid]
    assert child.wait(PATIENCE) == -signal.SIGKILL


def test_unmapped_shared_memory_would_be_found() -> None:
    """Memory that a live process has mapped is not reported: it may be another test's."""
    before = shared_memory()
    segment = own.SharedMemory(create=True, size=1)
    try:
        assert segment.name not in left_behind(set(), before, 0.0)
        segment.close()
        assert segment.name in left_behind(set(), before, 0.0)
    finally:
        segment.unlink()
