"""Ranks started by hand: one process each, RANK and WORLD_SIZE set, to be killed, stopped and watched by a test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conftest import free_port

SERVER = Path(__file__).parent / "rank_server.py"


def processes_with(mark: str) -> list[int]:
    """Living processes of this machine that carry the environment variable FIDTOOL_TEST_MARK=``mark``."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
            state = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        except OSError:
            continue
        if f"FIDTOOL_TEST_MARK={mark}".encode() in environment and state not in "ZX":
            found.append(int(entry.name))
    return found


@dataclass
class Rank:
    """One started process."""

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
        """Sends it a signal."""
        os.kill(self.pid, number)


@dataclass
class RankServer:
    """Forks ranks from a process that has imported torch already: a second saved for every rank of every run."""

    environment: dict[str, str]
    folder: Path
    _server: subprocess.Popen[str] = field(init=False)
    _runs: int = 0

    def __post_init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, str(SERVER)],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _ask(self, order: dict[str, Any]) -> Any:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(order) + "\n")
        self._server.stdin.flush()
        return json.loads(self._server.stdout.readline())

    def start(self, arguments: Sequence[object], ranks: int, **variables: str) -> list[Rank]:
        """Starts ``ranks`` processes of ``fidtool ARGUMENTS``; with one rank, plainly."""
        return self.start_each([arguments] * ranks, **variables)

    def start_each(self, arguments: Sequence[Sequence[object]], **variables: str) -> list[Rank]:
        """Starts one process for each list of arguments."""
        self._runs += 1
        size = len(arguments)
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(size)}
        started = []
        for rank, own in enumerate(arguments):
            place = {**meeting, "RANK": str(rank)} if size > 1 else {}
            output = self.folder / f"run{self._runs}-rank{rank}"
            order = {
                "arguments": list(map(str, own)),
                "environment": {**self.environment, **place, **variables},
                "folder": str(self.folder),
                "output": str(output),
            }
            started.append(Rank(self._ask(order), output))
        return started

    def wait(self, ranks: Sequence[Rank], seconds: float) -> list[int | None]:
        """Exit statuses once all have ended, or None for those that still run after ``seconds``."""
        deadline = time.monotonic() + seconds
        for rank in ranks:
            if rank.status is None:
                rank.status = self._ask({"wait": rank.pid, "seconds": max(0.0, deadline - time.monotonic())})
        return [rank.status for rank in ranks]

    def close(self) -> None:
        """Ends the server."""
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait(20)
