"""If one rank fails, all ranks end soon, the cause is printed once, and finished work is saved."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.arena import PEER_TIMEOUT, Arena, Begun, End
from support.command_line import frechet
from support.goldens import Golden
from support.pictures import make_pictures
from support.processes import free_port, wait_until
from support.rank_lines import compare
from support.ranks import Rank, children_of

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="finds left-over processes in /proc"
)

LONG = "0.3"
"""Pace of runs that are stopped from outside, slow enough that none finishes first."""
LOG = "lapack.log"
EITHER = {r"\(rank \d": "(rank N"}
"""If several ranks receive a signal, the first to notice it is named."""


@dataclass(frozen=True)
class Fault:
    """A run on two ranks with a fault.

    Attributes:
        launcher: how the ranks are started.
        variables: the fault, see faulty_network.py.
        options: additional arguments.
        killed: the rank that is killed.
        silent: whether only missing heartbeats show that a rank is lost.
        worked: whether some work is finished before.
        chance: parts of the message that may vary.
    """

    launcher: str
    variables: dict[str, str]
    options: tuple[object, ...] = ()
    killed: int | None = None
    silent: bool = False
    worked: bool = True
    chance: tuple[tuple[str, str], ...] = ()

    def begin(self, arena: Arena) -> Begun:
        if not self.silent:
            return arena.begin(self.launcher, arena.arguments(*self.options), 2, **self.variables)
        arguments = arena.arguments(*self.options, peer=PEER_TIMEOUT)
        return arena.begin(self.launcher, arguments, 2, **self.variables, **arena.silence)

    @property
    def ends(self) -> list[int]:
        """Statuses of the processes: 1 for all that were not killed."""
        if self.launcher == "torchrun":
            return [1]
        return [-signal.SIGKILL if rank == self.killed else 1 for rank in range(2)]

    @property
    def waits(self) -> bool:
        """Whether the run mostly waits for a deadline."""
        return self.silent or "--timeout" in self.options


WORKERS = ("--num-workers", 2)
WAITING = {"FAULT": "kill", "FAULT_RANK": "1", "FAULT_IDLE": "0", "FAULT_PACE": LONG}
"""Rank 1 is killed after 8 passes at that pace, when rank 0 is already waiting in a collective."""
DURING_LAPACK = {
    **{"FAULT": "network while rank 0 is in LAPACK", "FAULT_RANK": "1"},
    **{"OMP_NUM_THREADS": "1", "LAPACK_LOG": LOG},
}
FAULTS = {
    "decode": Fault("no launcher", {"FAULT": "decode", "FAULT_RANK": "1"}),
    "network": Fault("no launcher", {"FAULT": "network"}),
    "merge": Fault("torchrun", {"FAULT": "merge", "FAULT_RANK": "1"}),
    "SIGKILL, rank 0": Fault("torchrun", {"FAULT": "kill"}),
    "SIGKILL while rank 0 waits": Fault("no launcher", WAITING, WORKERS, killed=1),
    "during LAPACK": Fault("torchrun", DURING_LAPACK),
    "killed worker": Fault("torchrun", {"FAULT": "worker", "FAULT_RANK": "1"}, WORKERS),
    "ranks on two machines, SIGKILL, rank 0": Fault(
        "no launcher", {"FAULT": "kill", "FIDTOOL_TEST_APART": "1"}, killed=0
    ),
    "ranks on two machines, SIGKILL while rank 0 waits": Fault(
        "no launcher", {**WAITING, "FIDTOOL_TEST_APART": "1"}, killed=1, silent=True
    ),
    "frozen rank 0": Fault("no launcher", {"FAULT": "stop"}, killed=0, silent=True),
    "frozen rank 1": Fault("torchrun", {"FAULT": "stop", "FAULT_RANK": "1"}, silent=True),
    "frozen worker": Fault(
        "no launcher", {"FAULT": "frozen worker", "FAULT_RANK": "1"}, (*WORKERS, "--timeout", 10)
    ),
    "stuck rank": Fault("no launcher", {"FAULT": "stuck", "FAULT_RANK": "1"}, ("--timeout", 10)),
    "absent rank": Fault(
        *("no launcher", {"WORLD_SIZE": "3"}, ("--timeout", 15)),
        worked=False,
        # If rank 1 is slow; if the rank that did not decide prints it, as both reach the deadline
        # together.
        chance=((r"ranks 1, 2 of 3", "rank 2 of 3"), (r" \(reported by rank \d\)", "")),
    ),
}


@pytest.fixture(scope="module")
def runs(
    arenas: Callable[[Path], Arena], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Begun]:
    """Returns the run of a fault. Runs that mostly wait are all started together."""
    begun: dict[str, Begun] = {}

    def run(name: str) -> Begun:
        for each, fault in FAULTS.items():
            if each not in begun and (each == name or fault.waits):
                begun[each] = fault.begin(arenas(tmp_path_factory.mktemp("fault")))
        return begun[name]

    return run


@pytest.fixture(scope="module", autouse=True)
def frozen_launcher(
    arenas: Callable[[Path], Arena], tmp_path_factory: pytest.TempPathFactory
) -> Begun:
    """A run whose launcher is stopped, as by Ctrl-Z, once its ranks are at work. The last test
    checks its end.
    """
    arena = arenas(tmp_path_factory.mktemp("frozen"))
    run = arena.begin(
        "torchrun", arena.arguments(peer=PEER_TIMEOUT), 2, FAULT_PACE="0.6", **arena.silence
    )
    arena.wait_for_work(None, 2)
    run.ranks[0].send(signal.SIGSTOP)
    arena.sign.touch()
    return run


@pytest.fixture(scope="module")
def reference(arenas: Callable[[Path], Arena], tmp_path_factory: pytest.TempPathFactory) -> float:
    """The FID of an uninterrupted run, without a checkpoint."""
    result = arenas(tmp_path_factory.mktemp("reference")).resume()
    assert result["run"]["images_resumed"] == 0
    return frechet(result["results"][0])


Check = Callable[..., None]


@pytest.fixture
def check(golden: Golden, reference: float) -> Check:
    """The outcome that every fault must have."""

    def checked(
        arena: Arena,
        end: End,
        name: str,
        ends: list[int],
        status: int = 1,
        worked: bool = True,
        store_gone: bool = False,
        chance: dict[str, str] | None = None,
    ) -> None:
        """``name`` is that of the message's golden.

        The processes must exit with ``ends``. The JSON, if rank zero could still print it, must
        have ``status``. The message is printed once, unless the store is gone: then each rank may
        print it.
        """
        assert end.statuses == ends, end
        assert end.recorded in ([], [status]), end
        assert end.left == [], f"still running: {end}"
        (said,) = set(end.causes) if store_gone else end.causes
        compare(golden, name, said, arena.folder, chance)
        assert "Traceback" not in end.own_words, end.stderr
        assert "frame #" not in end.stderr, end.stderr
        result = arena.resume()
        assert frechet(result["results"][0]) == reference
        assert (result["run"]["images_resumed"] > 0) == worked, result["run"]
        assert result["run"]["images_resumed"] + result["run"]["images_computed"] == 80

    return checked


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_on_one_rank_ends_all(
    runs: Callable[[str], Begun], check: Check, name: str
) -> None:
    run, fault = runs(name), FAULTS[name]
    end = run.end()
    if (log := run.arena.folder / LOG).exists():
        assert "left" not in log.read_text(), "the run ended only after LAPACK"
    check(run.arena, end, name, fault.ends, worked=fault.worked, chance=dict(fault.chance))


def test_a_rank_gives_up_if_rank_zero_never_starts(arena: Arena, golden: Golden) -> None:
    alone = {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    end = arena.begin("no launcher", arena.arguments("--timeout", 2), 1, **alone).end()
    assert (end.statuses, end.recorded) == ([1], []), end
    (said,) = end.causes
    compare(golden, "absent rank 0", said, arena.folder)
    assert end.stderr.count("\n") == 1, end.stderr


def test_an_unreadable_file_ends_all(arena: Arena) -> None:
    """The file is in FAKE, so that finished work of REAL can be saved. A second run uses --on-error
    skip.
    """
    broken = make_pictures(arena.folder / "broken", 40, 2)
    bad = broken / "00017.png"
    bad.write_bytes(bad.read_bytes()[:200])
    end = arena.begin("torchrun", arena.arguments(fake=broken), 2).end()
    assert (end.statuses, end.recorded) == ([1], [2]), end
    assert "Traceback" not in end.own_words, end.stderr
    assert end.left == []
    (said,) = end.causes
    assert "00017.png" in said
    assert "truncated" in said
    skipping = arena.arguments("--on-error", "skip", "--max-skip", "0.1", fake=broken)
    skipped = arena.alone(skipping)
    assert '"images_resumed": 0' not in skipped.stdout
    assert skipped.stderr.count("00017.png") == 2, (
        "once in the list, and once as the example of the set"
    )


def sending(number: signal.Signals, only: int | None = None) -> Callable[[list[Rank]], None]:
    """Return a function that sends a signal to all processes, or to a single one."""

    def act(started: list[Rank]) -> None:
        for place, process in enumerate(started):
            if only in (None, place):
                process.send(number)

    return act


def test_a_signal_to_the_launcher_stops_all(arena: Arena, check: Check) -> None:
    arguments = arena.arguments("--num-workers", 1)
    end = arena.run("torchrun", arguments, 2, sending(signal.SIGTERM), FAULT_PACE=LONG)
    check(arena, end, "SIGTERM to the launcher", [1], 143, chance=EITHER)


@pytest.mark.parametrize(
    ("number", "status", "to"), [(signal.SIGTERM, 143, "one"), (signal.SIGINT, 130, "all")]
)
def test_a_signal_to_the_ranks_stops_all(
    arena: Arena, check: Check, number: signal.Signals, status: int, to: str
) -> None:
    arguments, act = (
        arena.arguments("--num-workers", 1),
        sending(number, None if to == "all" else 1),
    )
    end = arena.run("no launcher", arguments, 2, act, FAULT_PACE=LONG)
    check(
        arena,
        end,
        f"{number.name} to {to} of 2 ranks",
        [status] * 2,
        status,
        chance=EITHER if to == "all" else {},
    )


def test_a_signal_ends_a_process_that_is_inside_lapack(arena: Arena, check: Check) -> None:
    """Python's own signal handlers only run in the main thread, which is inside LAPACK."""
    log = arena.folder / LOG

    def act(started: list[Rank]) -> None:
        wait_until(log.exists, "the rank has not reached LAPACK")
        started[0].send(signal.SIGTERM)

    variables = {"FAULT": "lapack", "OMP_NUM_THREADS": "1", "LAPACK_LOG": LOG}
    end = arena.run("no launcher", arena.arguments(), 1, act, **variables)
    assert "left" not in log.read_text(), "the run ended only after LAPACK"
    check(arena, end, "SIGTERM in LAPACK, 1", [143], 143)


