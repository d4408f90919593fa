"""If one rank fails, all ranks end soon, the cause is printed once, and finished work is saved."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.arena import PEER_TIMEOUT, Ahead, Arena, Begun, End, statuses
from support.command_line import frechet
from support.goldens import Golden
from support.pictures import make_pictures
from support.processes import PATIENCE, free_port, wait_until
from support.rank_lines import compare
from support.ranks import Rank, children_of

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds left-over processes in /proc")


@pytest.fixture(scope="module")
def reference(arenas: Callable[[Path], Arena], tmp_path_factory: pytest.TempPathFactory) -> float:
    """The FID of an uninterrupted run, without a checkpoint."""
    result = arenas(tmp_path_factory.mktemp("reference")).resume()
    assert result["run"]["images_resumed"] == 0
    return frechet(result["results"][0])


Begin = Callable[[Arena], Begun]


@pytest.fixture(scope="module")
def ahead(arenas: Callable[[Path], Arena], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Ahead]]:
    """Starts runs before the tests that check them."""
    made = []

    def make(runs: dict[str, Begin], at_once: int = 4) -> Ahead:
        made.append(Ahead(lambda: arenas(tmp_path_factory.mktemp("ahead")), runs, at_once))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture(scope="module", autouse=True)
def patient(ahead: Callable[..., Ahead]) -> Ahead:
    """Runs that wait for --timeout: started before the first test, checked by the last ones."""

    def stuck(arena: Arena) -> Begun:
        return arena.begin("no launcher", arena.arguments("--timeout", 10), 2, FAULT="stuck", FAULT_RANK="1")

    def frozen_worker(arena: Arena) -> Begun:
        arguments = arena.arguments("--num-workers", 2, "--timeout", 10)
        return arena.begin("no launcher", arguments, 1, FAULT="frozen worker")

    begun = ahead({"frozen worker": frozen_worker, "stuck": stuck})
    assert begun["frozen worker"]
    return begun


@pytest.fixture(scope="module", autouse=True)
def frozen_launcher(arenas: Callable[[Path], Arena], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Begun]:
    """A run whose launcher was stopped, as by Ctrl-Z, once the ranks were at work; also started early."""
    arena = arenas(tmp_path_factory.mktemp("frozen"))
    run = arena.begin_torchrun(arena.arguments(peer=PEER_TIMEOUT), 2, FAULT_PACE="0.6", **arena.silence)
    with run.killed_on_failure():
        arena.wait_for_work()
    run.ranks[0].send(signal.SIGSTOP)
    arena.sign.touch()
    yield run
    run.kill()


Check = Callable[..., None]


def killed_rank(variables: dict[str, str]) -> int | None:
    return int(variables.get("FAULT_RANK", "0")) if variables["FAULT"] == "kill" else None


@pytest.fixture
def check(golden: Golden, reference: float) -> Check:
    """The outcome that every fault must have."""

    def checked(
        arena: Arena,
        end: End,
        words: str | dict[str, str],
        ends: list[int],
        status: int = 1,
        worked: bool = True,
        store_gone: bool = False,
        **chance: str,
    ) -> None:
        """``words`` is the name of the message's golden, or maps possible names to regular expressions.

        The processes must exit with ``ends``. The JSON, if rank zero could still print it, must have ``status``. The
        message is printed once, unless the store is gone: then each rank may print it.
        """
        assert end.statuses == ends, end
        assert end.recorded in ([], [status]), end
        assert end.left == [], f"still running: {end}"
        (said,) = set(end.causes) if store_gone else end.causes
        if isinstance(words, dict):
            found = [name for name, cause in words.items() if re.search(cause, said)]
            assert found, said
            words = found[0]
        compare(golden, words, said, arena.folder, chance)
        assert "Traceback" not in end.own_words, end.stderr
        assert "frame #" not in end.stderr, end.stderr
        result = arena.resume()
        assert frechet(result["results"][0]) == reference
        assert (result["run"]["images_resumed"] > 0) == worked, result["run"]
        assert result["run"]["images_resumed"] + result["run"]["images_computed"] == 80

    return checked


EITHER = {r"on rank \d": "on rank N"}
"""If several ranks receive a signal, the first to notice it is named."""

LONG = "0.3"
"""Pace of runs that are stopped from outside, slow enough that none finishes first."""

LOG = "lapack.log"

WAITING = {"FAULT": "kill", "FAULT_RANK": "1", "FAULT_IDLE": "0", "FAULT_PACE": LONG}
"""Rank 1 is killed after 8 passes at that pace, when rank 0 is already waiting in a collective."""

FAULTS = {
    "decode, rank 0": ("torchrun", {"FAULT": "decode"}, 2),
    "decode, last rank": ("no launcher", {"FAULT": "decode", "FAULT_RANK": "2"}, 3),
    "network, rank 0": ("no launcher", {"FAULT": "network"}, 2),
    "network, last rank": ("torchrun", {"FAULT": "network", "FAULT_RANK": "3"}, 4),
    "merge, rank 0": ("no launcher", {"FAULT": "merge"}, 2),
    "merge, last rank": ("torchrun", {"FAULT": "merge", "FAULT_RANK": "2"}, 3),
    "SIGKILL, rank 0": ("torchrun", {"FAULT": "kill"}, 2),
    "SIGKILL, last rank": ("no launcher", {"FAULT": "kill", "FAULT_RANK": "2"}, 3),
    "SIGKILL while rank 0 waits": ("no launcher", WAITING, 2),
    "during LAPACK": (
        "torchrun",
        {"FAULT": "network while rank 0 is in LAPACK", "FAULT_RANK": "1", "OMP_NUM_THREADS": "1", "LAPACK_LOG": LOG},
        2,
    ),
}
"""Launcher, variables and number of ranks of each run."""


@pytest.fixture(scope="module")
def failing(ahead: Callable[..., Ahead]) -> Ahead:
    """The runs with these faults."""

    def beginning(launcher: str, variables: dict[str, str], ranks: int) -> Begin:
        return lambda arena: arena.begin(launcher, arena.arguments(), ranks, **variables)

    return ahead({fault: beginning(*settings) for fault, settings in FAULTS.items()})


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_on_one_rank_ends_all(failing: Ahead, check: Check, fault: str) -> None:
    run = failing[fault]
    end = run.end()
    launcher, variables, ranks = FAULTS[fault]
    if "LAPACK_LOG" in variables:
        assert "left" not in (run.arena.folder / LOG).read_text(), "the run ended only after LAPACK"
    check(run.arena, end, fault, statuses(launcher, ranks, killed=killed_rank(variables)))


FROZEN = [("torchrun", 1), ("no launcher", 0), ("no launcher", 1)]


@pytest.fixture(scope="module")
def frozen(ahead: Callable[..., Ahead]) -> Ahead:
    """Runs in which a rank is frozen with SIGSTOP."""

    def beginning(launcher: str, rank: int) -> Begin:
        def run(arena: Arena) -> Begun:
            variables = {"FAULT": "stop", "FAULT_RANK": str(rank), **arena.silence}
            return arena.begin(launcher, arena.arguments(peer=PEER_TIMEOUT), 2, **variables)

        return run

    return ahead({f"{launcher}: {rank}": beginning(launcher, rank) for launcher, rank in FROZEN}, at_once=2)


@pytest.mark.parametrize(("launcher", "rank"), FROZEN)
def test_a_frozen_rank_ends_all(frozen: Ahead, check: Check, launcher: str, rank: int) -> None:
    run = frozen[f"{launcher}: {rank}"]
    check(run.arena, run.end(), f"frozen rank {rank}", statuses(launcher, 2, killed=rank))


def test_a_killed_worker_ends_all(arena: Arena, check: Check) -> None:
    arguments = arena.arguments("--num-workers", 2)
    end = arena.begin("torchrun", arguments, 2, FAULT="worker", FAULT_RANK="1").end()
    check(arena, end, "killed worker", statuses("torchrun", 2))


def test_the_workers_of_a_killed_rank_exit(arena: Arena, check: Check) -> None:
    arguments = arena.arguments("--num-workers", 2)
    end = arena.without_launcher([arguments] * 2, FAULT="kill", FAULT_RANK="1")
    check(arena, end, "SIGKILL, rank 1 with workers", statuses("no launcher", 2, killed=1))


APART = {
    "exception": ({"FAULT": "network", "FAULT_RANK": "1"}, False),
    "SIGKILL while rank 0 waits": (WAITING, True),
    "SIGKILL, rank 0": ({"FAULT": "kill"}, False),
}


@pytest.fixture(scope="module")
def apart(ahead: Callable[..., Ahead]) -> Ahead:
    """Runs in which no rank can see another's process."""

    def beginning(variables: dict[str, str], silent: bool) -> Begin:
        def run(arena: Arena) -> Begun:
            arguments = arena.arguments(peer=PEER_TIMEOUT) if silent else arena.arguments()
            own = {**variables, **(arena.silence if silent else {}), "FIDTOOL_TEST_APART": "1"}
            return arena.begin("no launcher", arguments, 2, **own)

        return run

    return ahead({fault: beginning(*settings) for fault, settings in APART.items()}, at_once=2)


