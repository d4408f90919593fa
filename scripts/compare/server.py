"""Runs command lines in forks of a process that has already imported torch and fidtool. This saves seconds per command.

It prints the path of its fidtool, which PYTHONPATH determines. From stdin it reads one JSON object per line,
{"processes": [{"words": […], "environment": {…}, "folder": …, "stdin": …, "output": …}, …], "seconds": …}. Each process
runs ``python WORDS`` (``-m MODULE …`` or ``FILE …``); its stdout and stderr go to OUTPUT.out and OUTPUT.err. The answer
is the list of exit statuses: negative for a signal, null for a process that timed out.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import sys
import threading
import time
from typing import Any, NoReturn

# fidtool's command line sets these before it imports torch.
os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
import numpy as np
import scipy.linalg  # noqa: F401
import torch
import torchvision  # noqa: F401

import fidtool

POLL_SECONDS = 0.01
SLOW = ("fidtool.training", "fidtool.__main__")
"""Modules that are not imported, including their submodules: they import large libraries, or run."""


def load() -> None:
    """Import all modules of the package."""
    for module in pkgutil.walk_packages(fidtool.__path__, "fidtool."):
        if not module.name.startswith(SLOW):
            with contextlib.suppress(ImportError):  # an extra that is not installed
                importlib.import_module(module.name)


def run(words: list[str], folder: str) -> None:
    """Do what ``python WORDS`` does."""
    if words[0] == "-m":
        sys.argv, sys.path[0] = words[1:], folder
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = words, os.path.dirname(os.path.realpath(words[0]))
        runpy.run_path(words[0], run_name="__main__")


def work(order: dict[str, Any]) -> NoReturn:
    """Run the command line in this process, which has just been forked."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored in background jobs of a shell
    status = 1
    try:
        writing = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        names = [order["stdin"], *(f"{order['output']}.{kind}" for kind in ("out", "err"))]
        for number, name in enumerate(names):
            os.dup2(os.open(name, writing if number else os.O_RDONLY), number)
        os.environ.clear()
        os.environ.update(order["environment"])
        os.chdir(order["folder"])
        np.random.seed()  # the module `random` reseeds itself after a fork
        if threads := os.environ.get("OMP_NUM_THREADS"):  # torch read it on import
            torch.set_num_threads(int(threads))
        run(order["words"], order["folder"])
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if ended.code is not None and not isinstance(ended.code, int):
            print(ended.code, file=sys.stderr)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status & 0xFF)  # the interpreter's normal exit takes seconds in a fork of torch


def wait(children: list[int], seconds: float) -> list[int | None]:
    """Return the exit statuses of all processes. Processes that run longer than ``seconds`` are killed."""
    deadline = time.monotonic() + seconds
    found: dict[int, int | None] = {}
    while len(found) < len(children):
        for child in children:
            if child not in found:
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended:
                    found[child] = os.waitstatus_to_exitcode(status)
                elif time.monotonic() > deadline:
                    os.killpg(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                    found[child] = None
        time.sleep(POLL_SECONDS)
    return [found[child] for child in children]


def main() -> None:
    """Serve until stdin is closed."""
    load()
    print(json.dumps(fidtool.__file__), flush=True)
    assert threading.active_count() == 1, "threads do not survive a fork"
    gc.freeze()  # so that garbage collection in forks does not copy shared pages
    for line in sys.stdin:
        order, children = json.loads(line), []
        for process in order["processes"]:
            child = os.fork()
            if not child:
                work(process)
            children.append(child)
        print(json.dumps(wait(children, order["seconds"])), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
