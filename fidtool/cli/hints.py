"""Hints for mistyped command lines: habits of other tools, unknown commands, metrics separated by spaces."""

from __future__ import annotations

import itertools
import os
import re
from collections import defaultdict, deque
from collections.abc import Sequence
from difflib import get_close_matches
from glob import glob
from importlib import import_module
from pathlib import Path
from typing import cast

import click

from fidtool.metrics.registry import is_name
from fidtool.names import command_line, existing_like, legible, shortened
from fidtool.sources.kinds import is_reference

_HABITS = dict(line.rsplit(": ", 1) for line in Path(__file__).with_name("habits.txt").read_text().splitlines())
"""Meanings, and the commands and flags of other tools that have them. ``{}`` is a flag's value. `_translated` places
what is in capitals; an ``ANSWER`` is for a line that has no other translation."""


def _meanings(word: str) -> list[str]:
    word = word.removesuffix(".py")
    if _is_metric(word):
        return [f"METRICS {word}"]
    word = re.sub("-(path|dir)$", "", word.replace("_", "-"))
    return [meaning for meaning, words in _HABITS.items() if word in words.split()]


def _is_metric(word: str) -> bool:
    return not word.startswith("-") and not _exists(word) and (is_name(word.strip(",")) or ".py:" in word)


def _exists(path: str) -> bool:
    """Whether a set exists, as far as that can be seen without a request or a download."""
    patterns = [re.sub(r"\{[^{}]*\}", "*", each) for each in (path, path.rpartition(":")[0])]
    found = os.path.exists(path) or (".py:" not in path and any(map(glob, patterns)))
    return found or path == "-" or ("://" in path and not path.startswith("-")) or is_reference(path)


def _command(name: str) -> click.Command:
    return cast(click.Command, getattr(import_module(f"fidtool.cli.{name}"), name))


def _translated(typed: Sequence[str], command: str) -> list[str]:
    """Return the arguments of ``fidtool`` for those after ``command`` that follow the habits of another tool.

    If no command of ``fidtool`` was typed, words before the sets that are no paths are commands of the other tool.
    """
    left, rest = deque(with_comma(typed)), list[str]()
    own = {flag for each in _command(command).params for flag in each.opts} - {"--metrics"} if command else set()
    placed: dict[str, list[str]] = defaultdict(list, COMMAND=[command or "compute"])
    while left:
        each = left.popleft()
        name, equals, value = each.partition("=")
        is_flag, leading = each.startswith("-"), not (rest or command)
        meanings = [] if _exists(each) or name in own else _meanings(name)
        if not (is_flag or leading):
            meanings = [meaning for meaning in meanings if meaning.startswith("METRICS")]
        if not meanings and (is_flag or not leading or _exists(each) or re.search("[/.]", each)):
            rest.append(name.replace("_", "-") + equals + value if is_flag else each)
        if not equals and left and any("{}" in meaning for meaning in meanings):
            value = left.popleft()
        for place, _, word in (meaning.partition(" ") for meaning in meanings):
            placed[place].append(word.replace("{}", value))
    return _assembled(placed, rest)


def _assembled(placed: dict[str, list[str]], rest: list[str]) -> list[str]:
    command = placed["COMMAND"][-1]
    if metrics := re.findall("[^,]+", ",".join(placed["METRICS"])):
        names = [re.sub("50k3?(_full)?$", "", each) for each in metrics]
        placed["--metrics"] = [",".join("prdc" if each == "pr" else each for each in names)]
    if "cuda" in "".join(placed.get("--device", ())) and not glob("/dev/nvidia[0-9]*"):
        del placed["--device"]  # a GPU is the default if there is one
    for name, flag, second in ("stats", "--output", r"\S+\.npz"), ("check", "--against", r"[^-]\S*"):
        if command == name and re.fullmatch(rf"[^-]\S* {second}( -.*)?", " ".join(rest)):
            rest.insert(1, flag)
    typed = {each.partition("=")[0] for each in rest}
    flags = {place: words[-1] for place, words in placed.items() if place.startswith("--") and place not in typed}
    if flags.get("--output", "").endswith(".pkl"):  # EDM2's; statistics are .npz
        flags["--output"] = flags["--output"].removesuffix("pkl") + "npz"
    sets = [*placed["FAKE"], *rest] if placed["REAL"] else [*rest, *placed["FAKE"]]
    return [command, *placed["REAL"], *sets, *filter(None, itertools.chain(*flags.items()))]


