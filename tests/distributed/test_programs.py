"""fidtool within programs: exceptions, signals and process groups remain under the program's control."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.pictures import make_pictures
from support.places import FAULTY
from support.processes import PATIENCE, wait_until
from support.ranks import Rank, RankServer, exported, own_interpreters

End = tuple[int | None, str, str]
"""Status, stdout and stderr."""


def forks(server: RankServer, environment: dict[str, str], folder: Path, script: str) -> list[Rank]:
    """Two ranks, as forks, that run ``script`` in ``folder``."""
    (folder / "script.py").write_text(script)
    own = {**environment, "FORWARD_LOG": str(folder / "passes")}
    return [server.launch("script", ["script.py", FAULTY], {**own, **place}, folder) for place in exported(2)]


def wait_for_work(folder: Path, passes: int) -> None:
    """Wait until the network has started this many passes."""
    log = folder / "passes"
    wait_until(lambda: log.exists() and log.stat().st_size >= passes, "no rank has started")


def ends(server: RankServer, ranks: list[Rank]) -> list[End]:
    """Status and output of each process."""
    return [
        (status, rank.stdout, rank.stderr) for status, rank in zip(server.wait(ranks, PATIENCE), ranks, strict=True)
    ]


def with_sets(folder: Path) -> Path:
    make_pictures(folder / "real", 12, 1)
    (make_pictures(folder / "bad", 12, 2) / "00004.png").write_bytes(b"no image")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return with_sets(tmp_path)


Start = Callable[..., list[Rank]]


@pytest.fixture
def start(rank_server: RankServer, environment: dict[str, str], folder: Path) -> Start:
    """Runs a script on two ranks."""
    return lambda script, **variables: forks(rank_server, {**environment, **variables}, folder, script)


@pytest.fixture(scope="module", autouse=True)
def slow_to_learn(rank_server: RankServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Rank]]:
    """Ranks with slow passes and an error. They are started before all tests, because they mostly wait."""
    script = """
import sys, fidtool
try:
    fidtool.compute("bad", "real", extractor=sys.argv[1], batch_size=6, cache=False)
except fidtool.InputError as error:
    print("caught", "00004.png" in str(error))
"""
    place = with_sets(tmp_path_factory.mktemp("exception"))
    ranks = forks(rank_server, {**rank_server.environment, "FAULT_PACE": "8"}, place, script)
    yield ranks
    rank_server.wait(ranks, PATIENCE)


@pytest.fixture(scope="module", autouse=True)
def alone(rank_server: RankServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Rank]]:
    """Rank 1 freezes and its connections stay open, as if its machine were lost."""
    script = """
import sys, fidtool
try:
    fidtool.compute("real", "real", extractor=sys.argv[1], batch_size=1, cache=False, peer_timeout=4)
except fidtool.RunError as error:
    print("caught", "sent no heartbeat" in str(error))
"""
    place = with_sets(tmp_path_factory.mktemp("alone"))
    variables = {"FAULT": "stop", "FAULT_RANK": "1", "FAULT_AFTER": "2", "FIDTOOL_TEST_SIGN": str(place / "sign")}
    ranks = forks(rank_server, {**rank_server.environment, **variables, "FIDTOOL_TEST_APART": "1"}, place, script)
    yield ranks
    ranks[1].send(signal.SIGKILL)
    rank_server.wait(ranks, PATIENCE)


@pytest.fixture(scope="module", autouse=True)
def stuck(rank_server: RankServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[subprocess.Popen[str]]]:
    """Two ranks of which rank 1 is stuck but alive."""
    script = """
import sys, fidtool
try:
    fidtool.compute("real", "real", extractor=sys.argv[1], batch_size=1, cache=False, timeout=10, peer_timeout=60)
except fidtool.RunError as error:
    print(error)
    sys.exit(5)
"""
    place = with_sets(tmp_path_factory.mktemp("stuck"))
    variables = {"FAULT": "stuck", "FAULT_AFTER": "2", "FAULT_RANK": "1"}
    own = {**rank_server.environment, **variables}
    processes = own_interpreters(["-c", script, FAULTY], [{**own, **rank} for rank in exported(2)], place)
    yield processes
    for process in processes:
        process.kill()
        process.wait(PATIENCE)


def test_the_programs_process_group_survives_a_failed_rendezvous(rank_server: RankServer, start: Start) -> None:
    """Only rank zero calls fidtool, a common mistake."""
    script = """
