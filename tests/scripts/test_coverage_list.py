"""The list of code that is not covered, and the comparison of two lists."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.places import TESTS

pytest.importorskip("coverage", reason="needs coverage, from the extra 'dev'")

PROGRAM = """\
import os, sys

def sign(number):
    if number < 0:
        return -1
    return 1

def never():
    return 0

class Loud:
    def say(self, words):
        for word in words:
            print(word)

def work():
    Loud().say(["a"])
    os._exit(0)

sign(int(sys.argv[1]))
child = os.fork()
if not child: work()
os.waitpid(child, 0)
"""
SETTINGS = """\
[run]
branch = true
parallel = true
source = .
patch = _exit, fork
"""


def measured(folder: Path, argument: str) -> str:
    """Run the program with an argument and return the name of coverage's report."""
    report = f"{argument.replace('-', 'minus ')}.json"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}

    def coverage(*arguments: str) -> None:
        subprocess.run([sys.executable, "-m", "coverage", *arguments], cwd=folder, env=environment, check=True)

    coverage("run", "program.py", argument)
    coverage("combine", "-q")
    coverage("json", "-q", "-o", report)
    return report


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / ".coveragerc").write_text(SETTINGS)
    return tmp_path


def script(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TESTS / "coverage_list.py"), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_missing_code_is_listed_by_function_and_text(folder: Path) -> None:
    """Code that runs only in a fork that exits by ``os._exit`` is covered, except in frames from before the fork."""
    first, *listed = script(folder, "list", measured(folder, "5")).stdout.splitlines()
    assert first.startswith("# lines 16 of 18, branches 3 of 4"), first
    assert listed == [
        "program.py  never  return 0",
        "program.py  sign  if number < 0: -> return -1",
        "program.py  sign  return -1",
    ]


def test_lost_coverage_is_status_1(folder: Path) -> None:
    """Code whose text is now in another file or function is reported as moved."""
    for name, argument in (("5", "5"), ("minus 5", "-5")):
        script(folder, "list", measured(folder, argument), "--output", f"{name}.txt")
    same = script(folder, "compare", "5.txt", "5.txt")
    assert same.returncode == 0
    assert same.stdout.splitlines() == [
        "before: lines 16 of 18, branches 3 of 4 (86.36 %)",
        "after:  lines 16 of 18, branches 3 of 4 (86.36 %)",
    ]
    first = (folder / "5.txt").read_text()
    (folder / "moved.txt").write_text(first.replace("program.py  never", "other.py  renamed"))
    moved = script(folder, "compare", "5.txt", "moved.txt")
    line = "other.py  renamed  return 0"
    assert (moved.returncode, moved.stdout.splitlines()[2:]) == (0, [f"moved: {line}  (was in program.py never)"])
    (folder / "more.txt").write_text(first + line + "\n")
    more = script(folder, "compare", "5.txt", "more.txt")
    assert (more.returncode, more.stdout.splitlines()[2:]) == (1, [f"lost: {line}"])
    found = script(folder, "compare", "5.txt", "minus 5.txt")
    assert found.returncode == 1
    assert found.stdout.splitlines()[2:] == [
        "lost: program.py  sign  if number < 0: -> return 1",
        "lost: program.py  sign  return 1",
    ]