@pytest.mark.parametrize("fault", APART)
def test_ranks_on_separate_machines_end_too(apart: Ahead, check: Check, fault: str) -> None:
    """A lost rank is only detected by missing heartbeats."""
    run = apart[fault]
    variables, _ = APART[fault]
    check(run.arena, run.end(), f"apart, {fault}", statuses("no launcher", 2, killed=killed_rank(variables)))


@pytest.mark.parametrize(
    ("kind", "launcher", "ranks"), [("truncated", "torchrun", 2), ("Input/output error", "no launcher", 3)]
)
def test_an_unreadable_file_ends_all(arena: Arena, kind: str, launcher: str, ranks: int) -> None:
    """The file is in FAKE, so that finished work of REAL can be saved. A second run uses --on-error skip."""
    broken = make_pictures(arena.folder / "broken", 40, 2)
    bad = broken / "00017.png"
    if kind == "truncated":
        bad.write_bytes(bad.read_bytes()[:200])
    else:
        bad.unlink()
        bad.symlink_to("/proc/self/mem")  # can be opened, but reading its start fails
    end = arena.begin(launcher, arena.arguments(fake=broken), ranks).end()
    assert (end.statuses, end.recorded) == (statuses(launcher, ranks, 2), [2]), end
    assert "Traceback" not in end.own_words, end.stderr
    assert end.left == []
    (said,) = end.causes
    assert "00017.png" in said
    assert kind in said
    # The file with the I/O error is a different one in each process, with different time stamps.
    kept = "kept" if kind == "truncated" else "other"
    skipping = arena.arguments("--on-error", "skip", "--max-skip", "0.1", fake=broken, kept=kept)
    (rank,) = arena.server.start(skipping, 1, arena.folder, FAULT_PACE="0")
    assert arena.server.wait([rank], PATIENCE) == [0], rank.stderr
    assert ('"images_resumed": 0' in rank.stdout) == (kept == "other")
    assert rank.stderr.count("00017.png") == 2, "once in the list, and once as the example of the set"


