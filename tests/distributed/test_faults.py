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

    def stuck(launcher: str) -> Begin:
        variables = {"FAULT": "stuck", "FAULT_RANK": "1"}
        return lambda arena: arena.begin(launcher, arena.arguments("--timeout", 10), 2, **variables)

    def frozen_worker(ranks: int) -> Begin:
        settings = ("--num-workers", 2, "--timeout", 10)
        return lambda arena: arena.begin("no launcher", arena.arguments(*settings), ranks, FAULT="frozen worker")

    runs = {
        **{f"frozen worker, {ranks}": frozen_worker(ranks) for ranks in (1, 2)},
        **{f"stuck, {launcher}": stuck(launcher) for launcher in LAUNCHERS},
    }
    begun = ahead(runs, len(runs))
    assert begun["frozen worker, 1"]
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


LAUNCHERS = ("torchrun", "no launcher")

EITHER = {r"on rank \d": "on rank N"}
"""If several ranks receive a signal, the first to notice it is named."""

LONG = "0.3"
"""Pace of runs that are stopped from outside, slow enough that none finishes first."""

LOG = "lapack.log"

WAITING = {"FAULT": "kill", "FAULT_RANK": "1", "FAULT_IDLE": "0", "FAULT_PACE": LONG}
"""Rank 1 is killed after 8 passes at that pace, when rank 0 is already waiting in a collective."""

FAULTS = {
    "decode, rank 0": ({"FAULT": "decode"}, 2),
    "decode, last rank": ({"FAULT": "decode", "FAULT_RANK": "2"}, 3),
    "network, rank 0": ({"FAULT": "network"}, 2),
    "network, last rank": ({"FAULT": "network", "FAULT_RANK": "3"}, 4),
    "merge, rank 0": ({"FAULT": "merge"}, 2),
    "merge, last rank": ({"FAULT": "merge", "FAULT_RANK": "2"}, 3),
    "SIGKILL, rank 0": ({"FAULT": "kill"}, 2),
    "SIGKILL, last rank": ({"FAULT": "kill", "FAULT_RANK": "2"}, 3),
    "SIGKILL while rank 0 waits": (WAITING, 2),
    "during LAPACK": (
        {"FAULT": "network while rank 0 is in LAPACK", "FAULT_RANK": "1", "OMP_NUM_THREADS": "1", "LAPACK_LOG": LOG},
        2,
    ),
}


@pytest.fixture(scope="module")
def failing(ahead: Callable[..., Ahead]) -> Ahead:
    """The runs with these faults."""

    def beginning(launcher: str, variables: dict[str, str], ranks: int) -> Begin:
        return lambda arena: arena.begin(launcher, arena.arguments(), ranks, **variables)

    return ahead(
        {
            f"{launcher}: {fault}": beginning(launcher, variables, ranks)
            for launcher in LAUNCHERS
            for fault, (variables, ranks) in FAULTS.items()
        }
    )


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_fault_on_one_rank_ends_all(failing: Ahead, check: Check, launcher: str, fault: str) -> None:
    run = failing[f"{launcher}: {fault}"]
    end = run.end()
    if "LAPACK_LOG" in FAULTS[fault][0]:
        assert "left" not in (run.arena.folder / LOG).read_text(), "the run ended only after LAPACK"
    variables, ranks = FAULTS[fault]
    check(run.arena, end, fault, statuses(launcher, ranks, killed=killed_rank(variables)))


