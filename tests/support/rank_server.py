"""Starts processes quickly: one that has imported torch forks children, each of which runs the command line.

rank_server.py SOCKET MODULES… imports these modules as well, those that are installed.

On stdin it reads a JSON object a line, {"program": "fidtool", "arguments": […], "environment": {…}, "folder": …,
"output": …}, and answers with the child's pid; the child's stdout and stderr go to OUTPUT.out and OUTPUT.err. The
program may be "torchrun", too, or "script", whose first argument is a file. {"wait": pid, "seconds": s} answers with
the child's exit status (negative for a signal), or null if it still runs. An empty line ends it.

At SOCKET it does the work of processes that others start: see rank_client.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import importlib
import importlib.metadata
import json
import os
import pkgutil
import re
import runpy
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # as the command line sets these before it imports torch
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # its threads spin for each other, and every fork would start them again
import numpy as np
import scipy.linalg  # noqa: F401
import torch.distributed.elastic.rendezvous.static_tcp_rendezvous
import torch.distributed.run
import torchvision  # noqa: F401
from patching import replace
from PIL import Image

import fidtool
from fidtool import record
from fidtool.cli import main as command_line
from fidtool.distributed import rendezvous
from fidtool.distributed.watchdog import Process, Watchdog
from fidtool.pipeline import measure

ASKED_FOR_RANK = ("lightning_utilities.core.rank_zero", "torchmetrics.utilities.prints")
"""Modules that look which rank they are on when they are imported."""
FURTHER = ("encodings.idna",)
"""What is imported late, by whoever needs it."""
NOT_WARMED = r"\.__main__$|^fidtool\.training\b"
"""Of fidtool's modules; training brings libraries of many seconds."""
POLL_SECONDS = 0.01
"""How often the server looks whether a child has ended, and the forks whether the other ranks have come."""
LONGEST_ORDER = 1 << 20