import sys, torch, torch.distributed as dist, fidtool
dist.init_process_group("gloo")
if dist.get_rank() == 0:
    try:
        fidtool.compute("real", "real", extractor=sys.argv[1], timeout=2)
    except fidtool.RunError as error:
        print("caught", "rank 1 of 2 did not join" in str(error))
total = torch.ones(1)
dist.all_reduce(total)
print(int(total))
dist.destroy_process_group()
"""
    found = ends(rank_server, start(script))
    assert [(status, stdout) for status, stdout, _ in found] == [(0, "caught True\n2\n"), (0, "2\n")], found


@pytest.mark.parametrize(
    ("handler", "status"), [("", -signal.SIGTERM), ("signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))", 7)]
)
def test_the_program_handles_its_own_signals(
    rank_server: RankServer, start: Start, folder: Path, handler: str, status: int
) -> None:
    script = f"""
import signal, sys, fidtool
{handler}
print("ready", flush=True)
try:
    fidtool.compute("real", "real", extractor=sys.argv[1], batch_size=1, cache=False)
except fidtool.FidtoolError as error:
    print("caught", type(error).__name__)
"""
    ranks = start(script, FAULT_PACE="1")
    wait_for_work(folder, 2)
    ranks[1].send(signal.SIGTERM)
    (_, first, _), (second_status, second, _) = ends(rank_server, ranks)
    assert second_status == status
    assert "caught" not in second
    assert first == "ready\ncaught RunError\n"


def test_ctrl_c_remains_a_keyboard_interrupt(rank_server: RankServer, start: Start, folder: Path) -> None:
    script = """
import sys, fidtool
try:
    fidtool.compute("real", "real", extractor=sys.argv[1], batch_size=1, cache=False)
except KeyboardInterrupt:
    print("interrupted")
"""
    ranks = start(script, FAULT_PACE="1")
    wait_for_work(folder, 2)
    # Like a terminal, signal all ranks at once. Otherwise a rank may notice the exit of the other first.
    for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGCONT):
        for rank in ranks:
            rank.send(number)
    found = ends(rank_server, ranks)
    assert [(status, stdout) for status, stdout, _ in found] == [(0, "interrupted\n")] * 2, found


def test_a_pass_that_never_ends_does_not_block_exit(environment: dict[str, str], folder: Path) -> None:
    """Neither Ctrl-C nor the exit of the program waits for it."""
    script = """
import sys, fidtool
try:
    fidtool.compute("real", "real", extractor=sys.argv[1], batch_size=1, cache=False)
except KeyboardInterrupt:
    print("interrupted")
    sys.exit(3)
"""
    own = {**environment, "FAULT": "stuck", "FAULT_AFTER": "2", "FORWARD_LOG": str(folder / "passes")}
    (process,) = own_interpreters(["-c", script, FAULTY], [own], folder)
    wait_for_work(folder, 4)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=PATIENCE)[0] == "interrupted\n"
    assert process.returncode == 3


def test_a_stuck_rank_does_not_block_the_exit_of_its_program(stuck: list[subprocess.Popen[str]]) -> None:
    """The error is about the stuck rank, not about ranks that did not join."""
    said = [process.communicate(timeout=PATIENCE)[0] for process in stuck]
    assert [process.returncode for process in stuck] == [5, 5], said
    assert ["rank 0 timed out after 10 s" in words for words in said] == [True, True], said


def test_even_slow_ranks_get_the_exception(rank_server: RankServer, slow_to_learn: list[Rank]) -> None:
    """A pass takes 8 s on each rank, which is longer than the command line would wait."""
    found = ends(rank_server, slow_to_learn)
    assert [(status, stdout) for status, stdout, _ in found] == [(0, "caught True\n")] * 2, found


def test_a_rank_that_waits_for_a_lost_one_gets_the_exception(rank_server: RankServer, alone: list[Rank]) -> None:
    """This holds although gloo keeps waiting."""
    assert rank_server.wait(alone[:1], PATIENCE) == [0], alone[0].stderr
    assert alone[0].stdout == "caught True\n"
