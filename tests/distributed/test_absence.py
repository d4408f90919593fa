"""A rank that fails before the rendezvous reports it, and the other ranks do not wait for it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.arena import Arena
from support.command_line import Run
from support.goldens import Golden
from support.pictures import make_pictures
from support.places import TINY
from support.processes import PATIENCE, free_port, wait_until
from support.rank_lines import compare

SETTINGS = ["--extractor", TINY, "--no-cache", "--quiet"]
PATIENT = {"FIDTOOL_TEST_PATIENT": "1"}
"""Long deadlines, because a rank imports torch to report its failure, which may be slow."""
LEAVING = "from fidtool.cli import main; main.STOPPING_SECONDS = 600; main.process()"
"""The same for a rank that receives a signal, in a separate interpreter."""
TYPO = """
import os, sys
from fidtool.cli.main import process
ranks, *arguments = sys.argv[1:]
sys.argv = ["fidtool", *arguments, *(["--sed", "5"] if os.environ["RANK"] in ranks else [])]
process()
"""


@pytest.mark.parametrize(("ranks", "named"), [("1", True), ("01", False)])
def test_a_typo_ends_all_under_torchrun(
    program: Run, tmp_path: Path, ranks: str, named: bool
) -> None:
    """torchrun stops the other ranks as soon as one exits. A failed rank must wait, so that they
    learn the cause.
    """
    images = make_pictures(tmp_path / "images", 5)
    run = program(TYPO, ranks, "compute", images, images, *SETTINGS, ranks=2, **PATIENT)
    assert run.status == 1
    (said,) = re.findall(r"^error: .*", run.stderr, re.MULTILINE)
    assert "--sed" in said
    assert ("(rank 1 on " in said) == named


def test_a_wrong_value_on_one_rank_ends_all_without_a_launcher(
    arena: Arena, golden: Golden
) -> None:
    """The error is printed on that rank and on rank zero, which may be on another machine."""
    end = arena.begin_each(
        [arena.arguments(), arena.arguments("--value-range", "1,0")], **PATIENT
    ).end()
    assert (end.statuses, end.left) == ([2, 2], [])
    first, second = end.causes
    assert first == second
    compare(golden, "value on rank 1", first, arena.folder)


def listens(port: int) -> bool:
    """Return whether a process on this machine listens on the port. Connecting to it would count as
    a rank.
    """
    rows = [
        row.split()
        for name in ("tcp", "tcp6")
        for row in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return any(row[1].endswith(f":{port:04X}") and row[3] == "0A" for row in rows)


def catches(pid: int, number: int) -> bool:
    """Return whether a process already has a handler for the signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(status.split("SigCgt:")[1].split()[0], 16) >> (number - 1) & 1)


def test_a_signal_while_a_rank_still_starts_ends_all(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """The rank most likely receives it while it imports torch."""
    images = make_pictures(tmp_path / "images", 5)
    port = free_port()
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    command = [sys.executable, "-c", LEAVING, "compute", str(images), str(images), *SETTINGS]
    ranks = []
    for rank in range(2):
        own = {**environment, **meeting, "RANK": str(rank)}
        ranks.append(subprocess.Popen(command, env=own, stderr=subprocess.PIPE, text=True))
        if rank == 0:  # a stopped rank does not wait long if there is no other rank to report to
            wait_until(lambda: listens(port), "rank 0 has not started")
    # An earlier signal would end an interpreter that is not yet a rank.
    wait_until(lambda: catches(ranks[1].pid, signal.SIGTERM), "rank 1 has not started")
    ranks[1].send_signal(signal.SIGTERM)
    errors = [rank.communicate(timeout=PATIENCE)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [143, 143], errors
    for error in errors:
        (line,) = [line for line in error.splitlines() if line.startswith("error: ")]
        assert line.startswith("error: stopped by SIGTERM")
        assert "rank 1" in line
