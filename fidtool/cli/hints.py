"""Hints for mistyped command lines: habits of other tools, and unknown commands."""

from __future__ import annotations

import os
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from shlex import quote

import click

from fidtool.metrics.registry import BUILT_IN
from fidtool.names import legible, shortened
from fidtool.sources.kinds import is_reference

_HABITS = dict(
    line.split(": ") for line in Path(__file__).with_name("habits.txt").read_text().splitlines()
)
"""What to write in place of the commands and flags of other tools."""


_COMBINED = {
    ("check", ""): "fidtool check {} --against {}",
    ("history", ""): "fidtool table {} {}",
    ("history", ".jsonl"): "cat {} {} > all.jsonl; fidtool history all.jsonl",
}
"""What to write for two files or sets, by command and suffix."""


def _exists(path: str) -> bool:
    """Whether a set exists, as far as that can be seen without a request or a download."""
    return os.path.exists(path) or path == "-" or "://" in path or is_reference(path)


def _instead(name: str, message: str, typed: Sequence[str]) -> str:
    """Return what to write in place of arguments that a command does not take, or of a missing
    --output.
    """
    extra = (
        message.removeprefix("Got unexpected extra argument").partition("(")[2].rstrip(")").split()
    )
    paths = [
        each
        for each in typed
        if not each.startswith("-") and (_exists(each) or each.endswith(".npz"))
    ]
    if extra and {*extra} <= {*BUILT_IN}:
        return ": separate metrics by commas, `--metrics fid,kid`"
    sets = paths[:1] + [each for each in paths[1:] if not each.endswith(".npz")]
    is_stats = name == "stats" and (
        extra or not message
    )  # a missing option has no message of its own
    many = extra[1:] or (is_stats and sets[2:])
    if many and name in (
        "check",
        "stats",
    ):  # a shell may have put thousands of files in place of a wildcard
        return ": pass a folder, or quote the wildcard"
    line = ""
    if is_stats and paths:
        named = paths[1:] if len(sets) == 1 else []
        files = named or [f"{Path(images).stem}.npz" for images in sets]
        line = "; ".join(
            f"fidtool stats {quote(images)} -o {quote(files[i])}" for i, images in enumerate(sets)
        )
    elif extra and paths[1:]:
        combine = _COMBINED.get((name, Path(paths[0]).suffix)) or _COMBINED.get((name, ""), "")
        line = combine.format(*map(quote, paths[:2]))
    return f": write `{legible(line)}`" if line else ""


def advice(error: click.UsageError, typed: Sequence[str], commands: Sequence[str]) -> str:
    """Return click's message about the arguments of ``fidtool``, with what to write instead."""
    name = typed[0]
    typed = [each for each in typed if each not in {"-h", "--help", "--help-all"}]
    is_command = name in commands
    if isinstance(error, click.NoSuchOption):
        wrong, close = error.option_name, error.possibilities or []
        message = f"No such option '{wrong}'"  # click's words depend on its version
    elif is_command:
        return shortened(error.format_message().rstrip(".")) + _instead(
            name, error.message.rstrip("."), typed[1:]
        )
    else:
        wrong, close = name, get_close_matches(name, commands)
        message = f"no command '{legible(name)}'"
    if name.startswith("-") and not {*commands}.isdisjoint(typed):
        return f"{message}; options follow the command"
    flags = [] if is_command else [each.partition("=")[0] for each in typed if each.startswith("-")]
    words = {each: each.replace("_", "-").removesuffix(".py") for each in (wrong, *flags)}
    habits = [f"{each} is {_HABITS[word]}" for each, word in words.items() if word in _HABITS]
    if habits and (words[wrong] in _HABITS or not close):
        return f"{message}: in fidtool {', '.join(habits)}"
    if not is_command and any(map(_exists, typed if name.startswith("-") else [name])):
        return f"{message}; to compare two sets write `fidtool compute REAL FAKE`"
    if close:
        return f"{message}; did you mean {close[0]}?"
    return message if is_command else f"{message}; the commands are {', '.join(commands)}"
