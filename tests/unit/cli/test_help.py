"""Help texts: three examples per command, no limits in brackets, no line wider than the
terminal.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

import fidtool
from fidtool.cli.main import cli
from fidtool.cli.options import Command
from fidtool.metrics.registry import BUILT_IN
from support.inside import COMMANDS
from support.processes import PATIENCE

SELECTED = [name for name, command in COMMANDS.items() if getattr(command, "fields", None)]
"""Commands whose ``--help`` does not show all options."""


@pytest.mark.parametrize("width", [80, 110])
@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_and_has_no_limits(name: str, width: int) -> None:
    text = (
        CliRunner()
        .invoke(cli, [name, "--help-all" if name in SELECTED else "--help"], terminal_width=width)
        .output
    )
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


@pytest.mark.parametrize("name", SELECTED)
def test_help_shows_the_common_options(name: str) -> None:
    """``--help`` says how to see the others; ``--help-all`` shows all, under the same headings."""
    command = COMMANDS[name]
    short, whole = (
        CliRunner().invoke(cli, [name, flag], terminal_width=200)
        for flag in ("--help", "--help-all")
    )
    assert short.exit_code == whole.exit_code == 0
    assert "\n  --help-all  Show all options" in short.output
    options = [
        each for each in command.params if isinstance(each, click.Option) and each.name != "help"
    ]
    common = {each.opts[0] for each in options if getattr(each, "common", True)}
    texts = (each.output.split("\nExamples:")[0] for each in (short, whole))
    listed, every = (set(re.findall(r"^ +.*?(--[\w-]+)", text, re.M)) for text in texts)
    assert listed - {"--help"} == common
    assert len(common) <= 26
    assert every - {"--help"} == {each.opts[0] for each in options}
    assert set(re.findall(r"^\w.*:$", short.output, re.M)) <= set(
        re.findall(r"^\w.*:$", whole.output, re.M)
    )


@pytest.mark.parametrize("function", [fidtool.compute, fidtool.compute_statistics, fidtool.check])
def test_help_in_python_is_about_arguments(function: object) -> None:
    """Help texts are shared with the command line; those of fidtool's settings name no flags."""
    text = str(function.__doc__).split("Settings:\n")[1]
    own = text.splitlines()
    assert [line for line in own if " --" in line] == []


def test_help_and_usage_errors_wait_for_no_slow_import() -> None:
    program = """if 1:
        import contextlib, sys
        from fidtool.cli.main import main
        for arguments in ([], ["--help"], *([name, flag] for name in sys.argv[1:]
                                            for flag in ("--help", "--nonsense"))):
            with contextlib.suppress(SystemExit):
                main(arguments)
        print("imported:", *sorted({"torch", "numpy", "scipy", "tqdm"} & sys.modules.keys()))
    """
    run = subprocess.run(
        [sys.executable, "-c", program, *COMMANDS], capture_output=True, text=True, timeout=PATIENCE
    )
    assert run.stdout.splitlines()[-1] == "imported:", run.stderr
    searches = run.stderr.count("error: unknown topic '--nonsense'")  # the guide looks for options
    assert run.stderr.count("error: No such option '--nonsense'") + searches == len(COMMANDS)
    assert searches == 1


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_line_says_what_a_metric_is(name: str) -> None:
    """It is the first paragraph of the class's docstring."""
    document = json.loads(CliRunner().invoke(cli, ["metrics", name, "--json"]).stdout)
    about = document["metrics"][0]["about"]
    assert about == about.strip()
    assert about.endswith(".")
    assert "`" not in about
    assert len(about) > 60


def test_help_all_shows_every_option_of_every_command() -> None:
    text = CliRunner().invoke(cli, ["--help-all"], terminal_width=80).output
    for name in COMMANDS:
        flag = "--help-all" if name in SELECTED else "--help"
        assert CliRunner().invoke(cli, [name, flag], terminal_width=80).output in text + "\n"
    assert max(map(len, text.split("Examples:")[0].splitlines())) <= 80