def test_finished_work_is_saved_after_a_signal(arena: Arena, check: Check) -> None:
    """Also during a forward pass that never ends."""
    log = str(arena.folder / "added")
    arguments = arena.arguments("--num-workers", 1)
    variables = {"FAULT": "stuck", "FAULT_RANK": "all", "FAULT_AFTER": "3", "ADDED_LOG": log}
    end = arena.run("no launcher", arguments, 2, sending(signal.SIGTERM), **variables)
    check(arena, end, "SIGTERM in a pass, 2", [143] * 2, 143, chance=EITHER)


def test_ranks_with_different_arguments_end(arena: Arena, check: Check) -> None:
    """With two plans, some images would count twice and others not at all."""
    end = arena.begin_each([arena.arguments(), arena.arguments("--seed", 5)]).end()
    check(arena, end, "started differently", [2, 2], 2, worked=False)


def test_a_full_disk_loses_no_result(arena: Arena, reference: float) -> None:
    end = arena.begin("no launcher", arena.arguments(), 2, FAULT="disk full", FAULT_PACE="0").end()
    assert set(end.statuses) == {0}, end
    assert end.left == []
    assert frechet(json.loads(end.stdout)["results"][0]) == reference
    assert end.stderr.count("kept cannot be written (File too large)") == 1, end.stderr
    assert frechet(arena.resume()["results"][0]) == reference


