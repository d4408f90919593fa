"""How fidtool is started, and where its warnings are found: scripts and filters name these."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import subprocess
import sys

import fidtool
from support.places import ROOT

PROGRAM = """
import sys
from importlib.metadata import EntryPoint

value, sys.argv = sys.argv[1], ["fidtool", "--version"]
EntryPoint("fidtool", value, "console_scripts").load()()
"""


def test_the_script_answers() -> None:
    """The package has a script ``fidtool``, and what that loads is the command, in a process of its own."""
    assert importlib.metadata.entry_points(group="console_scripts", name="fidtool")
    # Of these sources: what is installed may be of others.
    named = re.search(r'\[project\.scripts\]\nfidtool = "([\w.:]+)"\n', (ROOT / "pyproject.toml").read_text("utf-8"))
    assert named
    ended = subprocess.run([sys.executable, "-c", PROGRAM, named[1]], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"fidtool, version {fidtool.__version__}\n", "")


def test_the_module_answers() -> None:
    ended = subprocess.run([sys.executable, "-m", "fidtool", "--version"], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"fidtool, version {fidtool.__version__}\n", "")


def test_warnings_are_where_filters_look_for_them() -> None:
    """Filters of pytest and Python name a warning by its module: one that has moved would be shown again."""
    assert importlib.import_module("fidtool.errors").FidtoolWarning is fidtool.FidtoolWarning
    assert issubclass(fidtool.FidtoolWarning, UserWarning)
