"""Hints for mistyped command lines: habits of other tools, and unknown commands."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from shlex import quote

import click

from fidtool.metrics.registry import BUILT_IN
from fidtool.names import escape_text, shorten
from fidtool.sources.kinds import is_reference

OTHER_TOOLS_NAMES = dict(
    line.split(": ") for line in Path(__file__).with_name("habits.txt").read_text().splitlines()
)
"""What to write in place of the commands and flags of other tools."""


def explain_usage_error(
    error: click.UsageError, typed: Sequence[str], commands: Sequence[str]
) -> str:
    """Return click's message about the arguments of ``fidtool``, with what to write instead."""
    name = typed[0]
    arguments = [word for word in typed if word not in {"-h", "--help", "--help-all"}]
    is_command = name in commands
    if isinstance(error, click.NoSuchOption):
        wrong = error.option_name
        close = error.possibilities or []
        message = f"No such option '{wrong}'"  # click's words depend on its version
    elif is_command:
        message = shorten(error.format_message().rstrip("."))
        return message + _suggest_command(name, error.message, arguments[1:])
    else:
        wrong = name
        close = get_close_matches(name, commands)
        message = f"no command '{escape_text(name)}'"
    if name.startswith("-") and not {*commands}.isdisjoint(arguments):
        return f"{message}; put options after the command"
    suspects = [wrong]
    if not is_command:
        suspects += [word.partition("=")[0] for word in arguments if word.startswith("-")]
    habits = {}
    for word in suspects:
        habit = OTHER_TOOLS_NAMES.get(word.replace("_", "-").removesuffix(".py"))
        if habit is not None:
            habits[word] = f"{habit} instead of {word}"
    if wrong in habits or (habits and not close):
        return f"{message}: in fidtool, use {', '.join(habits.values())}"
    sets = arguments if name.startswith("-") else [name]
    if not is_command and any(map(_may_be_set, sets)):
        return f"{message}; to compare two sets, write `fidtool compute REAL FAKE`"
    if close:
        return f"{message}; did you mean {close[0]}?"
    return message if is_command else f"{message}; the commands are {', '.join(commands)}"


def _may_be_set(path: str) -> bool:
    """Whether a set exists, as far as that can be seen without a request or a download."""
    return os.path.exists(path) or path == "-" or "://" in path or is_reference(path)


def _suggest_command(command: str, message: str, arguments: Sequence[str]) -> str:
    """Return what to write in place of arguments that a command does not take, or of a missing
    --output.
    """
    unexpected = re.match(r"Got unexpected extra arguments? \((.*)\)", message)
    extra = unexpected[1].split() if unexpected else []
    if extra and {*extra} <= {*BUILT_IN}:
        return ": separate metrics by commas, `--metrics fid,kid`"
    paths = []
    for word in arguments:
        if not word.startswith("-") and (word.endswith(".npz") or _may_be_set(word)):
            paths.append(word)
    sets = paths[:1] + [path for path in paths[1:] if not path.endswith(".npz")]
    # The error about a missing option has no message of its own.
    is_stats = command == "stats" and (extra or not message)
    is_wildcard = len(extra) > 1 and command in ("check", "stats")
    if is_wildcard or (is_stats and len(sets) > 2):
        # A shell may have put thousands of files in place of a wildcard.
        return ": pass a folder, or quote the wildcard"
    line = ""
    if is_stats:
        line = "; ".join(_stats_command(path, paths, sets) for path in sets)
    elif extra and len(paths) > 1:
        first, second = map(quote, paths[:2])
        if command == "check":
            line = f"fidtool check {first} --against {second}"
        elif command == "history" and paths[0].endswith(".jsonl"):
            line = f"cat {first} {second} > all.jsonl; fidtool history all.jsonl"
        elif command == "history":
            line = f"fidtool table {first} {second}"
    return f": write `{escape_text(line)}`" if line else ""


def _stats_command(images: str, paths: Sequence[str], sets: Sequence[str]) -> str:
    """Return the command for one of the sets, whose file may be among the paths that were typed."""
    file = f"{Path(images).stem}.npz"
    if len(sets) == 1 and len(paths) > 1:
        file = paths[1]
    return f"fidtool stats {quote(images)} -o {quote(file)}"
