"""fidtool within programs: exceptions, signals and process groups remain under the program's
control.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.pictures import make_pictures
from support.places import FAULTY, TINY
from support.processes import PATIENCE, wait_until
from support.ranks import Rank, RankServer, outcomes, own_interpreters


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_pictures(tmp_path / "real", 12, 1)
    return tmp_path


def wait_for_work(folder: Path, passes: int) -> None:
    """Wait until the network has started this many passes."""
    log = folder / "passes"
    wait_until(lambda: log.exists() and log.stat().st_size >= passes, "no rank has started")


def started(server: RankServer, folder: Path, script: str, **variables: str) -> list[Rank]:
    """Start a script on two ranks."""
    (folder / "script.py").write_text(script)
    environment = {**server.environment, "FORWARD_LOG": str(folder / "passes"), **variables}
    return server.ranks("script", [["script.py", FAULTY]] * 2, environment, folder)


@pytest.fixture(scope="module", autouse=True)
def lost(rank_server: RankServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Rank]]:
    """Rank 1 freezes and its connections stay open, as if its machine were lost. The last test
    checks rank 0.
    """
    script = """
import sys, fidtool
try:
    fidtool.compute("real", "real", extractor=sys.argv[1], batch_size=1, cache=False, peer_timeout=4)
except fidtool.RunError as error:
    print("caught", "sent no heartbeat" in str(error))
"""
    folder = tmp_path_factory.mktemp("lost")
    make_pictures(folder / "real", 12, 1)
    fault = {"FAULT": "stop", "FAULT_RANK": "1", "FAULT_AFTER": "2", "FIDTOOL_TEST_APART": "1"}
    ranks = started(rank_server, folder, script, **fault, FIDTOOL_TEST_SIGN=str(folder / "sign"))
    yield ranks
    ranks[1].kill()


@pytest.mark.parametrize("where", ["env://", "file://"])
def test_a_call_on_rank_zero_only(rank_server: RankServer, folder: Path, where: str) -> None:
    """A common mistake: the missing rank is named, and the program's process group stays usable."""
    script = """
import os, sys, torch, torch.distributed as dist, fidtool
rank, where = int(os.environ["RANK"]), os.environ["WHERE"]
dist.init_process_group("gloo", init_method=where, rank=rank, world_size=2)
if rank == 0:
    try:
        fidtool.compute("real", "real", extractor=sys.argv[1], timeout=2)
    except fidtool.RunError as error:
        print("caught", "waiting for rank 1 of 2: " in str(error) and "pass alone=True" in str(error))
    settings = {"extractor": sys.argv[1], "cache": False, "alone": True, "device": torch.device("cpu")}
    run = fidtool.compute("real", "real", **settings).run
    print(run.world_size, run.config["device"], fidtool.compute_statistics("real", **settings).count)
    print(fidtool.check("real", alone=True).images.images)
total = torch.ones(1)
dist.all_reduce(total)
print(int(total))
dist.destroy_process_group()
"""
    where = f"{where}{folder}/store" if where == "file://" else where
    ends = outcomes(started(rank_server, folder, script, WHERE=where))
    assert [(end.status, end.stdout) for end in ends] == [
        (0, "caught True\n1 cpu 12\n12\n2\n"),
        (0, "2\n"),
    ], ends


def test_a_rank_that_is_lost_is_named_whatever_the_store(
    rank_server: RankServer, folder: Path
) -> None:
    script = """
import os, sys, torch.distributed as dist, fidtool
place = {"init_method": "file://" + os.path.abspath("store"), "rank": int(os.environ["RANK"])}
dist.init_process_group("gloo", world_size=2, **place)
try:
    fidtool.compute("real", "real", extractor=sys.argv[1], batch_size=1, cache=False)
except fidtool.RunError as error:
    print("caught", str(error).startswith("rank 1 (process "), "exited without reporting an error" in str(error))
"""
    first, second = outcomes(
        started(rank_server, folder, script, FAULT="kill", FAULT_RANK="1", FAULT_AFTER="2")
    )
    assert (first.status, first.stdout) == (0, "caught True True\n"), first
    assert second.status == -signal.SIGKILL


