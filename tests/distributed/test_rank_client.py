"""torchrun's ranks as forks of a process that has imported torch: they start and exit like new interpreters."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from support.command_line import Outcome
from support.processes import PATIENCE, wait_until
from support.ranks import Rank, RankServer, finish

Start = Callable[..., Rank]


@pytest.fixture
def start(rank_server: RankServer, environment: dict[str, str], tmp_path: Path) -> Start:
    """Starts the program as two ranks under torchrun."""

    def run(program: str, *arguments: object, **variables: str) -> Rank:
        (tmp_path / "script.py").write_text(f"import os, signal, sys, time\n{program}\n")
        script = [tmp_path / "script.py", *arguments]
        return rank_server.quick_torchrun(2, "script", script, {**environment, **variables}, tmp_path)

    return run


@pytest.fixture
def ended(rank_server: RankServer, start: Start) -> Callable[..., Outcome]:
    """Runs the program on two ranks until it exits."""
    return lambda *program, **variables: finish(rank_server, start(*program, **variables))


SLEEP = "open(f'{os.getpid()}.pid', 'w').close(); time.sleep(10000)"
"""Announces itself and keeps running."""


def pids(folder: Path) -> list[int]:
    return [int(file.stem) for file in folder.glob("*.pid")]


def wait_for_the_end(folder: Path) -> None:
    """Waits until the forks have exited and their parent has noticed."""
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids(folder)), "a fork is left")


def test_each_rank_runs_the_script_separately(ended: Callable[..., Outcome], tmp_path: Path) -> None:
    told = (
        "import torch\n"
        "names = ['RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'TORCHELASTIC_MAX_RESTARTS', 'HUE']\n"
        "words = [*map(os.environ.get, names), *sys.argv, os.getcwd(), sys.path[0], __name__]\n"
        "words += [torch.get_num_threads(), signal.getsignal(signal.SIGTERM) is signal.SIG_DFL]\n"
        "sys.stdout.write(f'{words}\\n')\n"
        "sys.stderr.write('also said\\n')\n"
        "sys.exit()"
    )
    run = ended(told, "one argument", "--two", HUE="blaß")
    assert run.status == 0, run.stderr
    folder = str(tmp_path)
    common = ["2", "0", "blaß", f"{folder}/script.py", "one argument", "--two", folder, folder, "__main__", 1, True]
    assert sorted(run.stdout.splitlines()) == [str([rank, rank, *common]) for rank in "01"]
    assert run.stderr.count("also said\n") == 2


def test_an_exception_is_printed_and_fails(ended: Callable[..., Outcome]) -> None:
    run = ended("if os.environ['RANK'] == '1': raise ValueError('too blue')\ntime.sleep(10000)")
    assert run.status == 1
    assert "Traceback (most recent call last):" in run.stderr
    assert "\nValueError: too blue\n" in run.stderr
    assert "(exitcode: 1) local_rank: 1 " in run.stderr


@pytest.mark.parametrize(("code", "status"), [("7", 7), ("'a reason'", 1)])
def test_an_exit_status_is_passed_on(ended: Callable[..., Outcome], code: str, status: int) -> None:
    run = ended(f"sys.exit({code})")
    assert run.status == 1
    assert f"(exitcode: {status}) " in run.stderr
    assert ("a reason" in run.stderr) == (status == 1)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT])
def test_torchrun_sees_the_signal_that_killed_a_rank(
    ended: Callable[..., Outcome], tmp_path: Path, number: signal.Signals
) -> None:
    """torchrun then stops the other rank."""
    run = ended(f"if os.environ['RANK'] == '1': os.kill(os.getpid(), {int(number)})\n{SLEEP}")
    assert run.status == 1
    assert f"(exitcode: {-number}) local_rank: 1 " in run.stderr
    wait_for_the_end(tmp_path)


def test_the_ranks_end_with_torchrun(rank_server: RankServer, start: Start, tmp_path: Path) -> None:
    """The ranks receive torchrun's SIGTERM and may handle it."""
    answer = "def answer(*_):\n    os.write(1, b'heard.')\n    sys.exit()\nsignal.signal(signal.SIGTERM, answer)"
    launcher = start(f"{answer}\n{SLEEP}")
    wait_until(lambda: len(pids(tmp_path)) == 2, "no rank has started")
    launcher.send(signal.SIGTERM)
    outcome = finish(rank_server, launcher)
    assert outcome.status != 0
    assert outcome.stdout == "heard." * 2
    wait_for_the_end(tmp_path)


def test_the_fork_of_a_killed_stand_in_exits(rank_server: RankServer, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(f"import os, time\n{SLEEP}")
    stand_in = subprocess.Popen(rank_server.stand_in("script", ["script.py"]), cwd=tmp_path)
    wait_until(lambda: len(pids(tmp_path)) == 1, "the script has not started")
    stand_in.kill()
    assert stand_in.wait(PATIENCE) == -signal.SIGKILL
    wait_for_the_end(tmp_path)


def test_the_server_waits_for_one_process_and_serves_others(
    rank_server: RankServer, environment: dict[str, str], tmp_path: Path
) -> None:
    """The first process exits once the second starts, which is requested while this process waits for the first."""
    (tmp_path / "script.py").write_text("import os, time\nwhile not os.path.exists('begun'):\n    time.sleep(0.01)")
    waiting = rank_server.launch("script", ["script.py"], environment, tmp_path)
    assert rank_server.wait([waiting], 0.1) == [None]
    (tmp_path / "other.py").write_text("import sys; print(sys.stdin.read()); open('begun', 'x')")
    command = rank_server.stand_in("script", ["other.py"])
    other = subprocess.Popen(
        ["sh", "-c", 'sleep 0.5; exec "$@"', "sh", *command],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert other.stdin is not None
    other.stdin.write(b"word")
    other.stdin.close()
    other.stdin = None
    assert rank_server.wait([waiting], PATIENCE) == [0]
    assert other.communicate(timeout=PATIENCE)[0] == b"word\n"


def test_the_server_ends_even_if_other_processes_hold_its_pipe(environment: dict[str, str], tmp_path: Path) -> None:
    """Forks of the test process, including decoding workers, inherit the pipe."""
    server = RankServer(environment, tmp_path)
    fork = os.fork()
    if not fork:
        signal.pause()
    try:
        server.close()
    finally:
        os.kill(fork, signal.SIGKILL)
        os.waitpid(fork, 0)
