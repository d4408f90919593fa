"""Starts processes quickly: a process that has imported torch forks children, each of which runs a
command line.

rank_server.py SOCKET MODULES… also imports these modules if they are installed.

A connection to SOCKET is one child. Its first message is the order, {"program": "fidtool",
"arguments": […], "environment": {…}, "folder": …}, with three descriptors: stdin, stdout and
stderr. The program may also be "torchrun", or "script", whose first argument is a file. The server
answers with the child's pid and, when it has exited, with its exit status (negative for a signal).
Other messages are signals for the child, which is killed when the connection is closed. The order
null ends the server.
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
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # the command line sets these before it imports torch
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # its threads spin, and every fork would start them again
import numpy as np
import scipy.linalg  # noqa: F401
import torch.distributed.elastic.rendezvous.static_tcp_rendezvous
import torch.distributed.run
import torchvision  # noqa: F401
from patching import replace
from PIL import Image

import fidtool
from fidtool.cli import main as command_line
from fidtool.distributed import rendezvous
from fidtool.distributed.watchdog import Process, Watchdog
from fidtool.settings import record

ASKED_FOR_RANK = ("lightning_utilities.core.rank_zero", "torchmetrics.utilities.prints")
"""Modules that read the rank when they are imported."""
FURTHER = ("encodings.idna",)
"""Modules that are otherwise imported late."""
NOT_WARMED = r"\.__main__$|^fidtool\.training\b"
"""Modules of fidtool that are not imported; training imports large libraries."""
POLL_SECONDS = 0.01
"""Interval at which the server checks for exited children, and the forks for the other ranks."""
LONGEST_ORDER = 1 << 20


def script() -> None:
    """Run the file that is the first argument, as `python FILE ARGUMENTS…` does."""
    del sys.argv[0]
    sys.path[0] = os.path.dirname(os.path.realpath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")


PROGRAMS: dict[str, Callable[[], object]] = {
    "fidtool": command_line.process,
    "torchrun": torch.distributed.run.main,
    "script": script,
}


def work(order: dict[str, Any], descriptors: Sequence[int]) -> NoReturn:
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
    # The interpreter's normal exit takes two seconds in a fork of torch. Tests with new
    # interpreters cover it.
    os._exit(status)


def become(order: dict[str, Any], descriptors: Sequence[int]) -> None:
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    sys.argv = [order["program"], *order["arguments"]]
    more = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    sys.path[:1] = [order["folder"], *more]  # as `python -m` does
    np.random.seed()  # the module `random` reseeds itself after a fork
    if threads := os.environ.get("OMP_NUM_THREADS"):  # set by torchrun; torch read it on import
        torch.set_num_threads(int(threads))
    for module in filter(None, map(sys.modules.get, ASKED_FOR_RANK)):
        module.rank_zero_only.rank = int(os.environ.get("RANK", 0))
    if sessions := os.environ.get("FIDTOOL_TEST_SESSIONS"):
        with open(sessions, "a") as file:
            file.write(f"{os.getpid()}\n")
    if "FIDTOOL_TEST_APART" in os.environ:
        live_apart()
    if sign := os.environ.get("FIDTOOL_TEST_SIGN"):
        ignore_silence_before(sign)
    # A rank that cannot join imports torch to report why, which can take long.
    if "FIDTOOL_TEST_PATIENT" in os.environ:
        replace(command_line, "REPORT_SECONDS", 600.0)


def live_apart() -> None:
    """Make every rank believe that it is alone on its machine, so that it cannot see the other
    ranks' processes.
    """
    mine = Process.current()._replace(pid_namespace=f"machine of {os.getpid()}")
    replace(Process, "current", staticmethod(lambda: mine))


def ignore_silence_before(sign: str) -> None:
    """Ignore silent ranks until the file ``sign`` exists, which shows that the fault has
    happened.
    """
    detect = Watchdog.detect_failure
    replace(
        Watchdog,
        "detect_failure",
        lambda self, now: detect(self, now) if os.path.exists(sign) else None,
    )


def exit_status(code: object) -> int:
    if code is None or isinstance(code, int):
        return (code or 0) & 0xFF
    print(code, file=sys.stderr)
    return 1


def status_of(pid: int) -> int | None:
    """Return the exit status of a child, or None while it runs. The status can be read once."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