@pytest.fixture(scope="module")
def frozen(ahead: Callable[..., Ahead]) -> Ahead:
    """Runs in which a rank is frozen with SIGSTOP."""

    def beginning(launcher: str, rank: int) -> Begin:
        def run(arena: Arena) -> Begun:
            variables = {"FAULT": "stop", "FAULT_RANK": str(rank), **arena.silence}
            return arena.begin(launcher, arena.arguments(peer=PEER_TIMEOUT), 2, **variables)

        return run

    runs = {f"{launcher}: {rank}": beginning(launcher, rank) for launcher in LAUNCHERS for rank in (0, 1)}
    return ahead(runs, at_once=2)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_frozen_rank_ends_all(frozen: Ahead, check: Check, launcher: str, rank: int) -> None:
    run = frozen[f"{launcher}: {rank}"]
    check(run.arena, run.end(), f"frozen rank {rank}", statuses(launcher, 2, killed=rank))


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_killed_worker_ends_all(arena: Arena, check: Check, launcher: str) -> None:
    arguments = arena.arguments("--num-workers", 2)
    end = arena.begin(launcher, arguments, 2, FAULT="worker", FAULT_RANK="1").end()
    check(arena, end, "killed worker", statuses(launcher, 2))


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_workers_of_a_killed_rank_exit(arena: Arena, check: Check, launcher: str) -> None:
    """Under torchrun with separate interpreters: the workers are found by their environment."""
    variables, arguments = {"FAULT": "kill", "FAULT_RANK": "1"}, arena.arguments("--num-workers", 2)
    run = arena.torchrun(arguments, 2, fresh=True, **variables) if launcher == "torchrun" else None
    end = run or arena.without_launcher([arguments] * 2, **variables)
    check(arena, end, "SIGKILL, rank 1 with workers", statuses(launcher, 2, killed=1))


