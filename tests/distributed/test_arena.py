"""The fault tests' detection of processes and shared memory that a run leaves behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.arena import abandoned_memory, left_behind
from support.processes import PATIENCE

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="finds left-over processes in /proc"
)


def test_what_is_left_would_be_found() -> None:
    before = abandoned_memory()
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(10000)"], start_new_session=True
    )
    files = [Path("/dev/shm", f"torch_{child.pid}_{number}") for number in range(2)]
    for file in files:
        file.touch()
    try:
        assert left_behind({child.pid}, before, 0.0) == [child.pid]
        assert child.wait(PATIENCE) == -signal.SIGKILL
        assert left_behind({child.pid}, before, 0.0) == [file.name for file in files]
    finally:
        for file in files:
            file.unlink()
