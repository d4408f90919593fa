"""Runs one job on several ranks, with or without torchrun, with a fault, and finds processes and
memory left behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.command_line import Outcome
from support.places import FAULTY
from support.processes import wait_until
from support.ranks import Rank, RankServer, left_of

PEER_TIMEOUT = 4
"""Value of --peer-timeout for runs in which a rank falls silent: only the silence shows that it is
lost.
"""
PATIENT = 600
"""Value of --peer-timeout for all other runs: no rank may be considered lost because the machine is
slow.
"""
LEAVING = 120.0
"""Seconds after a run until its processes and shared memory must be gone."""


@dataclass
class End:
    """Outcome of a run on several ranks."""

    statuses: list[int | None]
    stdout: str
    stderr: str
    left: list[object]

    @property
    def own_words(self) -> str:
        """Stderr of the ranks, without torchrun's own report and traceback."""
        return re.split(
            r"^.*torch/distributed/elastic/", self.stderr, maxsplit=1, flags=re.MULTILINE
        )[0]

    @property
    def causes(self) -> list[str]:
        return re.findall(r"^error: .*", self.stderr, re.MULTILINE)

    @property
    def recorded(self) -> list[int]:
        """Exit status in the JSON that rank zero prints; empty if that rank was killed."""
        return [
            int(code)
            for code in re.findall(r'^  "exit": {\n    "code": (\d+),', self.stdout, re.MULTILINE)
        ]


def abandoned_memory() -> set[str]:
    """Return the names of the shared memory of processes that have exited.

    torch removes a name right after creating it. A process that is killed in between leaves one
    name, which fidtool cannot prevent. A process that did not remove its names would leave several.
    """
    names = {file.name: file.name.split("_")[1] for file in Path("/dev/shm").glob("torch_*_*")}
    creators = Counter(names.values())
    return {
        name for name, pid in names.items() if creators[pid] > 1 and not Path("/proc", pid).exists()
    }


@dataclass
class Begun:
    """A started run. Runs that mostly wait can run at the same time.

    Attributes:
        arena: the arena of the run.
        ranks: processes of the ranks, or the launcher.
        forks: file with the session ids of torchrun's ranks.
        before: abandoned shared memory that existed before.
    """

    arena: Arena
    ranks: list[Rank]
    forks: Path
    before: set[str]

    def end(self) -> End:
        """Wait for the end of the run; kill processes that time out."""
        statuses = [rank.wait() for rank in self.ranks]
        sessions = {rank.pid for rank in self.ranks}
        if self.forks.exists():
            sessions |= set(map(int, self.forks.read_text().split()))
        left = left_behind(sessions, self.before, 0.0 if None in statuses else LEAVING)
        output = "".join(rank.stdout for rank in self.ranks)
        errors = "".join(rank.stderr for rank in self.ranks)
        return End(statuses, output, errors, left)


def left_behind(sessions: set[int], before: set[str], patience: float) -> list[object]:
    """Return what is left ``patience`` seconds after a run: processes, which are killed, and shared
    memory.
    """
    deadline = time.monotonic() + patience
    while (processes := left_of(sessions)) or abandoned_memory() - before:
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return [*processes, *sorted(abandoned_memory() - before)]


class Arena:
    """Runs the same job with or without torchrun, with faults."""

    def __init__(self, server: RankServer, folder: Path, sets: tuple[Path, Path]) -> None:
        self.server, self.folder = server, folder
        self.real, self.fake = sets
        self.sign = folder / "the fault has come"

    def arguments(
        self, *more: object, fake: Path | None = None, peer: int = PATIENT
    ) -> list[object]:
        settings = ["--extractor", FAULTY, "--batch-size", "1", "--no-cache", "--quiet", "--json"]
        keeping = ["--checkpoint", "kept", "--peer-timeout", peer]
        return ["compute", self.real, fake or self.fake, *settings, *keeping, *more]

    @property
    def silence(self) -> dict[str, str]:
        """Return variables for a run in which a rank falls silent. Before that, no rank is
        considered lost.
        """
        return {"FIDTOOL_TEST_SIGN": str(self.sign)}

    def begin_each(self, arguments: list[list[object]], **variables: str) -> Begun:
        """Start one rank per list of arguments, without a launcher."""
        before, environment = abandoned_memory(), {**self.server.environment, **variables}
        ranks = self.server.ranks("fidtool", arguments, environment, self.folder)
        return Begun(self, ranks, self.folder / "no forks", before)

    def begin(self, launcher: str, arguments: list[object], ranks: int, **variables: str) -> Begun:
        """Start ranks with the same arguments. torchrun's ranks are forks, which write down their
        session ids.
        """
        if launcher != "torchrun":
            return self.begin_each([arguments] * ranks, **variables)
        forks, before = self.folder / uuid.uuid4().hex, abandoned_memory()
        environment = {**self.server.environment, "FIDTOOL_TEST_SESSIONS": str(forks), **variables}
        started = self.server.torchrun(ranks, "fidtool", arguments, environment, self.folder)
        return Begun(self, [started], forks, before)

    def run(
        self,
        launcher: str,
        arguments: list[object],
        ranks: int,
        act: Callable[[list[Rank]], None] | None = None,
        **variables: str,
    ) -> End:
        """Start a run, call ``act`` with the ranks or the launcher once work is done, and wait for
        the end.
        """
        begun = self.begin(launcher, arguments, ranks, **variables)
        if act is not None:
            self.wait_for_work(variables.get("ADDED_LOG"), ranks)
            act(begun.ranks)
        return begun.end()

    def wait_for_work(self, log: str | None, ranks: int) -> None:
        """Wait until the first part of a checkpoint is written, or every rank has added the
        features of a pass.
        """

        def all_at_work() -> bool:
            if log is None:
                return any(self.folder.glob("kept/*.npz"))
            return Path(log).exists() and set(Path(log).read_text()) >= set(map(str, range(ranks)))

        wait_until(all_at_work, "no rank has started")

    def alone(self, arguments: list[object]) -> Outcome:
        """Run a single process without faults, which must succeed."""
        outcome = self.begin_each([arguments], FAULT_PACE="0").ranks[0].outcome()
        assert outcome.status == 0, outcome.stderr
        return outcome

    def resume(self) -> dict[str, Any]:
        """Resume the run from the checkpoint, and return its JSON."""
        result: dict[str, Any] = json.loads(self.alone(self.arguments()).stdout)
        return result
