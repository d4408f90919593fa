"""Options passed twice: different values are refused by every command; the values of --metrics add up."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from support.command_line import Run
from support.inside import COMMANDS
from support.pictures import make_pictures
from support.places import TINY

ARGUMENTS = {"compute": ["real", "fake"], "stats": ["images", "-o", "kept.npz"], "check": ["images"]}


def values_of(option: click.Option) -> tuple[str, str]:
    """Return two different values."""
    if isinstance(option.type, click.Choice):
        first, second, *_ = option.type.choices
        return str(first), str(second)
    if isinstance(option.type, click.FloatRange):
        return ("0.25", "0.75") if option.type.max == 1 else ("5", "6.5")
    return "3", "4"


OPTIONS = [
    pytest.param(command, option, id=f"{command.name} {option.opts[0]}")
    for command in COMMANDS.values()
    for option in command.params
    if isinstance(option, click.Option) and not option.multiple and (option.secondary_opts or not option.is_flag)
]
"""The options of each command that can contradict themselves: not repeatable options, and not plain flags."""


@pytest.mark.parametrize(("command", "option"), OPTIONS)
def test_two_values_are_refused(here: Run, command: click.Command, option: click.Option) -> None:
    """The message has the option and both values, in any spelling. No work is started."""
    first, second = values_of(option)
    name, *other_names = option.opts
    given = [name, first, f"{name}={second}"]
    if other_names:
        given = [name, first, other_names[0], second]
    said = f"{name} is passed twice, as {first} and as {second}: pass it once"
    if option.is_flag:
        given, said = [name, option.secondary_opts[0]], f"{name} and {option.secondary_opts[0]} contradict each other"
    run = here(command.name, *ARGUMENTS.get(str(command.name), []), *given)
    if option.name == "output" and command.name == "stats":
        said = "--output is passed twice, as kept.npz and as 3"
    assert (run.status, run.stdout) == (2, "")
    assert said in run.error
    assert f"(see `fidtool {command.name} --help`)" in run.error


def test_the_same_value_twice_is_accepted(here: Run) -> None:
    """Different spellings of a number, repeated flags, and an argument that looks like an option are accepted too."""
    same = ["--seed", 1, "--seed=01", "--json", "--json", "--no-recursive", "--no-recursive", "--fail-above", 1]
    run = here("compute", "real", "fake", *same, "--fail-above", "1.0", "--device", "cpu", "--", "--seed")
    assert run.status == 2
    assert "no such file or folder: real" in run.error
    assert here("cache", "--clear", "--clear").status == 0


def test_an_invalid_value_twice_has_the_usual_message(here: Run) -> None:
    assert "'x' is not a valid integer" in here("compute", "real", "fake", "--seed", "x", "--seed", "x").error


def test_metrics_add_up(here: Run, tmp_path: Path) -> None:
    images = make_pictures(tmp_path / "images", 20)
    arguments = ("compute", images, images, "--extractor", TINY, "--json", "--no-diagnosis", "--kid-subset-size", 9)
    one = here(*arguments, "--metrics", "kid,fid")
    several = here(*arguments, "--metrics", "kid", "--metrics", "fid", "--metrics=kid")
    assert several.metrics == one.metrics
    assert len(several.metrics) == 3, "the Fréchet distance, KID and its standard deviation"
    idle = here("compute", images, images, "--metrics", "fid", "--metrics", "prdc", "--kid-subset-size", 9)
    assert "--kid-subset-size is a setting of kid" in idle.error
