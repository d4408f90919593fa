"""Processes that tests kill, stop and watch: ranks without a launcher, the command line,
torchrun.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.command_line import Outcome
from support.processes import PATIENCE, as_from_a_terminal, free_port, wait_until

SERVER = Path(__file__).parent / "rank_server.py"
CLIENT = Path(__file__).parent / "rank_client.py"


def _living() -> list[tuple[int, int, int]]:
    """Return the process, parent and session ids of the living processes on this machine."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent, _, session = (
                file.read_text(errors="replace").rpartition(")")[2].split()[:4]
            )
            found += (
                [(int(file.parent.name), int(parent), int(session))] if state not in "ZX" else []
            )
    return found


def left_of(sessions: Collection[int]) -> list[int]:
    """Return the living processes of these sessions."""
    return [pid for pid, _, session in _living() if session in sessions]


def children_of(pid: int) -> list[int]:
    """Return the living children of a process."""
    return [child for child, parent, _ in _living() if parent == pid]


def exported(ranks: int) -> list[dict[str, str]]:
    """Return the variables that users set without a launcher: torchrun's, except for the local
    ones.
    """
    meeting = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(ranks),
    }
    return [{**meeting, "RANK": str(rank)} for rank in range(ranks)]


def own_interpreters(
    command: Sequence[str], environments: Sequence[dict[str, str]], folder: Path
) -> list[subprocess.Popen[str]]:
    """Start one new process per rank, ``python COMMAND``, in ``folder``."""
    return [
        subprocess.Popen(
            [sys.executable, *command],
            env=environment,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=as_from_a_terminal,
        )
        for environment in environments
    ]


@dataclass
class Rank:
    """A started process. It leads a session, so its pid is the session id. It does not survive this
    object.
    """

    pid: int
    output: Path
    server: socket.socket
    status: int | None = None

    @property
    def stdout(self) -> str:
        return self.output.with_suffix(".out").read_text()

    @property
    def stderr(self) -> str:
        return self.output.with_suffix(".err").read_text()

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self, seconds: float = PATIENCE) -> int | None:
        """Wait for the process, and return its exit status; None if it still runs after
        ``seconds``.
        """
        if self.status is None:
            self.server.settimeout(seconds)
            with contextlib.suppress(TimeoutError, BlockingIOError):
                self.status = int(self.server.recv(16))
        return self.status

    def outcome(self) -> Outcome:
        """Wait for the process, which must exit, and return its outcome."""
        status = self.wait()
        if status is None:
            self.kill()
            raise AssertionError(f"it hangs:\n{self.stdout}\n{self.stderr}")
        return Outcome(status, self.stdout, self.stderr)

    def kill(self) -> None:
        """Kill the process and its process group. Forks of torchrun's ranks end with it."""
        if self.wait(0.0) is None:
            os.killpg(self.pid, signal.SIGKILL)
            self.wait()


def outcomes(ranks: Sequence[Rank]) -> list[Outcome]:
    return [rank.outcome() for rank in ranks]


class RankServer:
    """Forks processes from one that has already imported torch, which saves seconds per process.

    Args:
        environment: environment of the server.
        folder: folder for the socket and the output of the processes.
        preload: modules to import in addition to torch; missing ones are skipped.
    """

    def __init__(
        self, environment: dict[str, str], folder: Path, preload: Sequence[str] = ()
    ) -> None:
        self.environment, self._folder, self._runs = environment, folder, 0
        self._socket = folder / "socket"
        self._server = subprocess.Popen(
            [sys.executable, str(SERVER), str(self._socket), *preload],
            env=environment,
            preexec_fn=as_from_a_terminal,
        )

    def _ready(self) -> bool:
        assert self._server.poll() is None, "the server has failed"
        return self._socket.exists()

    def _connect(self) -> socket.socket:
        wait_until(self._ready, "the server is still importing torch")
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect(str(self._socket))
        return connection

    def launch(
        self, program: str, arguments: Sequence[object], environment: dict[str, str], folder: Path
    ) -> Rank:
        """Start ``fidtool``, ``torchrun`` or ``script FILE`` with exactly this environment."""
        self._runs += 1
        output, connection = self._folder / f"run{self._runs}", self._connect()
        order = {"program": program, "arguments": list(map(str, arguments))}
        order |= {"environment": environment, "folder": str(folder)}
        with (
            open(os.devnull) as nothing,
            open(f"{output}.out", "w") as out,
            open(f"{output}.err", "w") as errors,
        ):
            streams = [stream.fileno() for stream in (nothing, out, errors)]
            socket.send_fds(connection, [json.dumps(order).encode()], streams)
        return Rank(int(connection.recv(16)), output, connection)

    def ranks(
        self,
        program: str,
        arguments: Sequence[Sequence[object]],
        environment: dict[str, str],
        folder: Path,
    ) -> list[Rank]:
        """Start one process per list of arguments without a launcher; a single one without rank
        variables.
        """
        places = exported(len(arguments)) if len(arguments) > 1 else [{}]
        return [
            self.launch(program, own, {**place, **environment}, folder)
            for own, place in zip(arguments, places, strict=True)
        ]

    def torchrun(
        self,
        ranks: int,
        program: str,
        arguments: Sequence[object],
        environment: dict[str, str],
        folder: Path,
        *options: str,
    ) -> Rank:
        """Start torchrun with ``fidtool ARGUMENTS`` or ``script FILE ARGUMENTS``; the ranks are
        forks.
        """
        # The interval at which torchrun checks its ranks; the default would delay the end of each
        # run.
        launcher = [
            f"--nproc-per-node={ranks}",
            f"--master-port={free_port()}",
            "--monitor-interval=0.02",
            *options,
        ]
        command = ["--no-python", *self.stand_in(program, arguments)]
        return self.launch("torchrun", [*launcher, *command], environment, folder)

    def stand_in(self, program: str, arguments: Sequence[object]) -> list[str]:
        """Return the command of a process whose work a fork does."""
        wait_until(self._ready, "the server is still importing torch")
        return [
            sys.executable,
            "-I",
            "-S",
            str(CLIENT),
            str(self._socket),
            program,
            *map(str, arguments),
        ]

    def close(self) -> None:
        """End the server and all processes."""
        self._connect().send(b"null")
        self._server.wait(PATIENCE)
