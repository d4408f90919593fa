"""Processes that tests kill, stop and watch: ranks without a launcher, the command line, torchrun."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Any

from support.command_line import Outcome
from support.processes import PATIENCE, as_from_a_terminal, free_port, wait_until

SERVER = Path(__file__).parent / "rank_server.py"
CLIENT = Path(__file__).parent / "rank_client.py"


def left_of(mark: str, sessions: Collection[int] = ()) -> list[int]:
    """Return the living processes of a run on this machine.

    Args:
        mark: value of FIDTOOL_TEST_MARK in their environment.
        sessions: session ids of forked ranks, for which /proc shows the environment of the server.
    """
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
            state, _, _, session = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:4]
        except OSError:
            continue
        of_the_run = f"FIDTOOL_TEST_MARK={mark}".encode() in environment or int(session) in sessions
        if of_the_run and state not in "ZX":
            found.append(int(entry.name))
    return found


def children_of(pid: int) -> list[int]:
    """Return the living children of a process."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal():
                state, parent = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
                found += [int(entry.name)] if int(parent) == pid and state not in "ZX" else []
    return found


def exported(ranks: int) -> list[dict[str, str]]:
    """Return the variables that users set without a launcher: torchrun's, except for the local ones."""
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
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
    """A started process. It leads a session, so its pid is the session id."""

    pid: int
    output: Path
    status: int | None = None

    @property
    def stdout(self) -> str:
        return self.output.with_suffix(".out").read_text()

    @property
    def stderr(self) -> str:
        return self.output.with_suffix(".err").read_text()

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)


@dataclass(slots=True)
class RankServer:
    """Forks processes from one that has already imported torch, which saves seconds per process.

    Attributes:
        environment: environment of the ranks.
        folder: folder for the socket and the output of the processes.
        preload: modules to import in addition to torch; missing ones are skipped.
    """

    environment: dict[str, str]
    folder: InitVar[Path]
    preload: tuple[str, ...] = ()
    _outputs: Path = field(init=False)
    _server: subprocess.Popen[str] = field(init=False)
    _runs: int = 0

    def __post_init__(self, folder: Path) -> None:
        self._outputs = folder
        self._server = subprocess.Popen(
            [sys.executable, str(SERVER), str(self._outputs / "socket"), *self.preload],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=as_from_a_terminal,
        )

    def _ask(self, order: dict[str, Any]) -> Any:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(order) + "\n")
        self._server.stdin.flush()
        return json.loads(self._server.stdout.readline())

    def start(self, arguments: Sequence[object], ranks: int, folder: Path, **variables: str) -> list[Rank]:
        """Start ``ranks`` processes of ``fidtool ARGUMENTS`` in ``folder``; a single one without rank variables."""
        return self.start_each([arguments] * ranks, folder, **variables)

    def start_each(self, arguments: Sequence[Sequence[object]], folder: Path, **variables: str) -> list[Rank]:
        """Start one process per list of arguments."""
        alone = len(arguments) == 1
        return [
            self.launch("fidtool", own, {**self.environment, **({} if alone else place), **variables}, folder)
            for own, place in zip(arguments, exported(len(arguments)), strict=True)
        ]

    def launch(self, program: str, arguments: Sequence[object], environment: dict[str, str], folder: Path) -> Rank:
        """Start ``fidtool``, ``torchrun`` or ``script FILE`` with exactly this environment."""
        self._runs += 1
        output = self._outputs / f"run{self._runs}"
        order = {
            "program": program,
            "arguments": list(map(str, arguments)),
            "environment": environment,
            "folder": str(folder),
            "output": str(output),
        }
        return Rank(self._ask(order), output)

    def torchrun(
        self, ranks: int, command: Sequence[object], environment: dict[str, str], folder: Path, *options: str
    ) -> Rank:
        """Start torchrun, which starts ``ranks`` new interpreters."""
        # The interval at which torchrun checks its ranks; the default would delay the end of each run.
        launcher = [f"--nproc-per-node={ranks}", f"--master-port={free_port()}", "--monitor-interval=0.02", *options]
        return self.launch("torchrun", [*launcher, *command], environment, folder)

    def quick_torchrun(
        self,
        ranks: int,
        program: str,
        arguments: Sequence[object],
        environment: dict[str, str],
        folder: Path,
        *options: str,
    ) -> Rank:
        """Start torchrun with ``fidtool ARGUMENTS`` or ``script FILE ARGUMENTS``; the ranks are forks."""
        command = ["--no-python", *self.stand_in(program, arguments)]
        return self.torchrun(ranks, command, environment, folder, *options)

    def stand_in(self, program: str, arguments: Sequence[object]) -> list[str]:
        """Return the command of a process whose work a fork does."""
        socket = self._outputs / "socket"
        wait_until(socket.exists, "the server is still importing torch")
        return [sys.executable, "-I", "-S", str(CLIENT), str(socket), program, *map(str, arguments)]

    def wait(self, ranks: Sequence[Rank], seconds: float) -> list[int | None]:
        """Wait for all ranks, and return their exit statuses; None for ranks that still run after ``seconds``."""
        deadline = time.monotonic() + seconds
        for rank in ranks:
            if rank.status is None:
                rank.status = self._ask({"wait": rank.pid, "seconds": max(0.0, deadline - time.monotonic())})
        return [rank.status for rank in ranks]

    def close(self) -> None:
        assert self._server.stdin is not None
        self._server.stdin.write("\n")  # closing the pipe may not be enough: forks have inherited it
        self._server.stdin.close()
        self._server.wait(PATIENCE)


def finish(server: RankServer, started: Rank) -> Outcome:
    """Wait for a process, which must exit, and return its outcome."""
    (status,) = server.wait([started], PATIENCE)
    if status is None:
        os.killpg(started.pid, signal.SIGKILL)
        raise AssertionError(f"it hangs: {started.stderr}")
    return Outcome(status, started.stdout, started.stderr)
