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

from conftest import make_pictures
from ranks import Rank, RankServer, left_of

FAULTY = f"{Path(__file__).parent / 'faulty_network.py'}:network"
PEER_TIMEOUT = 4
PROMPT = 30.0
"""Seconds within which every process must be gone, beyond the peer time-out where only silence tells."""


@dataclass
class End:
    """How a run of several ranks ended."""

    statuses: list[int | None]
    stdout: str
    stderr: str
    seconds: float
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

    def arguments(self, *more: object, fake: Path | None = None) -> list[str]:
        settings = ["--extractor", FAULTY, "--batch-size", "1", "--no-cache", "--quiet", "--json"]
        settings += ["--checkpoint", "kept", "--checkpoint-every", "0.1", "--peer-timeout", PEER_TIMEOUT]
        return list(map(str, ["compute", self.real, fake or self.fake, *settings, *more]))

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
                self.wait_for_work(variables.get("FORWARD_LOG"), len(ranks))
            except AssertionError:
                self.left(mark, sessions, before)
                raise
            act(ranks)
        started = time.monotonic()
        statuses = self.server.wait(ranks, PROMPT + 60)
        seconds = time.monotonic() - started
        output = "".join(rank.stdout for rank in ranks)
        errors = "".join(rank.stderr for rank in ranks)
        return End(statuses, output, errors, seconds, self.left(mark, sessions, before))

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
        started = time.monotonic()
        statuses = self.server.wait([launcher], PROMPT + 60)
        seconds = time.monotonic() - started
        left = self.left(mark, {launcher.pid}, before)
        return End(statuses, launcher.stdout, launcher.stderr, seconds, left)

    def left(self, mark: str, sessions: set[int], before: set[str]) -> list[object]:
        """What is still there a moment after the run has ended: processes, which are killed, and shared memory."""
        deadline = time.monotonic() + 5.0
        while (found := left_of(mark, sessions)) and time.monotonic() < deadline:
            time.sleep(0.1)
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        return [*found, *sorted(shared_memory() - before)]

    def wait_for_work(self, log: str | None = None, ranks: int = 1) -> None:
        """Until the first part of a checkpoint has been written, or every rank's lanes have gone on from a pass."""
        deadline = time.monotonic() + 60
        while not (self._all_at_work(Path(log), ranks) if log else list(self.folder.glob("kept/*.part.npz"))):
            assert time.monotonic() < deadline, "no rank has begun"
            time.sleep(0.02)

    @staticmethod
    def _all_at_work(log: Path, ranks: int) -> bool:
        passes = log.read_text() if log.exists() else ""
        return all(passes.count(str(rank)) >= 2 for rank in range(ranks))

    def resume(self) -> dict[str, Any]:
        """The run without faults, alone, from whatever the checkpoint holds."""
        (rank,) = self.server.start(self.arguments(), 1, FAULT_PACE="0")
        assert self.server.wait([rank], 60) == [0], rank.stderr
        result: dict[str, Any] = json.loads(rank.stdout)
        return result
