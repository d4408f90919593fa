"""Runs one job on several ranks, with or without torchrun, with a fault, and finds processes and memory left behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
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
"""Value of --peer-timeout for runs in which a rank falls silent: only the silence shows that it is lost."""
PATIENT = 600
"""Value of --peer-timeout for all other runs: no rank may be considered lost because the machine is slow."""
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
        return re.split(r"^.*torch/distributed/elastic/", self.stderr, maxsplit=1, flags=re.MULTILINE)[0]

    @property
    def causes(self) -> list[str]:
        return re.findall(r"^error: .*", self.stderr, re.MULTILINE)

    @property
    def recorded(self) -> list[int]:
        """Exit status in the JSON that rank zero prints; empty if that rank was killed."""
        return [int(code) for code in re.findall(r'^  "exit": {\n    "code": (\d+),', self.stdout, re.MULTILINE)]


def statuses(launcher: str, ranks: int, status: int = 1, killed: int | None = None) -> list[int]:
    """Return the statuses of a failed run: ``status`` on all ranks that were not killed; 1 for torchrun."""
    if launcher == "torchrun":
        return [1]
    return [-signal.SIGKILL if rank == killed else status for rank in range(ranks)]


def shared_memory() -> set[str]:
    """Return the names of the shared memory of Python and torch processes."""
    places = ("torch_*", "psm_*", "sem.*")
    return {file.name for place in places for file in Path("/dev/shm").glob(place)}


def _mapped() -> set[str]:
    """Return the names of the shared memory that living processes have mapped."""
    found = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            found |= set(re.findall(r" /dev/shm/(\S+)$", maps.read_text(errors="replace"), re.MULTILINE))
    return found


def _lasting(names: set[str]) -> set[str]:
    """Return the names that are not the only one of a process that has exited.

    torch removes a name right after creating it. A process that is killed in between leaves one name, which fidtool
    cannot prevent. A process that did not remove its names would leave several.
    """
    creators = Counter(match.group(1) for name in names if (match := re.match(r"torch_(\d+)_", name)))
    single = {pid for pid, count in creators.items() if count == 1 and not Path("/proc", pid).exists()}
    return {name for name in names if not name.startswith(tuple(f"torch_{pid}_" for pid in single))}


@dataclass
class Begun:
    """A started run. Runs that mostly wait can run at the same time.

    Attributes:
        arena: the arena of the run.
        ranks: processes of the ranks, or the launcher.
        mark: value of FIDTOOL_TEST_MARK in the processes.
        before: shared memory that existed before.
        ended: whether the run has been waited for. Its process ids may be reused afterwards.
    """

    arena: Arena
    ranks: list[Rank]
    mark: str
    before: set[str]
    ended: bool = False

    def end(self) -> End:
        """Wait for the end of the run; kill processes that time out."""
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
        """Kill the run unless it has ended."""
        if self.ended:
            return
        self._left(0.0)
        self.arena.server.wait(self.ranks, PATIENCE)
        self.ended = True

    @contextlib.contextmanager
    def killed_on_failure(self) -> Iterator[None]:
        """Kill the run if the ``with`` block fails."""
        try:
            yield
        except AssertionError:
            self.kill()
            raise


class Ahead:
    """Runs that start a little before their tests: they mostly wait, so several run at the same time.

    Args:
        arenas: makes a new arena for each run.
        runs: functions that start the runs, in the order of the tests.
        at_once: number of runs to start ahead.
    """

    def __init__(self, arenas: Callable[[], Arena], runs: Mapping[str, Callable[[Arena], Begun]], at_once: int) -> None:
        self._arenas, self._runs, self._at_once = arenas, runs, at_once
        self._begun: dict[str, Begun] = {}

    def __getitem__(self, name: str) -> Begun:
        """Return the run of this name."""
        names = list(self._runs)
        place = names.index(name)
        for coming in names[place : place + self._at_once]:
            if coming not in self._begun:
                self._begun[coming] = self._runs[coming](self._arenas())
        return self._begun[name]

    def close(self) -> None:
        """Kill the runs that no test has used."""
        for run in self._begun.values():
            run.kill()


class Arena:
    """Runs the same job with or without torchrun, with faults, and finds what the runs leave behind."""

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
        """Return variables for a run in which a rank falls silent. Before that, no rank is considered lost."""
        return {"FIDTOOL_TEST_SIGN": str(self.sign)}

    def begin_without_launcher(self, arguments: list[list[str]], **variables: str) -> Begun:
        mark, before = uuid.uuid4().hex, shared_memory()
        ranks = self.server.start_each(arguments, self.folder, FIDTOOL_TEST_MARK=mark, **variables)
        return Begun(self, ranks, mark, before)

    def begin_torchrun(self, arguments: list[str], ranks: int, shell: str = "", **variables: str) -> Begun:
        """Start the run with torchrun. ``shell`` is a script that ends with the command, for ranks that differ.

        The ranks are forks, which write down their session ids.
        """
        mark, before = uuid.uuid4().hex, shared_memory()
        rank = self.server.stand_in("fidtool", arguments)
        command = ["--no-python", *(["sh", "-c", f'{shell} exec "$0" "$@"'] if shell else []), *rank]
        own = {"FIDTOOL_TEST_MARK": mark, "FIDTOOL_TEST_SESSIONS": str(self.folder / mark)}
        launcher = self.server.torchrun(ranks, command, {**self.environment, **own, **variables}, self.folder)
        return Begun(self, [launcher], mark, before)

    def begin(self, launcher: str, arguments: list[str], ranks: int, **variables: str) -> Begun:
        if launcher == "torchrun":
            return self.begin_torchrun(arguments, ranks, **variables)
        return self.begin_without_launcher([arguments] * ranks, **variables)

    def without_launcher(
        self, arguments: list[list[str]], act: Callable[[list[Rank]], None] | None = None, **variables: str
    ) -> End:
        """Start a run without a launcher, call ``act`` with the ranks once they are working, and wait for the end."""
        begun = self.begin_without_launcher(arguments, **variables)
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
        **variables: str,
    ) -> End:
        """Do the same with torchrun; ``act`` is called with the launcher."""
        begun = self.begin_torchrun(arguments, ranks, shell, **variables)
        if act is not None:
            with begun.killed_on_failure():
                self.wait_for_work()
                act(begun.ranks[0])
        return begun.end()

    def left(self, mark: str, sessions: set[int], before: set[str], patience: float) -> list[object]:
        """Return what is left ``patience`` seconds after the run: processes, which are killed, and shared memory.

        Shared memory that a living process has mapped does not count: it belongs to another test, or the process
        is reported itself.
        """
        deadline = time.monotonic() + patience

        def found() -> tuple[list[int], list[str]]:
            memory = shared_memory() - before
            return left_of(mark, sessions), sorted(_lasting(memory - _mapped())) if memory else []

        # Listed only once: a later listing could contain a short-lived name of another test's process.
        while any(left := found()) and time.monotonic() < deadline:
            time.sleep(0.02)
        processes, memory = left
        for pid in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return [*processes, *memory]

    def wait_for_work(self, log: str | None = None, ranks: int = 1) -> None:
        """Wait until the first part of a checkpoint is written, or every rank has added the features of a pass."""

        def all_at_work() -> bool:
            if log is None:
                return any(self.folder.glob("kept/*.part.npz"))
            return Path(log).exists() and set(Path(log).read_text()) >= set(map(str, range(ranks)))

        wait_until(all_at_work, "no rank has started")

    def resume(self) -> dict[str, Any]:
        """Resume the run from the checkpoint on one rank, without faults, and return its JSON."""
        (rank,) = self.server.start(self.arguments(), 1, self.folder, FAULT_PACE="0")
        assert self.server.wait([rank], PATIENCE) == [0], rank.stderr
        result: dict[str, Any] = json.loads(rank.stdout)
        return result
