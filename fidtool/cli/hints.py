"""Hints for mistyped command lines: habits of other tools, and unknown commands."""

from __future__ import annotations

import os
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

import click

from fidtool.names import shortened
from fidtool.sources.kinds import is_reference

_HABITS = dict(line.split(": ") for line in Path(__file__).with_name("habits.txt").read_text().splitlines())
"""What to write in place of the commands and flags of other tools."""


def _exists(path: str) -> bool:
    """Whether a set exists, as far as that can be seen without a request or a download."""
    return os.path.exists(path) or path == "-" or "://" in path or is_reference(path)


def advice(error: click.UsageError, typed: Sequence[str], commands: Sequence[str]) -> str:
    """Return click's message about the arguments of ``fidtool``, with what to write instead."""
    name, typed = typed[0], [each for each in typed if each not in {"-h", "--help", "--help-all"}]
    message, wrong, close = error.message.rstrip("."), name, get_close_matches(name, commands)
    if isinstance(error, click.NoSuchOption):
        wrong, close = error.option_name, error.possibilities or []
        message = f"No such option '{wrong}'"  # click's words depend on its version
    elif name in commands:  # a shell may have put thousands of files in place of a wildcard
        files = name in ("check", "stats") and message.startswith("Got unexpected extra arguments")
        return shortened(error.format_message().rstrip(".")) + ": pass a folder, or quote the wildcard" * files
    if name.startswith("-") and not {*commands}.isdisjoint(typed):
        return f"{message}; options follow the command"
    flags = [each.partition("=")[0] for each in typed if each.startswith("-") and name not in commands]
    words = {each: each.replace("_", "-").removesuffix(".py") for each in (wrong, *flags)}
    habits = [f"{each} is {_HABITS[word]}" for each, word in words.items() if word in _HABITS]
    if habits and (words[wrong] in _HABITS or not close):
        return f"{message}: in fidtool {', '.join(habits)}"
    if name not in commands and any(map(_exists, typed if name.startswith("-") else [name])):
        return f"{message}; to compare two sets write `fidtool compute REAL FAKE`"
    if close:
        return f"{message}; did you mean {close[0]}?"
    return message if name in commands else f"{message}; the commands are {', '.join(commands)}"
