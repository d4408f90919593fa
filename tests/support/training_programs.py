"""Starts the programs in programs/ under torchrun: what people's own training scripts do with fidtool."""

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
    """A program that was started."""

    rank: Rank
    server: RankServer

    @property
    def stdout(self) -> str:
        return self.rank.stdout

    @property
    def stderr(self) -> str:
        return self.rank.stderr

    def status(self, seconds: float) -> int | None:
        """The launcher's exit status, or None if it still runs after ``seconds``."""
        return self.server.wait([self.rank], seconds)[0]

    def outcome(self) -> Outcome:
        """What it left behind; fails where it does not end."""
        status = self.status(PATIENCE)
        if status is None:
            self.kill()
            raise AssertionError(f"it hangs:\n{self.stdout}\n{self.stderr}")
        return Outcome(status, self.stdout, self.stderr)

    def kill(self) -> None:
        """Ends the launcher and its ranks, whatever they are stuck in."""
        if self.status(0.0) is None:
            os.killpg(self.rank.pid, signal.SIGKILL)  # the ranks' stand-ins go with it, and their forks with them
            self.status(PATIENCE)


@dataclass
class Programs:
    """The programs, with an environment and a folder for all."""

    server: RankServer
    environment: dict[str, str]
    folder: Path

    def start(self, ranks: int, name: str, *arguments: object) -> Running:
        """Starts ``torchrun --nproc-per-node=RANKS NAME ARGUMENTS``; the ranks are forks of a warmed interpreter."""
        file = PROGRAMS / name if (PROGRAMS / name).exists() else EXAMPLES / name
        started = self.server.quick_torchrun(ranks, "script", [file, *arguments], self.environment, self.folder)
        return Running(started, self.server)

    def run(self, ranks: int, name: str, *arguments: object) -> Outcome:
        """Runs it to its end."""
        return self.start(ranks, name, *arguments).outcome()