APART = {
    "exception": ({"FAULT": "network", "FAULT_RANK": "1"}, False),
    "SIGKILL": ({"FAULT": "kill", "FAULT_RANK": "1"}, True),
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


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("kind", ["truncated", "I/O error"])
def test_an_unreadable_file_ends_all(arena: Arena, reference: float, launcher: str, kind: str) -> None:
    """The file is in FAKE, so that finished work of REAL can be saved. A second run uses --on-error skip."""
    broken = make_pictures(arena.folder / "broken", 40, 2)
    bad = broken / "00017.png"
    if kind == "truncated":
        bad.write_bytes(bad.read_bytes()[:200])
    else:
        bad.unlink()
        bad.symlink_to("/proc/self/mem")  # can be opened, but reading its start fails
    arguments, ranks = arena.arguments(fake=broken), 2 if launcher == "torchrun" else 3
    end = arena.begin(launcher, arguments, ranks).end()
    assert (end.statuses, end.recorded) == (statuses(launcher, ranks, 2), [2]), end
    assert "Traceback" not in end.own_words, end.stderr
    assert end.left == []
    (said,) = end.causes
    assert "00017.png" in said
    assert ("truncated" if kind == "truncated" else "Input/output error") in said
    # The file with the I/O error is a different one in each process, with different time stamps.
    kept = "other" if kind == "I/O error" else "kept"
    skipping = arena.arguments("--on-error", "skip", "--max-skip", "0.1", fake=broken, kept=kept)
    (rank,) = arena.server.start(skipping, 1, arena.folder, FAULT_PACE="0")
    assert arena.server.wait([rank], PATIENCE) == [0], rank.stderr
    assert ('"images_resumed": 0' in rank.stdout) == (kind == "I/O error")
    assert rank.stderr.count("00017.png") == 2, "once in the list, and once as the example of the set"


@pytest.fixture(scope="module")
def absent(ahead: Callable[..., Ahead]) -> Ahead:
    """Runs with a rank that never starts."""
    sleeping = 'if [ "$RANK" = 1 ]; then exec sleep 10000; fi;'
    alone = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return ahead(
        {
            "torchrun": lambda arena: arena.begin_torchrun(arena.arguments("--timeout", 5), 3, sleeping),
            "no launcher": lambda arena: arena.begin("no launcher", arena.arguments("--timeout", 5), 2, WORLD_SIZE="3"),
            "rank 0": lambda arena: arena.begin("no launcher", arena.arguments("--timeout", 3), 1, **alone),
        }
    )


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_rank_that_never_starts_is_named(absent: Ahead, check: Check, launcher: str) -> None:
    run = absent[launcher]
    sole = 1 if launcher == "torchrun" else 2
    words = {f"absent rank {sole}": rf"rank {sole} of 3", "absent ranks 1, 2": r"ranks 1, 2 of 3"}  # if one is slow
    check(run.arena, run.end(), words, statuses(launcher, 2), worked=False)


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


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("to", ["all", "one"])
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


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_signal_ends_a_process_that_is_inside_lapack(arena: Arena, check: Check, ranks: int) -> None:
    """Python's own signal handlers only run in the main thread, which is inside LAPACK."""

    log = arena.folder / LOG

    def act(started: list[Rank]) -> None:
        wait_until(log.exists, "no rank has reached LAPACK")
        for rank in started:
            rank.send(signal.SIGTERM)

    variables = {"FAULT": "lapack", "FAULT_RANK": "0", "OMP_NUM_THREADS": "1", "LAPACK_LOG": LOG}
    end = arena.without_launcher([arena.arguments()] * ranks, act, **variables)
    assert "left" not in log.read_text(), "the run ended only after LAPACK"
    check(arena, end, f"SIGTERM in LAPACK, {ranks}", [143] * ranks, 143, **EITHER)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ranks_with_different_arguments_end(arena: Arena, check: Check, launcher: str) -> None:
    if launcher == "torchrun":
        script = 'if [ "$RANK" = 1 ]; then set -- "$@" --seed 5; fi;'
        end = arena.torchrun(arena.arguments(), 2, shell=script)
    else:
        end = arena.without_launcher([arena.arguments(), arena.arguments("--seed", 5)])
    check(arena, end, "started differently", statuses(launcher, 2, 2), 2, worked=False)


@pytest.mark.parametrize("ranks", [1, 2])
def test_finished_work_is_saved_after_a_signal(arena: Arena, check: Check, ranks: int) -> None:
    """Also during a forward pass that never ends, and long before the next save."""

    def act(started: list[Rank]) -> None:
        for rank in started:
            rank.send(signal.SIGTERM)

    log = str(arena.folder / "added")
    arguments = arena.arguments("--num-workers", 1, every=1000)
    variables = {"FAULT": "stuck", "FAULT_RANK": "all", "FAULT_AFTER": "3", "ADDED_LOG": log}
    end = arena.without_launcher([arguments] * ranks, act, **variables)
    check(arena, end, f"SIGTERM in a pass, {ranks}", [143] * ranks, 143, **EITHER)


@pytest.mark.parametrize(("launcher", "ranks"), [("no launcher", 1), ("no launcher", 2), ("torchrun", 2)])
def test_a_full_disk_loses_no_result(arena: Arena, reference: float, launcher: str, ranks: int) -> None:
    end = arena.begin(launcher, arena.arguments(), ranks, FAULT="disk full", FAULT_PACE="0").end()
    assert set(end.statuses) == {0}, end
    assert end.left == []
    assert frechet(json.loads(end.stdout)["results"][0]) == reference
    assert end.stderr.count("kept cannot be written (File too large)") == 1, end.stderr
    assert frechet(arena.resume()["results"][0]) == reference


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_frozen_worker_causes_a_timeout(patient: Ahead, check: Check, ranks: int) -> None:
    """Either the deadline of the batch or that of the collective comes first."""
    run = patient[f"frozen worker, {ranks}"]
    words = {f"frozen worker, {ranks}": "no batch for 10 s"}
    if ranks > 1:
        words["frozen worker, 2, the collective"] = "timed out after 10 s waiting for"
    check(run.arena, run.end(), words, [1] * ranks)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_rank_that_is_stuck_but_alive_causes_a_timeout(patient: Ahead, check: Check, launcher: str) -> None:
    run = patient[f"stuck, {launcher}"]
    check(run.arena, run.end(), "stuck rank 1", statuses(launcher, 2))


def test_a_frozen_launcher_is_named_and_no_rank_is_blamed(frozen_launcher: Begun, check: Check) -> None:
    """torchrun's ranks are in separate sessions and keep running."""
    (launcher,) = frozen_launcher.ranks
    wait_until(lambda: not children_of(launcher.pid), "the ranks wait for the launcher")
    launcher.send(signal.SIGCONT)
    check(frozen_launcher.arena, frozen_launcher.end(), "frozen launcher", [1], store_gone=True)
