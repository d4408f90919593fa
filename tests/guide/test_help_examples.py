"""The examples at the end of each command's ``--help``, run in a folder with two small sets."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from fidtool.cli.options import Command
from fidtool.features.models.inception import offline_path
from support.command_line import Run
from support.inside import COMMANDS
from support.pictures import make_pictures

pytestmark = pytest.mark.skipif(offline_path() is None, reason="needs fidtool[offline]")
GATES = {"--fail-above", "--strict", "verify"}
"""Flags with which an example may exit with the status of a missed gate."""
SLOW = {"demo", "presets", "verify"}
RANKS = 2
"""Number of ranks instead of the examples' GPUs."""


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.slow] * (each in SLOW)) for each in COMMANDS]
)
def test_examples_run(
    here: Run, fidtool: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    command = COMMANDS[name]
    assert isinstance(command, Command)
    for seed, folder in enumerate(("real", "fake")):
        make_pictures(tmp_path / folder, 10 if name == "merge" else 4, seed)  # more than a batch
    monkeypatch.setattr("fidtool.cli.demo.COUNT", 4)
    for comment, line in command.examples:
        words = shlex.split(line)
        if "--download" in words:
            continue
        arguments = words[words.index("fidtool") + 1 :]
        if arguments[0] in ("compute", "stats") and not {"--preset", "--layout"} & {*arguments}:
            arguments += ["--dims", "64"]
        outcome = here(*arguments) if words[0] == "fidtool" else fidtool(*arguments, ranks=RANKS)
        assert outcome.status in ({0, 3} if GATES & set(words) else {0}), (comment, outcome.stderr)