@dataclasses.dataclass
class Client:
    """A connection, and the child that it has ordered."""

    connection: socket.socket
    child: int = 0  # its pid; 0 before the order has arrived
    gone: bool = False  # whether the connection has been closed before the child has exited

    def fileno(self) -> int:
        return self.connection.fileno()

    def tell(self, number: int) -> None:
        with contextlib.suppress(OSError):
            self.connection.send(str(number).encode())

    def signal(self, number: int) -> None:
        """Send a signal to the child and its children, as torchrun does."""
        try:
            os.killpg(self.child, number)
        except ProcessLookupError:  # it is not a group leader yet
            os.kill(self.child, number)

    def leave(self) -> bool:
        """Report the child's status if it has exited; return whether nothing is left to do."""
        status = status_of(self.child) if self.child else None
        if status is None and not (self.gone and not self.child):
            return False
        self.tell(status or 0)
        self.connection.close()
        return True


class Server:
    """Serves all connections in one thread: a fork would not have the other threads."""

    def __init__(self, place: str) -> None:
        # Preserves message boundaries.
        self.listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listening.bind(f"{place}.new")
        self.listening.listen()
        os.rename(f"{place}.new", place)  # only now can clients find it
        self.clients: list[Client] = []
        self.ended = False

    def serve(self) -> None:
        while not self.ended:
            sources = [self.listening, *(client for client in self.clients if not client.gone)]
            for source in select.select(sources, [], [], POLL_SECONDS if self.clients else None)[0]:
                if isinstance(source, Client):
                    self.hear(source)
                else:
                    self.clients.append(Client(self.listening.accept()[0]))
            self.clients = [client for client in self.clients if not client.leave()]
        for client in self.clients:
            if client.child:
                client.signal(signal.SIGKILL)

    def hear(self, client: Client) -> None:
        """Handle a message of a client: its order, a signal for its child, or its end."""
        message, descriptors, _, _ = socket.recv_fds(client.connection, LONGEST_ORDER, 3)
        if message and client.child:
            client.signal(message[0])
        elif message and (order := json.loads(message)):
            client.child = self.start(order, descriptors)
            client.tell(client.child)
        elif message:
            self.ended = True
        else:
            client.gone = True
            if client.child:
                client.signal(signal.SIGKILL)

    def start(self, order: dict[str, Any], descriptors: Sequence[int]) -> int:
        """Fork a process that leads a new session, and return its pid."""
        child = os.fork()
        if not child:
            for own in (self.listening, *(client.connection for client in self.clients)):
                own.close()
            work(order, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        return child


def warm_up(modules: Sequence[str]) -> None:
    """Import and read in advance what every child needs."""
    assert torch.distributed.is_available()
    own = (module.name for module in pkgutil.walk_packages(fidtool.__path__, "fidtool."))
    for name in [*(name for name in own if not re.search(NOT_WARMED, name)), *FURTHER, *modules]:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    Image.preinit()
    # Each run reads the metadata of installed packages from hundreds of files. No test changes
    # them.
    importlib.metadata.version = functools.cache(importlib.metadata.version)
    record.versions()
    importlib.metadata.entry_points = functools.cache(importlib.metadata.entry_points)  # type: ignore[assignment]
    importlib.metadata.entry_points(group="torch.distributed.backends")
    replace(rendezvous, "MAX_POLL_SECONDS", POLL_SECONDS)
    replace(rendezvous, "RETRY_SECONDS", POLL_SECONDS)


def main() -> None:
    place, *modules = sys.argv[1:]
    warm_up(modules)
    assert threading.active_count() == 1, threading.enumerate()
    gc.freeze()  # so that garbage collection in children does not copy shared pages
    Server(place).serve()
    os._exit(0)  # the normal exit takes a second, and nanobind would report leaks


if __name__ == "__main__":
    main()
