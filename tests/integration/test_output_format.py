"""Output formats of ``compute``: lines, a table on a terminal, JSON."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.command_line import Run
from support.pictures import make_pictures
from support.places import FD, TINY
from support.processes import PATIENCE
from support.ranks import RankServer

FLAGS = ("--extractor", TINY, "--quiet")
KID = ("--metrics", "fid,kid", "--kid-subset-size", 10)


@pytest.fixture
def sets(tmp_path: Path) -> list[Path]:
    """REAL and two FAKEs."""
    return [
        make_pictures(tmp_path / name, 40, seed)
        for seed, name in enumerate(("real", "fake", "other"))
    ]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make stdout look like a terminal."""
    monkeypatch.setattr("fidtool.cli.compute.is_terminal", lambda: True)


@pytest.mark.usefixtures("terminal")
def test_a_single_value_is_a_line(here: Run, sets: list[Path]) -> None:
    run = here("compute", *sets[:2], *FLAGS)
    assert run.stdout.startswith(f"{FD}: ")
    assert run.stdout.count("\n") == 1
    assert here("compute", *sets[:2], *FLAGS, "--format", "table").stdout.startswith("FAKE")


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("metrics", [(), KID], ids=["fid", "fid,kid"])
def test_several_values_are_a_table(
    here: Run, sets: list[Path], metrics: tuple[object, ...]
) -> None:
    lines = here("compute", *sets, *FLAGS, *metrics).stdout.splitlines()
    above = ["Features"] if metrics else []
    assert [line.split()[0] for line in lines] == [*above, "FAKE", "fake", "other", "*"]
    assert sum(line.count("*") for line in lines[-3:-1]) == 1 + bool(metrics)
    one = here("compute", *sets[:2], *FLAGS, *metrics).stdout
    assert one.startswith("Features of all values: ") == bool(metrics)
    assert "\n*" not in one


def test_without_a_terminal_there_are_lines(here: Run, sets: list[Path]) -> None:
    arguments = ("compute", *sets, *FLAGS, *KID)
    values = [result["metrics"] for result in here(*arguments, "--json").json["results"]]
    (fid, kid, std) = values[0]
    expected = "".join(
        f"{FD}: {found[fid]:.4f}  {path}\nKID ({TINY}): {found[kid]:.6f} ± {found[std]:.6f}  "
        f"{path}\n"
        for found, path in zip(values, sets[1:], strict=True)
    )
    assert here(*arguments).stdout == here(*arguments, "--format", "lines").stdout == expected
    table = here(*arguments, "--format", "table").stdout
    assert table.splitlines()[1].split()[0] == "FAKE"


@pytest.mark.skipif(sys.platform == "win32", reason="needs pseudo-terminals")
def test_a_real_terminal(
    sets: list[Path], environment: dict[str, str], rank_server: RankServer
) -> None:
    import pty

    reading, writing = pty.openpty()
    command = rank_server.stand_in("fidtool", ["compute", *sets, *FLAGS, *KID])
    done = subprocess.run(
        command, stdout=writing, stderr=subprocess.PIPE, env=environment, timeout=PATIENCE
    )
    os.close(writing)
    shown = os.read(reading, 65536).decode().splitlines()
    os.close(reading)
    assert (done.returncode, shown[-1]) == (0, "* best of its column")
    assert shown[1].split()[0] == "FAKE"
