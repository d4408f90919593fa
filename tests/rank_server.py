"""Starts processes quickly: one that has imported torch forks children, each of which runs the command line.

Reads a JSON object a line, {"program": "fidtool", "arguments": […], "environment": {…}, "folder": …, "output": …}, and
answers with the child's pid; the child's stdout and stderr go to OUTPUT.out and OUTPUT.err. The program may be
"torchrun", too. {"wait": pid, "seconds": s} answers with the child's exit status (negative for a signal), or null if it
still runs.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
import traceback
from typing import Any, NoReturn

os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # as the command line sets these before it imports torch
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
import scipy.linalg  # noqa: F401
import torch.distributed.run
import torchvision  # noqa: F401

import fidtool.evaluate  # noqa: F401
from fidtool.cli.main import process
from fidtool.distributed import processes


def start(order: dict[str, Any]) -> int:
    """Forks a process, which leads a session of its own; its pid."""
    child = os.fork()
    if child:
        return child
    os.setsid()
    if "FIDTOOL_TEST_APART" in order["environment"]:
        live_apart()
    run(order)


def live_apart() -> None:
    """Lets every rank believe that it has a machine of its own, so that it cannot see the others' processes."""
    mine = dataclasses.replace(processes.Process.this(), space=f"machine of {os.getpid()}")
    processes.Process.this = staticmethod(lambda: mine)  # type: ignore[method-assign]


def run(order: dict[str, Any]) -> NoReturn:
    """The command line, in this process, as a fresh one would run it."""
    for descriptor, name in ((1, "out"), (2, "err")):
        opened = os.open(f"{order['output']}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, descriptor)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    sys.argv = [order["program"], *order["arguments"]]
    sys.path[0] = order["folder"]  # as `python -m` has it
    status: object = 0
    try:
        {"fidtool": process, "torchrun": torch.distributed.run.main}[order["program"]]()
    except SystemExit as ended:
        status = ended.code
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # Python's own end takes a fork of torch two seconds; the tests with processes of their own see it.
    os._exit(status if isinstance(status, int) else 1)


def wait(pid: int, seconds: float) -> int | None:
    """The exit status of a child, or None while it runs."""
    deadline = time.monotonic() + seconds
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            return None
        time.sleep(0.01)


def serve() -> None:
    """Answers until its input ends."""
    assert torch.distributed.is_available()
    for line in sys.stdin:
        order = json.loads(line)
        answer = wait(order["wait"], order["seconds"]) if "wait" in order else start(order)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
