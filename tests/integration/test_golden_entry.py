"""How fidtool is started, and where its warnings are found: scripts and filters name these."""

from __future__ import annotations

import importlib
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import fidtool

SCRIPT = """
import sys
from importlib.metadata import EntryPoint

sys.argv = ["fidtool", "--version"]
EntryPoint("fidtool", sys.argv_value, "console_scripts").load()()
"""


def test_the_script_answers(tmp_path: Path) -> None:
    """What the installed script ``fidtool`` loads is a command, in a process of its own."""
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="fidtool")
    program = SCRIPT.replace("sys.argv_value", repr(script.value))
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"fidtool, version {fidtool.__version__}\n", "")


def test_the_module_answers() -> None:
    ended = subprocess.run([sys.executable, "-m", "fidtool", "--version"], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"fidtool, version {fidtool.__version__}\n", "")


def test_warnings_are_where_filters_look_for_them() -> None:
    """Filters of pytest and Python name a warning by its module: one that has moved would be shown again."""
    assert importlib.import_module("fidtool.errors").FidtoolWarning is fidtool.FidtoolWarning
    assert issubclass(fidtool.FidtoolWarning, UserWarning)