@pytest.fixture(scope="module")
def absent(ahead: Callable[..., Ahead]) -> Ahead:
    """Runs with a rank that never starts."""
    alone = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return ahead(
        {
            "last": lambda arena: arena.begin("no launcher", arena.arguments("--timeout", 5), 2, WORLD_SIZE="3"),
            "rank 0": lambda arena: arena.begin("no launcher", arena.arguments("--timeout", 3), 1, **alone),
        }
    )


def test_a_rank_that_never_starts_is_named(absent: Ahead, check: Check) -> None:
    run = absent["last"]
    words = {"absent rank 2": r"rank 2 of 3", "absent ranks 1, 2": r"ranks 1, 2 of 3"}  # if one is slow
    check(run.arena, run.end(), words, statuses("no launcher", 2), worked=False)


def test_a_rank_gives_up_if_rank_zero_never_starts(absent: Ahead, golden: Golden) -> None:
    run = absent["rank 0"]
    end = run.end()
    assert (end.statuses, end.recorded) == ([1], []), end
    (said,) = end.causes
    compare(golden, "absent rank 0", said, run.arena.folder)
    assert end.stderr.count("\n") == 1, end.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_launcher_stops_all(arena: Arena, check: Check, number: signal.Signals) -> None:
    arguments = arena.arguments("--num-workers", 1)
    end = arena.torchrun(arguments, 2, act=lambda launcher: launcher.send(number), FAULT_PACE=LONG)
    check(arena, end, f"{number.name} to the launcher", [1], 128 + number, **EITHER)


