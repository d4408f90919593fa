"""The processes of a run, as far as one machine can see: who still lives, who is frozen. Imports no torch."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    """A rank's process, by what tells it from all others.

    Attributes:
        host: name of its machine.
        pid: its number there.
        space: the machine's boot and the namespace that ``pid`` counts in; empty where there is no /proc.
        started: when it began, in the kernel's ticks: a number can be given again.
    """

    host: str
    pid: int
    space: str = ""
    started: str = ""

    @staticmethod
    def this() -> Process:
        """The calling process."""
        pid = os.getpid()
        try:
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            space = f"{boot} {os.readlink('/proc/self/ns/pid')}"
            return Process(socket.gethostname(), pid, space, _fields(pid)[1])
        except OSError:
            return Process(socket.gethostname(), pid)

    def is_neighbour_of(self, other: Process) -> bool:
        """Whether each can see the other in /proc."""
        return bool(self.space) and self.space == other.space

    def gone(self) -> bool:
        """Whether this neighbour of the calling process has ended; a zombie has."""
        try:
            state, started = _fields(self.pid)
        except (FileNotFoundError, ProcessLookupError):
            return True
        except OSError:  # this process has too many files open, perhaps
            return False
        return state in "ZX" or started != self.started

    def kill(self) -> None:
        """Ends a neighbour that no longer answers, frozen ones too."""
        if not self.gone():
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def _fields(pid: int) -> tuple[str, str]:
    """State and start time in /proc/PID/stat; the name before them may hold spaces and brackets."""
    rest = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return rest[0], rest[19]