def script() -> None:
    """Runs the file that is the first argument, as `python FILE ARGUMENTS…` does."""
    del sys.argv[0]
    sys.path[0] = os.path.dirname(os.path.realpath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")


PROGRAMS: dict[str, Callable[[], object]] = {
    "fidtool": command_line.process,
    "torchrun": torch.distributed.run.main,
    "script": script,
}


def work(order: dict[str, Any], descriptors: Sequence[int]) -> NoReturn:
    """The program, in this process, which has just been forked, as a fresh one would run it."""
    os.setsid()
    try:
        become(order, descriptors)
        PROGRAMS[order["program"]]()
        status = 0
    except SystemExit as ended:
        status = exit_status(ended.code)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # Python's own end takes a fork of torch two seconds; the tests with processes of their own see it.
    os._exit(status)


def become(order: dict[str, Any], descriptors: Sequence[int]) -> None:
    """Takes on what a fresh process would have been given."""
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    sys.argv = [order["program"], *order["arguments"]]
    more = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    sys.path[:1] = [order["folder"], *more]  # as `python -m` has it
    np.random.seed()  # the module `random` does so itself after a fork
    if threads := os.environ.get("OMP_NUM_THREADS"):  # torchrun's; it was read when torch was imported
        torch.set_num_threads(int(threads))
    for module in filter(None, map(sys.modules.get, ASKED_FOR_RANK)):
        module.rank_zero_only.rank = int(os.environ.get("RANK", 0))
    if sessions := os.environ.get("FIDTOOL_TEST_SESSIONS"):  # whoever started this process may be another's stand-in
        with open(sessions, "a") as file:
            file.write(f"{os.getpid()}\n")
    if "FIDTOOL_TEST_APART" in os.environ:
        live_apart()
    if sign := os.environ.get("FIDTOOL_TEST_SIGN"):
        blame_nobody_before(sign)
    if "FIDTOOL_TEST_PATIENT" in os.environ:  # to tell why it will not come, a rank imports torch
        replace(command_line, "_TELLING_SECONDS", 600.0)


def live_apart() -> None:
    """Lets every rank believe that it has a machine of its own, so that it cannot see the others' processes."""
    mine = dataclasses.replace(Process.current(), pid_namespace=f"machine of {os.getpid()}")
    replace(Process, "current", staticmethod(lambda: mine))


def blame_nobody_before(sign: str) -> None:
    """Until the file ``sign`` says that the fault has come, silence means that the machine is slow."""
    detect = Watchdog._detect
    replace(Watchdog, "_detect", lambda self, now: detect(self, now) if os.path.exists(sign) else None)


def exit_status(code: object) -> int:
    """What the interpreter makes of ``sys.exit(code)``."""
    if code is None or isinstance(code, int):
        return (code or 0) & 0xFF
    print(code, file=sys.stderr)
    return 1


def status_of(pid: int) -> int | None:
    """The exit status of a child, or None while it runs. It can be had once."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


@dataclasses.dataclass
class Client:
    """A process in whose place a child of this one works.

    Attributes:
        connection: to it.
        child: pid of the child; 0 before the order has come.
        gone: whether the process has ended before the child.
    """

    connection: socket.socket
    child: int = 0
    gone: bool = False

    def fileno(self) -> int:
        """For `select`."""
        return self.connection.fileno()

    def signal(self, number: int) -> None:
        """Sends the child and its own children a signal, as torchrun does."""
        try:
            os.killpg(self.child, number)
        except ProcessLookupError:  # it leads no group yet
            os.kill(self.child, number)

    def leave(self) -> bool:
        """Tells the process the child's status, if the child has ended; whether nothing is left to do."""
        status = status_of(self.child) if self.child else None
        if status is None and not (self.gone and not self.child):
            return False
        with contextlib.suppress(OSError):
            self.connection.send(str(status).encode())
        self.connection.close()
        return True


class Server:
    """Serves its stdin and a socket in turn, in one thread: a fork has none of the others.

    Attributes:
        clients: processes that wait for a child.
        question: the child that stdin's reader waits for, and until when.
    """

    def __init__(self, place: str) -> None:
        self.listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # keeps messages apart
        self.listening.bind(place)
        self.listening.listen()
        self.clients: list[Client] = []
        self.question: tuple[int, float] | None = None

    def serve(self) -> None:
        """Answers until an empty line or the end of stdin, and ends the clients' children then."""
        while True:
            sources = [sys.stdin, self.listening, *(client for client in self.clients if not client.gone)]
            waiting = self.clients or self.question
            for source in select.select(sources, [], [], POLL_SECONDS if waiting else None)[0]:
                if isinstance(source, Client):
                    self.hear(source)
                elif source is self.listening:
                    self.clients.append(Client(self.listening.accept()[0]))
                elif (line := sys.stdin.readline()).strip():
                    self.obey(json.loads(line))
                else:
                    return self.close()
            self.answer()
            self.clients = [client for client in self.clients if not client.leave()]

    def close(self) -> None:
        """Leaves nothing of a launcher that a test had to kill."""
        for client in self.clients:
            if client.child:
                client.signal(signal.SIGKILL)

    def obey(self, order: dict[str, Any]) -> None:
        """Does what a line of stdin says."""
        if "wait" in order:
            self.question = order["wait"], time.monotonic() + order["seconds"]
            return
        writing = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        outputs = [os.open(f"{order['output']}.{name}", writing) for name in ("out", "err")]
        print(self.start(order, [os.open(os.devnull, os.O_RDONLY), *outputs]), flush=True)

    def answer(self) -> None:
        """Says how the awaited child has ended, or that it has not in time."""
        if self.question is None:
            return
        pid, deadline = self.question
        status = status_of(pid)
        if status is not None or time.monotonic() > deadline:
            self.question = None
            print(json.dumps(status), flush=True)

    def hear(self, client: Client) -> None:
        """Takes a client's order, signals for its child, and its end."""
        message, descriptors, _, _ = socket.recv_fds(client.connection, LONGEST_ORDER, 3)
        if message and client.child:
            client.signal(message[0])
        elif message:
            client.child = self.start(json.loads(message), descriptors)
        else:
            client.gone = True
            if client.child:
                client.signal(signal.SIGKILL)

    def start(self, order: dict[str, Any], descriptors: Sequence[int]) -> int:
        """Forks a process, which leads a session of its own; its pid."""
        child = os.fork()
        if not child:
            for own in (self.listening, *(client.connection for client in self.clients)):
                own.close()
            work(order, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        return child


def warm_up(modules: Sequence[str]) -> None:
    """Imports and reads what the children will need: each would do so for itself."""
    assert torch.distributed.is_available()
    own = (module.name for module in pkgutil.walk_packages(fidtool.__path__, "fidtool."))
    for name in [*(name for name in own if not re.search(NOT_WARMED, name)), *FURTHER, *modules]:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    Image.preinit()
    # What is installed is read from hundreds of files, by each run several times; no test changes it.
    known = functools.cache(importlib.metadata.version)
    importlib.metadata.version = known
    replace(measure, "version", known)
    record.versions()
    importlib.metadata.entry_points = functools.cache(importlib.metadata.entry_points)  # type: ignore[assignment]
    importlib.metadata.entry_points(group="torch.distributed.backends")
    replace(rendezvous, "_LONGEST_POLL_SECONDS", POLL_SECONDS)
    replace(rendezvous, "_RETRY_SECONDS", POLL_SECONDS)


def main() -> None:
    """Warms up, and serves."""
    place, *modules = sys.argv[1:]
    warm_up(modules)
    assert threading.active_count() == 1, threading.enumerate()
    gc.freeze()  # children's collections need not touch, and so copy, what all share
    Server(place).serve()
    os._exit(0)  # Python's own end takes a second, and nanobind's complaints about what the libraries leave


if __name__ == "__main__":
    main()
