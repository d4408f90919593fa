"""Runs one job on several ranks, under torchrun or by hand, with a fault, and looks for what that leaves behind."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.pictures import make_pictures
from support.places import FAULTY
from support.processes import PATIENCE, wait_until
from support.ranks import Rank, RankServer, left_of

PEER_TIMEOUT = 4
"""Of the runs in which a rank falls silent, which alone tells that it is lost."""
PATIENT = 600
"""Of the others, in which no rank shall be taken for lost because the machine is slow."""
LEAVING = 120.0
"""Seconds in which what a run has started must have gone after it."""


@dataclass
class End:
    """How a run of several ranks ended."""

    statuses: list[int | None]
    stdout: str
    stderr: str
    left: list[object]

    @property
    def own_words(self) -> str:
        """What the ranks said; torchrun adds a report and a traceback of its own."""
        return re.split(r"^.*torch/distributed/elastic/", self.stderr, maxsplit=1, flags=re.MULTILINE)[0]

    @property
    def causes(self) -> list[str]:
        return re.findall(r"^error: .*", self.stderr, re.MULTILINE)


def shared_memory() -> set[str]:
    """Names of what processes of Python and torch keep in shared memory."""
    places = ("torch_*", "psm_*", "sem.*")
    return {file.name for place in places for file in Path("/dev/shm").glob(place)}


class Arena:
    """Runs the same job under either launcher, with faults, and looks for what they leave behind."""

    def __init__(self, server: RankServer, folder: Path, environment: dict[str, str]) -> None:
        self.server, self.folder, self.environment = server, folder, environment
        self.real = make_pictures(folder / "real", 40, 1)
        self.fake = make_pictures(folder / "fake", 40, 2)
        self.sign = folder / "the fault has come"

    def arguments(
        self, *more: object, fake: Path | None = None, kept: str = "kept", every: float = 0.1, peer: int = PATIENT
    ) -> list[str]:
        settings = ["--extractor", FAULTY, "--batch-size", "1", "--no-cache", "--quiet", "--json"]
        settings += ["--checkpoint", kept, "--checkpoint-every", every, "--peer-timeout", peer]
        return list(map(str, ["compute", self.real, fake or self.fake, *settings, *more]))

    @property
    def silence(self) -> dict[str, str]:
        """Variables of a run in which a rank falls silent: before it does, no rank is taken for lost."""
        return {"FIDTOOL_TEST_SIGN": str(self.sign)}

    def by_hand(
        self, arguments: list[list[str]], act: Callable[[list[Rank]], None] | None = None, **variables: str
    ) -> End:
        """One process a rank; ``act`` is done to them once they are at work."""
        mark = uuid.uuid4().hex
        before = shared_memory()
        ranks = self.server.start_each(arguments, FIDTOOL_TEST_MARK=mark, **variables)
        sessions = {rank.pid for rank in ranks}
        if act is not None:
            try:
                self.wait_for_work(variables.get("ADDED_LOG"), len(ranks))
                act(ranks)
            except AssertionError:
                self.left(mark, sessions, before, 0.0)
                raise
        statuses = self.server.wait(ranks, PATIENCE)
        output = "".join(rank.stdout for rank in ranks)
        errors = "".join(rank.stderr for rank in ranks)
        left = self.left(mark, sessions, before, 0.0 if None in statuses else LEAVING)
        return End(statuses, output, errors, left)

    def torchrun(
        self,
        arguments: list[str],
        ranks: int,
        act: Callable[[Rank], None] | None = None,
        shell: str = "",
        fresh: bool = False,
        **variables: str,
    ) -> End:
        """Under torchrun; ``shell`` is a script that ends in the command, for ranks that differ.

        The ranks are forks, of which a stand-in with the run's mark tells as long as they live; or interpreters of
        their own if ``fresh``, where processes that they leave behind shall be found, too.
        """
        mark = uuid.uuid4().hex
        rank = [sys.executable, "-m", "fidtool", *arguments] if fresh else self.server.stand_in("fidtool", arguments)
        command = ["--no-python", *(["sh", "-c", f'{shell} exec "$0" "$@"'] if shell else []), *rank]
        before = shared_memory()
        environment = {**self.environment, "FIDTOOL_TEST_MARK": mark, **variables}
        launcher = self.server.torchrun(ranks, command, environment, self.folder)
        if act is not None:
            self.wait_for_work()
            act(launcher)
        statuses = self.server.wait([launcher], PATIENCE)
        left = self.left(mark, {launcher.pid}, before, 0.0 if None in statuses else LEAVING)
        return End(statuses, launcher.stdout, launcher.stderr, left)

    def left(self, mark: str, sessions: set[int], before: set[str], patience: float) -> list[object]:
        """What is still there ``patience`` after the run has ended: processes, which are killed, and shared memory."""
        deadline = time.monotonic() + patience
        while (found := left_of(mark, sessions)) and time.monotonic() < deadline:
            time.sleep(0.1)
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        return [*found, *sorted(shared_memory() - before)]

    def wait_for_work(self, log: str | None = None, ranks: int = 1) -> None:
        """Until the first part of a checkpoint has been written, or every rank has added what a pass gave."""

        def all_at_work() -> bool:
            if log is None:
                return any(self.folder.glob("kept/*.part.npz"))
            return Path(log).exists() and set(Path(log).read_text()) >= set(map(str, range(ranks)))

        wait_until(all_at_work, "no rank has begun")

    def resume(self) -> dict[str, Any]:
        """The run without faults, alone, from whatever the checkpoint holds."""
        (rank,) = self.server.start(self.arguments(), 1, FAULT_PACE="0")
        assert self.server.wait([rank], PATIENCE) == [0], rank.stderr
        result: dict[str, Any] = json.loads(rank.stdout)
        return result