def _fault(arguments: Sequence[str]) -> str:
    """Return what is wrong with the arguments of ``fidtool``, as far as that is seen at once."""
    command = _command(arguments[0])
    context = click.Context(command, help_option_names=["-h", "--help"])  # the command keeps its help option
    try:
        click.Command.parse_args(command, context, [*arguments[1:]])
    except click.UsageError as error:
        return _plain(error)
    for metric in context.params.get("metrics", "fid").split(","):
        if not (is_name(metric) or ".py:" in metric):
            return f"unknown metric {metric!r}"
    for path in (context.params.get("real") or context.params["images"], *context.params.get("fakes", ())):
        if not _exists(path):
            similar = "".join(f" (did you mean {legible(each)}?)" for each in existing_like(path))
            return f"no such file or folder: {legible(path)}{similar}"
    return ""


def _plain(error: click.UsageError) -> str:
    """Return click's message without its guesses, which may be far from what was meant."""
    message = error.message if isinstance(error, click.NoSuchOption) else error.format_message()
    return shortened(message.rstrip("."))  # a shell may have put thousands of files in place of a wildcard


def advice(error: click.UsageError, typed: Sequence[str], commands: Sequence[str]) -> str:
    """Return click's message about the arguments of ``fidtool``, with what to write instead."""
    typed = [each for each in typed if each not in {"-h", "--help", "--help-all"}]
    name, plain = "".join(typed[:1]), _plain(error)
    known = name in commands
    options = (error.possibilities or ()) if isinstance(error, click.NoSuchOption) else ()
    closest = get_close_matches(getattr(error, "option_name", ""), options, 1)
    message = f"{plain}; did you mean {closest[0]}?" if closest else plain
    if name.startswith("-") and (named := [each for each in typed if each in commands and not _exists(each)]):
        after = [each for each in typed if each != named[0]]
        return f"{plain}: write `{command_line(['fidtool', named[0], *after])}`"
    similar = [] if known else get_close_matches(name, commands, 1)
    command = next((each for each in (name, *similar) if each in ("compute", "stats", "check")), "")  # those read sets
    given = [*typed[bool(command) :]]
    meant = _translated(given, command)
    fault = _fault(meant)
    if fault and (answers := [each for each in _meanings(name) if each.startswith("ANSWER")]):
        return f"{message}: {answers[0].removeprefix('ANSWER ')}"
    if command and plain.startswith("Got unexpected extra arguments"):
        return f"{plain}: pass a folder, or quote the wildcard"
    alike = meant == [*typed] or (fault and meant[1:] == given and (known or name.startswith("-")))
    if alike or fault == plain or (known and (not command or fault.startswith("Invalid value"))):
        return message
    if not fault:
        return f"{plain}: write `{command_line(['fidtool', *meant])}`"
    if similar and not _meanings(name):
        return f"{message}: did you mean '{similar[0]}'?"
    if known or _meanings(name) or re.search("[-/.*{]", name) or any(map(_exists, typed)):
        detail = "" if plain.startswith("Missing argument") else f": {fault}"
        return plain + detail + "; to compare two sets write `fidtool compute REAL FAKE`" * (meant[0] == "compute")
    return f"{message}; the commands are {', '.join(commands)}"


def with_comma(typed: Sequence[str]) -> list[str]:
    """Return the arguments with a comma between two numbers after ``--value-range``, separated by a space."""
    number = r"-?[\d.]+"
    return re.sub(rf"(--value-range[=\0]{number})\0({number})(?=\0|$)", r"\1,\2", "\0".join(typed)).split("\0")


def check_commas(typed: Sequence[str], context: click.Context) -> None:
    """Refuse metrics and numbers that are separated by spaces, as in ``--metrics fid kid``."""
    words = itertools.takewhile(lambda each: each != "--", typed)
    parts = [part for word in words for part in word.split("=", word.startswith("--metrics="))]
    triples = zip(parts, parts[1:], parts[2:], strict=False)
    if any(flag == "--metrics" and _is_metric(third) for flag, _, third in triples):
        raise click.UsageError("metrics are separated by commas", context)
    if with_comma(typed) != typed:
        raise click.UsageError("the numbers of --value-range are separated by a comma", context)
