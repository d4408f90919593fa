"""Entry points of fidtool and the location of its warning class, on which scripts and warning
filters rely.
"""

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


def test_the_console_script_runs() -> None:
    """The package has a script ``fidtool``, which loads the command in a separate process."""
    assert importlib.metadata.entry_points(group="console_scripts", name="fidtool")
    # Read from these sources: the installed package may be a different version.
    named = re.search(
        r'\[project\.scripts\]\nfidtool = "([\w.:]+)"\n',
        (ROOT / "pyproject.toml").read_text("utf-8"),
    )
    assert named
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, named[1]], capture_output=True, text=True
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (
        0,
        f"fidtool, version {fidtool.__version__}\n",
        "",
    )


def test_the_module_of_the_warning_class() -> None:
    """Warning filters of pytest and Python name the class by its module, so moving it would disable
    them.
    """
    assert importlib.import_module("fidtool.errors").FidtoolWarning is fidtool.FidtoolWarning
    assert issubclass(fidtool.FidtoolWarning, UserWarning)
