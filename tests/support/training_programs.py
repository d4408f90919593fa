"""Starts the programs in programs/, which use fidtool like training scripts, and the examples, with torchrun."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from support.command_line import Outcome
from support.places import EXAMPLES, PROGRAMS
from support.processes import PATIENCE
from support.ranks import Rank, RankServer


@dataclass
class Running:
    """A started program."""

    rank: Rank
    server: RankServer

    @property
    def stdout(self) -> str:
        return self.rank.stdout

    @property
    def stderr(self) -> str:
        return self.rank.stderr

    def status(self, seconds: float) -> int | None:
        """Return the launcher's exit status, or None if it still runs after ``seconds``."""
        return self.server.wait([self.rank], seconds)[0]

    def outcome(self) -> Outcome:
        """Wait for the program and return its outcome; fail if it hangs."""
        status = self.status(PATIENCE)
        if status is None:
            self.kill()
            raise AssertionError(f"it hangs:\n{self.stdout}\n{self.stderr}")
        return Outcome(status, self.stdout, self.stderr)

    def kill(self) -> None:
        """Kill the launcher and its ranks."""
        if self.status(0.0) is None:
            os.killpg(self.rank.pid, signal.SIGKILL)  # this includes the ranks' stand-ins, and thus their forks
            self.status(PATIENCE)


@dataclass
class Programs:
    """Starts programs in one environment and folder."""

    server: RankServer
    environment: dict[str, str]
    folder: Path

    def start(self, ranks: int, name: str, *arguments: object) -> Running:
        """Start ``torchrun --nproc-per-node=RANKS NAME ARGUMENTS``. The ranks are forks of `server`."""
        file = PROGRAMS / name if (PROGRAMS / name).exists() else EXAMPLES / name
        started = self.server.quick_torchrun(ranks, "script", [file, *arguments], self.environment, self.folder)
        return Running(started, self.server)

    def run(self, ranks: int, name: str, *arguments: object) -> Outcome:
        """Run a program and wait for its end."""
        return self.start(ranks, name, *arguments).outcome()