def test_a_disk_without_room_for_features_ends_all(arena: Arena) -> None:
    """Before the first image: room for those of all ranks is reserved."""
    arguments = arena.arguments("--metrics", "kid", "--kid-subset-size", 9)
    variables = {"FAULT": "no room for features", "FAULT_RANK": "1", "FIDTOOL_FEATURE_BYTES": "0"}
    end = arena.begin("torchrun", arguments, 2, **variables).end()
    assert (end.statuses, end.left) == ([1], []), end
    assert end.recorded in ([], [1]), end
    (said,) = end.causes
    assert "GiB of features cannot be stored in" in said
    assert (
        "File too large): set FIDTOOL_CACHE to a folder with enough space, or omit the metrics"
        in said
    )
    assert "(rank 1 on" in said
    assert "Traceback" not in end.own_words, end.stderr


def test_the_ranks_of_a_killed_launcher_exit(arena: Arena, check: Check) -> None:
    end = arena.run("torchrun", arena.arguments(), 2, sending(signal.SIGKILL), FAULT_PACE=LONG)
    check(arena, end, "killed launcher", [-signal.SIGKILL], store_gone=True)


def test_a_frozen_launcher_is_named_and_no_rank_is_blamed(
    frozen_launcher: Begun, check: Check
) -> None:
    """torchrun's ranks are in separate sessions and keep running."""
    (launcher,) = frozen_launcher.ranks
    wait_until(lambda: not children_of(launcher.pid), "the ranks wait for the launcher")
    launcher.send(signal.SIGCONT)
    check(frozen_launcher.arena, frozen_launcher.end(), "frozen launcher", [1], store_gone=True)
