"""The examples at the end of each command's ``--help``, run in a folder with two small sets."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

import pytest

from fidtool.cli.options import Command
from fidtool.features.models.inception_weights import offline_path
from support.command_line import Run
from support.inside import COMMANDS
from support.pictures import make_pictures

pytestmark = pytest.mark.skipif(offline_path() is None, reason="needs fidtool[offline]")
GATES = {"--fail-above", "--strict", "verify"}
"""Flags with which an example may exit with the status of a missed gate."""
RANKS = 2
"""Number of ranks instead of the examples' GPUs."""


def run(fidtool: Run, words: list[str]) -> int:
    """Return the exit status of an example."""
    start = words.index("fidtool") + 1
    outcome = fidtool(*words[start:], ranks=None if words[0] == "fidtool" else RANKS)
    assert "Traceback" not in outcome.stderr, outcome.stderr
    return outcome.status


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_run(fidtool: Run, tmp_path: Path, name: str) -> None:
    command = COMMANDS[name]
    assert isinstance(command, Command)
    for seed, folder in enumerate(("real", "fake")):
        make_pictures(tmp_path / folder, 4, seed)
    if name == "cache":
        time.sleep(0.08)  # younger files are not cached: see test_cache
        assert run(fidtool, ["fidtool", "stats", "real/", "-o", "cached.npz"]) == 0
    for comment, line in command.examples:
        words = shlex.split(line)
        if "--download" not in words:
            assert run(fidtool, words) in ({0, 3} if GATES & set(words) else {0}), comment