def test_the_programs_process_group_is_used_and_left_open(
    rank_server: RankServer, folder: Path
) -> None:
    """As in a training script. Every rank gets the same evaluation."""
    make_pictures(folder / "fake", 9, 2)
    (folder / "script.py").write_text("""
import sys, torch, torch.distributed as dist, fidtool
if len(sys.argv) > 2:
    dist.init_process_group("gloo")
settings = dict(extractor=sys.argv[1], batch_size=2, cache=False)
values = [fidtool.compute("real", "fake", **settings) for _ in range(2)]
if len(sys.argv) > 2:
    count = torch.ones(1)
    dist.all_reduce(count)
    assert values[0].run.world_size == int(count) == 3
    dist.destroy_process_group()
print([value.frechet_distance.hex() for value in values])
""")
    grouped = rank_server.ranks(
        "script", [["script.py", TINY, "grouped"]] * 3, rank_server.environment, folder
    )
    alone = rank_server.ranks("script", [["script.py", TINY]], rank_server.environment, folder)
    ends = outcomes([*grouped, *alone])
    assert [end.status for end in ends] == [0] * 4, ends
    assert len({end.stdout for end in ends}) == 1, ends


def test_the_program_handles_its_own_signals(rank_server: RankServer, folder: Path) -> None:
    script = """
import signal, sys, fidtool
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
try:
    fidtool.compute("real", "real", extractor=sys.argv[1], batch_size=1, cache=False)
except fidtool.RunError:
    print("caught RunError")
"""
    ranks = started(rank_server, folder, script, FAULT_PACE="1")
    wait_for_work(folder, 2)
    ranks[1].send(signal.SIGTERM)
    first, second = outcomes(ranks)
    assert (second.status, second.stdout) == (7, ""), second
    assert (first.status, first.stdout) == (0, "caught RunError\n"), first


def test_ctrl_c_remains_a_keyboard_interrupt(rank_server: RankServer, folder: Path) -> None:
    script = """
import sys, fidtool
try:
    fidtool.compute("real", "real", extractor=sys.argv[1], batch_size=1, cache=False)
except KeyboardInterrupt:
    print("interrupted")
"""
    ranks = started(rank_server, folder, script, FAULT_PACE="1")
    wait_for_work(folder, 2)
    # Like a terminal, signal all ranks at once. Otherwise a rank may notice the exit of the other
    # first.
    for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGCONT):
        for rank in ranks:
            rank.send(number)
    ends = outcomes(ranks)
    assert [(end.status, end.stdout) for end in ends] == [(0, "interrupted\n")] * 2, ends


def test_a_pass_that_never_ends_does_not_block_exit(
    environment: dict[str, str], folder: Path
) -> None:
    """Neither Ctrl-C nor the exit of the program waits for it."""
    script = """
import sys, fidtool
try:
    fidtool.compute("real", "real", extractor=sys.argv[1], batch_size=1, cache=False)
except KeyboardInterrupt:
    print("interrupted")
    sys.exit(3)
"""
    own = {
        **environment,
        "FAULT": "stuck",
        "FAULT_AFTER": "2",
        "FORWARD_LOG": str(folder / "passes"),
    }
    (process,) = own_interpreters(["-c", script, FAULTY], [own], folder)
    wait_for_work(folder, 4)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=PATIENCE)[0] == "interrupted\n"
    assert process.returncode == 3


SLOW_END = f"""
import importlib.util, os, time
import torch.distributed
spec = importlib.util.spec_from_file_location("tiny", {TINY.rpartition(":")[0]!r})
tiny = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tiny)
network, leave = tiny.network, torch.distributed.destroy_process_group
def slowly(*arguments):
    time.sleep(1.5 if os.environ["RANK"] == "0" else 0)
    leave(*arguments)
torch.distributed.destroy_process_group = slowly
"""


def test_the_cause_is_printed_even_if_rank_zero_exits_slowly(
    rank_server: RankServer, environment: dict[str, str], folder: Path
) -> None:
    """torchrun kills the other ranks as soon as one exits with an error: the cause must be printed
    before that.
    """
    (make_pictures(folder / "fake", 20, 1) / "00011.png").write_bytes(b"no image")
    (folder / "slow.py").write_text(SLOW_END)
    arguments = ("compute", "real", "fake", "--extractor", "slow.py:network", "--quiet", "--json")
    outcome = rank_server.torchrun(2, "fidtool", arguments, environment, folder).outcome()
    assert outcome.stderr.count("00011.png") == 1
    assert outcome.json["exit"]["code"] == 2


def test_a_rank_that_waits_for_a_lost_one_gets_the_exception(lost: list[Rank]) -> None:
    """Although gloo keeps waiting."""
    assert (lost[0].wait(), lost[0].stdout) == (0, "caught True\n"), lost[0].stderr
