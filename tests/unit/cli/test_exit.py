"""The end of the process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.processes import PATIENCE


@pytest.mark.parametrize(("option", "status"), [("--version", 0), ("--unknown", 2)])
def test_a_call_that_never_returns_does_not_keep_the_process(option: str, status: int) -> None:
    """The exit function of a logger waits for its server, for example."""
    program = f"""if 1:
        import atexit, sys, threading
        from fidtool.cli import main
        from fidtool.system.background import start_in_background
        main.EXIT_SECONDS = 0.1
        start_in_background(threading.Event().wait)
        atexit.register(threading.Event().wait)
        sys.argv[1:] = ["{option}"]
        main.process()
    """
    run = subprocess.run(
        [sys.executable, "-u", "-c", program], capture_output=True, text=True, timeout=PATIENCE
    )
    assert run.returncode == status, run.stderr
    assert bool(run.stdout) == (status == 0)