def test_the_ranks_of_a_killed_launcher_exit(arena: Arena, check: Check) -> None:
    end = arena.torchrun(arena.arguments(), 2, act=lambda launcher: launcher.send(signal.SIGKILL), FAULT_PACE=LONG)
    check(arena, end, "killed launcher", [-signal.SIGKILL], store_gone=True)


@pytest.mark.parametrize(
    ("number", "status", "ranks", "to"),
    [
        (signal.SIGTERM, 143, 1, "all"),
        (signal.SIGTERM, 143, 3, "one"),
        (signal.SIGTERM, 143, 3, "all"),
        (signal.SIGINT, 130, 1, "all"),
        (signal.SIGINT, 130, 3, "all"),
    ],
)
def test_a_signal_to_the_ranks_stops_all(
    arena: Arena, check: Check, number: signal.Signals, status: int, ranks: int, to: str
) -> None:
    def act(started: list[Rank]) -> None:
        for rank in started if to == "all" else started[-1:]:
            rank.send(number)

    end = arena.without_launcher([arena.arguments("--num-workers", 1)] * ranks, act, FAULT_PACE=LONG)
    to_whom = f"{to} of 3 ranks" if ranks > 1 else "the only rank"
    chance = EITHER if to == "all" else {}
    check(arena, end, f"{number.name} to {to_whom}", [status] * ranks, status, **chance)


def test_a_signal_ends_a_process_that_is_inside_lapack(arena: Arena, check: Check) -> None:
    """Python's own signal handlers only run in the main thread, which is inside LAPACK."""
    log = arena.folder / LOG

    def act(started: list[Rank]) -> None:
        wait_until(log.exists, "the rank has not reached LAPACK")
        started[0].send(signal.SIGTERM)

    variables = {"FAULT": "lapack", "OMP_NUM_THREADS": "1", "LAPACK_LOG": LOG}
    end = arena.without_launcher([arena.arguments()], act, **variables)
    assert "left" not in log.read_text(), "the run ended only after LAPACK"
    check(arena, end, "SIGTERM in LAPACK, 1", [143], 143)


def test_ranks_with_different_arguments_end(arena: Arena, check: Check) -> None:
    """With two plans, some images would count twice and others not at all."""
    end = arena.without_launcher([arena.arguments(), arena.arguments("--seed", 5)])
    check(arena, end, "started differently", [2, 2], 2, worked=False)


def test_finished_work_is_saved_after_a_signal(arena: Arena, check: Check) -> None:
    """Also during a forward pass that never ends, and long before the next save."""

    def act(started: list[Rank]) -> None:
        for rank in started:
            rank.send(signal.SIGTERM)

    log = str(arena.folder / "added")
    arguments = arena.arguments("--num-workers", 1, every=1000)
    variables = {"FAULT": "stuck", "FAULT_RANK": "all", "FAULT_AFTER": "3", "ADDED_LOG": log}
    end = arena.without_launcher([arguments] * 2, act, **variables)
    check(arena, end, "SIGTERM in a pass, 2", [143] * 2, 143, **EITHER)


def test_a_full_disk_loses_no_result(arena: Arena, reference: float) -> None:
    end = arena.begin("no launcher", arena.arguments(), 2, FAULT="disk full", FAULT_PACE="0").end()
    assert set(end.statuses) == {0}, end
    assert end.left == []
    assert frechet(json.loads(end.stdout)["results"][0]) == reference
    assert end.stderr.count("kept cannot be written (File too large)") == 1, end.stderr
    assert frechet(arena.resume()["results"][0]) == reference


def test_a_frozen_worker_causes_a_timeout(patient: Ahead, check: Check) -> None:
    run = patient["frozen worker"]
    check(run.arena, run.end(), "frozen worker, 1", [1])


def test_a_rank_that_is_stuck_but_alive_causes_a_timeout(patient: Ahead, check: Check) -> None:
    run = patient["stuck"]
    check(run.arena, run.end(), "stuck rank 1", [1, 1])


def test_a_frozen_launcher_is_named_and_no_rank_is_blamed(frozen_launcher: Begun, check: Check) -> None:
    """torchrun's ranks are in separate sessions and keep running."""
    (launcher,) = frozen_launcher.ranks
    wait_until(lambda: not children_of(launcher.pid), "the ranks wait for the launcher")
    launcher.send(signal.SIGCONT)
    check(frozen_launcher.arena, frozen_launcher.end(), "frozen launcher", [1], store_gone=True)
