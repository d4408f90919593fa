"""fidtool inside programs of the user's own: exceptions, signals and process groups stay the program's."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.pictures import make_pictures
from support.places import FAULTY
from support.processes import PATIENCE, as_from_a_terminal, free_port, wait_until


def start(environment: dict[str, str], folder: Path, script: str, ranks: int = 2) -> list[subprocess.Popen[str]]:
    """One process a rank that runs ``script`` in ``folder``."""
    (folder / "script.py").write_text(script)
    environment = {**environment, "FORWARD_LOG": str(folder / "passes")}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
    return [
        subprocess.Popen(
            [sys.executable, "script.py", FAULTY],
            env={**environment, **meeting, "RANK": str(rank)},
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=as_from_a_terminal,
        )
        for rank in range(ranks)
    ]


def wait_for_work(folder: Path, passes: int) -> None:
    """Until the network has begun so many passes."""
    log = folder / "passes"
    wait_until(lambda: log.exists() and log.stat().st_size >= passes, "no rank has begun")


def ends(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Status, stdout and stderr of each."""
    outputs = [process.communicate(timeout=PATIENCE) for process in processes]
    return [(process.returncode, *output) for process, output in zip(processes, outputs, strict=True)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_pictures(tmp_path / "real", 12, 1)
    (make_pictures(tmp_path / "bad", 12, 2) / "00004.png").write_bytes(b"no image")
    return tmp_path


def test_every_rank_gets_the_exception_however_slow_it_is(environment: dict[str, str], folder: Path) -> None:
    """A pass of 8 s on each rank: longer than the command line would wait."""
    script = """
import sys, fidtool
try:
    fidtool.compute("bad", "real", extractor=sys.argv[1], batch_size=6, cache=False)
except fidtool.InputError as error:
    print("caught", "00004.png" in str(error))
"""
    slow = {**environment, "FAULT_PACE": "8"}
    assert [(status, stdout) for status, stdout, _ in ends(start(slow, folder, script))] == [(0, "caught True\n")] * 2


def test_a_process_group_of_the_programs_own_outlives_a_failed_meeting(
    environment: dict[str, str], folder: Path
) -> None:
    """Rank zero alone calls fidtool: the classic mistake."""
    script = """
import sys, torch, torch.distributed as dist, fidtool
dist.init_process_group("gloo")
if dist.get_rank() == 0:
    try:
        fidtool.compute("real", "real", extractor=sys.argv[1], timeout=2)
    except fidtool.RunError as error:
        print("caught", "rank 1 of 2 did not come" in str(error))
total = torch.ones(1)
dist.all_reduce(total)
print(int(total))
dist.destroy_process_group()
"""
    found = ends(start(environment, folder, script))
    assert [(status, stdout) for status, stdout, _ in found] == [(0, "caught True\n2\n"), (0, "2\n")], found


@pytest.mark.parametrize(
    ("handler", "status", "said"),
    [("", -signal.SIGTERM, ""), ("signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))", 7, "")],
)
def test_signals_are_the_programs_own(
    environment: dict[str, str], folder: Path, handler: str, status: int, said: str
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
    processes = start({**environment, "FAULT_PACE": "1"}, folder, script)
    wait_for_work(folder, 2)
    processes[1].send_signal(signal.SIGTERM)
    (_, first, _), (second_status, second, _) = ends(processes)
    assert second_status == status
    assert "caught" not in second
    assert first == "ready\ncaught RunError\n"


def test_ctrl_c_stays_a_keyboard_interrupt(environment: dict[str, str], folder: Path) -> None:
    script = """
import sys, fidtool
try:
    fidtool.compute("real", "real", extractor=sys.argv[1], batch_size=1, cache=False)
except KeyboardInterrupt:
    print("interrupted")
"""
    processes = start({**environment, "FAULT_PACE": "1"}, folder, script)
    wait_for_work(folder, 2)
    # As a terminal does it, to all at once: else a rank may hear of the other's end before its own signal comes.
    for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGCONT):
        for process in processes:
            process.send_signal(number)
    found = ends(processes)
    assert [(status, stdout) for status, stdout, _ in found] == [(0, "interrupted\n")] * 2, found


def test_a_pass_that_never_ends_keeps_no_program(environment: dict[str, str], folder: Path) -> None:
    """Neither Ctrl-C nor the end of the program waits for it."""
    script = """
import sys, fidtool
try:
    fidtool.compute("real", "real", extractor=sys.argv[1], batch_size=1, cache=False)
except KeyboardInterrupt:
    print("interrupted")
    sys.exit(3)
"""
    stuck = {**environment, "FAULT": "stuck", "FAULT_AFTER": "2"}
    (process,) = start(stuck, folder, script, ranks=1)
    wait_for_work(folder, 4)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=PATIENCE)[0] == "interrupted\n"
    assert process.returncode == 3


def test_a_rank_that_is_stuck_ends_when_its_program_does(environment: dict[str, str], folder: Path) -> None:
    script = """
import sys, fidtool
try:
    fidtool.compute("real", "real", extractor=sys.argv[1], batch_size=1, cache=False, timeout=10, peer_timeout=60)
except fidtool.RunError as error:
    sys.exit(5)
"""
    stuck = {**environment, "FAULT": "stuck", "FAULT_AFTER": "2", "FAULT_RANK": "1"}
    assert [status for status, _, _ in ends(start(stuck, folder, script))] == [5, 5]
