"""Hints for mistyped command lines: unknown commands, flags of other tools, metrics separated by spaces."""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Sequence
from difflib import get_close_matches

from fidtool.metrics.registry import is_name
from fidtool.report.names import command_line, legible

_DEVICE = "--device cuda; on several GPUs start one process per GPU with torchrun"
_INSTEAD = {
    "--gpu": _DEVICE,
    "--gpus": _DEVICE,
    "--cuda": _DEVICE,
    "--batch": "--batch-size",
    "--workers": "--num-workers",
    "--model": "--extractor",
    "--mode": "--protocol",
    "--limit": "--num",
    "--save-stats": "`fidtool stats IMAGES -o FILE.npz`",
}
"""What to use instead of flags of other tools."""


def foreign_flag(flag: str, flags: Collection[str]) -> str:
    """Return the message about another tool's flag; empty if it is none, or the command's ``flags`` lack its like."""
    instead = _INSTEAD.get(flag.replace("_", "-"), "--")
    known = instead.startswith("`") or instead.partition(" ")[0].rstrip(";") in flags
    return f"no such option {flag}: use {instead}" if known else ""


def unknown_command(typed: Sequence[str], commands: Sequence[str]) -> str:
    """Return the message about a command that does not exist; ``typed`` are all arguments, this command first."""
    name = typed[0]
    problem = f"no command '{legible(name)}'"
    is_path = os.path.exists(name) or any(sign in name for sign in "/\\.*{")
    sets = [each for each in typed if not each.startswith("-")]
    if not is_path and (similar := get_close_matches(name, commands, 1)):
        return f"{problem}: did you mean '{similar[0]}'?"
    if is_path or len(sets) == 2:
        meant = [*typed] if len(sets) > 1 else ["REAL", "FAKE"]
        return f"{problem}: to compare two sets write `{command_line(['fidtool', 'compute', *meant])}`"
    return f"{problem}; the commands are {', '.join(commands)}"


def separated_metrics(typed: Sequence[str]) -> str:
    """Return the message about metrics that are separated by spaces, as in ``--metrics fid kid``; empty if none are."""
    flags = list(itertools.takewhile(lambda each: each != "--", typed))
    for position, flag in enumerate(flags):
        name, equals, value = flag.partition("=")
        if name != "--metrics":
            continue
        rest = flags[position + 1 :] if equals else flags[position + 2 :]
        first = value if equals else "".join(flags[position + 1 : position + 2])
        stray = list(itertools.takewhile(_is_stray_metric, rest))
        if stray:
            joined = ",".join(each.strip(",") for each in (first, *stray))
            return f"metrics are separated by commas: write --metrics {joined}"
    return ""


def _is_stray_metric(text: str) -> bool:
    """Whether an argument is a metric rather than a set. ``images.npz:NAME`` is a set."""
    return (is_name(text.strip(",")) or ".py:" in text) and not os.path.exists(text)
