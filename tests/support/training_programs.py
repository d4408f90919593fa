"""Starts the programs in programs/, which use fidtool like training scripts, and the examples, with torchrun."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from support.command_line import Outcome
from support.places import EXAMPLES, PROGRAMS
from support.ranks import RankServer


@dataclass
class Programs:
    """Starts programs in one environment and folder."""

    server: RankServer
    environment: dict[str, str]
    folder: Path

    def run(self, ranks: int, name: str, *arguments: object) -> Outcome:
        """Run ``torchrun --nproc-per-node=RANKS NAME ARGUMENTS``."""
        file = PROGRAMS / name if (PROGRAMS / name).exists() else EXAMPLES / name
        return self.server.torchrun(ranks, "script", [file, *arguments], self.environment, self.folder).outcome()
