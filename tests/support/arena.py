"""Runs one job on several ranks, under torchrun or by hand, with a fault, and looks for what that leaves behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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

    @property
    def recorded(self) -> list[int]:
        """The exit status that the JSON has, which rank zero prints; nothing where that rank was killed."""
        return [int(code) for code in re.findall(r'^  "exit": {\n    "code": (\d+),', self.stdout, re.MULTILINE)]


def statuses(launcher: str, ranks: int, status: int = 1, killed: int | None = None) -> list[int]:
    """What a failed run ends with: the cause's status on every rank but one that was killed; torchrun's own is 1."""
    if launcher == "torchrun":
        return [1]
    return [-signal.SIGKILL if rank == killed else status for rank in range(ranks)]


def shared_memory() -> set[str]:
    """Names of what processes of Python and torch keep in shared memory."""
    places = ("torch_*", "psm_*", "sem.*")
    return {file.name for place in places for file in Path("/dev/shm").glob(place)}


def _mapped() -> set[str]:
    """Names of what living processes have in their memory."""
    found = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            found |= set(re.findall(r" /dev/shm/(\S+)$", maps.read_text(errors="replace"), re.MULTILINE))
    return found


def _lasting(names: set[str]) -> set[str]:
    """Those that are not the only one of a process that has ended.

    torch takes a name away as soon as it has made it. A process that is killed in between leaves that one, and nothing
    in the program can help it; one that did not take its names away would leave each.
    """
    creators = Counter(match.group(1) for name in names if (match := re.match(r"torch_(\d+)_", name)))
    single = {pid for pid, count in creators.items() if count == 1 and not Path("/proc", pid).exists()}
    return {name for name in names if not name.startswith(tuple(f"torch_{pid}_" for pid in single))}


@dataclass
class Begun:
    """A run that has been started: runs that mostly wait can do so beside each other.

    Attributes:
        arena: where it runs.
        ranks: its processes, or the launcher.
        mark: value of FIDTOOL_TEST_MARK in its processes.
        before: the shared memory that there was.
        ended: whether its end has been waited for: its process ids may be others' since.
    """

    arena: Arena
    ranks: list[Rank]
    mark: str
    before: set[str]
    ended: bool = False

    def end(self) -> End:
        """Waits for the end; kills what does not come to one."""
        statuses = self.arena.server.wait(self.ranks, PATIENCE)
        left = self._left(0.0 if None in statuses else LEAVING)
        self.ended = True
        output = "".join(rank.stdout for rank in self.ranks)
        errors = "".join(rank.stderr for rank in self.ranks)
        return End(statuses, output, errors, left)

    def _left(self, patience: float) -> list[object]:
        sessions = {rank.pid for rank in self.ranks}
        forks = self.arena.folder / self.mark
        if forks.exists():
            sessions |= set(map(int, forks.read_text().split()))
        return self.arena.left(self.mark, sessions, self.before, patience)

    def kill(self) -> None:
        """Ends it, wherever it is, unless it has ended."""
        if self.ended:
            return
        self._left(0.0)
        self.arena.server.wait(self.ranks, PATIENCE)
        self.ended = True

    @contextlib.contextmanager
    def killed_on_failure(self) -> Iterator[None]:
        """For the length of a ``with`` block in which the test asks something of it."""
        try:
            yield
        except AssertionError:
            self.kill()
            raise


class Ahead:
    """Runs that are begun a little before their tests come: each waits more than it works, so they do it together.

    Args:
        arenas: makes a new arena for each.
        runs: how to begin them, in the order of the tests.
        at_once: so many are on their way.
    """

    def __init__(self, arenas: Callable[[], Arena], runs: Mapping[str, Callable[[Arena], Begun]], at_once: int) -> None:
        self._arenas, self._runs, self._at_once = arenas, runs, at_once
        self._begun: dict[str, Begun] = {}

    def __getitem__(self, name: str) -> Begun:
        """The run of this name."""
        names = list(self._runs)
        place = names.index(name)
        for coming in names[place : place + self._at_once]:
            if coming not in self._begun:
                self._begun[coming] = self._runs[coming](self._arenas())
        return self._begun[name]

    def close(self) -> None:
        """Ends those that no test has looked at."""
        for run in self._begun.values():
            run.kill()


class Arena:
    """Runs the same job under either launcher, with faults, and looks for what they leave behind."""

    def __init__(self, server: RankServer, folder: Path, sets: tuple[Path, Path]) -> None:
        self.server, self.folder, self.environment = server, folder, server.environment
        self.real, self.fake = sets
        self.sign = folder / "the fault has come"

    def arguments(
        self, *more: object, fake: Path | None = None, kept: str = "kept", every: float = 0.01, peer: int = PATIENT
    ) -> list[str]:
        settings = ["--extractor", FAULTY, "--batch-size", "1", "--no-cache", "--quiet", "--json"]
        settings += ["--checkpoint", kept, "--checkpoint-every", every, "--peer-timeout", peer]
        return list(map(str, ["compute", self.real, fake or self.fake, *settings, *more]))

    @property
    def silence(self) -> dict[str, str]:
        """Variables of a run in which a rank falls silent: before it does, no rank is taken for lost."""
        return {"FIDTOOL_TEST_SIGN": str(self.sign)}

    def begin_by_hand(self, arguments: list[list[str]], **variables: str) -> Begun:
        """One process per rank."""
        mark, before = uuid.uuid4().hex, shared_memory()
        ranks = self.server.start_each(arguments, self.folder, FIDTOOL_TEST_MARK=mark, **variables)
        return Begun(self, ranks, mark, before)

    def begin_torchrun(
        self, arguments: list[str], ranks: int, shell: str = "", fresh: bool = False, **variables: str
    ) -> Begun:
        """Under torchrun; ``shell`` is a script that ends in the command, for ranks that differ.

        The ranks are forks, which leave the numbers of their sessions; or interpreters of their own if ``fresh``, of
        whose environment the kernel tells.
        """
        mark, before = uuid.uuid4().hex, shared_memory()
        rank = [sys.executable, "-m", "fidtool", *arguments] if fresh else self.server.stand_in("fidtool", arguments)
        command = ["--no-python", *(["sh", "-c", f'{shell} exec "$0" "$@"'] if shell else []), *rank]
        own = {"FIDTOOL_TEST_MARK": mark, "FIDTOOL_TEST_SESSIONS": str(self.folder / mark)}
        launcher = self.server.torchrun(ranks, command, {**self.environment, **own, **variables}, self.folder)
        return Begun(self, [launcher], mark, before)

    def begin(self, launcher: str, arguments: list[str], ranks: int, **variables: str) -> Begun:
        """Under either launcher."""
        if launcher == "torchrun":
            return self.begin_torchrun(arguments, ranks, **variables)
        return self.begin_by_hand([arguments] * ranks, **variables)

    def by_hand(
        self, arguments: list[list[str]], act: Callable[[list[Rank]], None] | None = None, **variables: str
    ) -> End:
        """Begins and ends such a run; ``act`` is done to the ranks once they are at work."""
        begun = self.begin_by_hand(arguments, **variables)
        if act is not None:
            with begun.killed_on_failure():
                self.wait_for_work(variables.get("ADDED_LOG"), len(begun.ranks))
                act(begun.ranks)
        return begun.end()

    def torchrun(
        self,
        arguments: list[str],
        ranks: int,
        act: Callable[[Rank], None] | None = None,
        shell: str = "",
        fresh: bool = False,
        **variables: str,
    ) -> End:
        """The same under torchrun; ``act`` is done to the launcher."""
        begun = self.begin_torchrun(arguments, ranks, shell, fresh, **variables)
        if act is not None:
            with begun.killed_on_failure():
                self.wait_for_work()
                act(begun.ranks[0])
        return begun.end()

    def left(self, mark: str, sessions: set[int], before: set[str], patience: float) -> list[object]:
        """What is still there ``patience`` after the run has ended: processes, which are killed, and shared memory.

        Shared memory that a living process has mapped does not count: it is another test's, or the process does.
        """
        deadline = time.monotonic() + patience

        def found() -> tuple[list[int], list[str]]:
            memory = shared_memory() - before
            return left_of(mark, sessions), sorted(_lasting(memory - _mapped())) if memory else []

        # Looked at once: a name that another test's process makes and takes away at that moment would be found at last.
        while any(left := found()) and time.monotonic() < deadline:
            time.sleep(0.02)
        processes, memory = left
        for pid in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return [*processes, *memory]

    def wait_for_work(self, log: str | None = None, ranks: int = 1) -> None:
        """Until the first part of a checkpoint has been written, or every rank has added what a pass gave."""

        def all_at_work() -> bool:
            if log is None:
                return any(self.folder.glob("kept/*.part.npz"))
            return Path(log).exists() and set(Path(log).read_text()) >= set(map(str, range(ranks)))

        wait_until(all_at_work, "no rank has begun")

    def resume(self) -> dict[str, Any]:
        """The run without faults, alone, from whatever the checkpoint holds."""
        (rank,) = self.server.start(self.arguments(), 1, self.folder, FAULT_PACE="0")
        assert self.server.wait([rank], PATIENCE) == [0], rank.stderr
        result: dict[str, Any] = json.loads(rank.stdout)
        return result
