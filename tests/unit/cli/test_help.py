"""Help texts: three examples per command, no limits in brackets, no line wider than the terminal."""

from __future__ import annotations

import re
import shlex

import pytest
from click.testing import CliRunner

import fidtool
from fidtool.cli.main import cli
from fidtool.cli.options import Command
from support.inside import COMMANDS


@pytest.mark.parametrize("width", [80, 110])
@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_and_has_no_limits(name: str, width: int) -> None:
    text = CliRunner().invoke(cli, [name, "--help"], terminal_width=width).output
    assert max(map(len, text.split("Examples:")[0].splitlines())) <= width
    assert not re.search(r"<=|x>=", text)


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_are_at_the_end(name: str) -> None:
    command = COMMANDS[name]
    assert isinstance(command, Command)
    if not command.examples:
        pytest.skip("this command has no examples")
    lines = [line for each in command.examples for line in (f"  # {each[0]}", f"  {each[1]}")]
    for width in (80, 110):
        text = CliRunner().invoke(cli, [name, "--help"], terminal_width=width).output
        assert text.split("\nExamples:\n")[1].splitlines() == lines
        assert max(map(len, lines)) <= 80
    assert len(command.examples) == 3
    for _, line in command.examples:
        assert "fidtool" in shlex.split(line)


@pytest.mark.parametrize("function", [fidtool.compute, fidtool.compute_statistics, fidtool.check])
def test_help_in_python_is_about_arguments(function: object) -> None:
    """Help texts are shared with the command line; those of fidtool's settings name no flags."""
    text = str(function.__doc__).split("Settings:\n")[1]
    own = text.splitlines()
    assert [line for line in own if " --" in line or "status 3" in line] == []
