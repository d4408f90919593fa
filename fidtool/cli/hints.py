"""Hints for mistyped command lines: unknown commands, flags of other tools, metrics separated by spaces."""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Sequence
from difflib import get_close_matches

from fidtool.metrics.registry import is_name
from fidtool.report.names import command_line, legible

_FLAGS = {
    "--device cuda; on several GPUs start one process per GPU with torchrun": "--gpu --cuda --use-gpu --use-cuda",
    "--device cpu": "--cpu --no-cuda --no-gpu",
    "--batch-size": "--batch --bs --batchsize -b",
    "--num-workers": "--workers --nw -j -w",
    "--extractor": "--model --network --net --backbone --feature-extractor --feature",
    "--protocol": "--mode",
    "--num": "--limit --max-images --num-samples --samples --num-gen -n",
    "--metrics": "--fid --kid --isc --prc",
    "--output": "--out --save --output-file",
    "--quiet": "--silent --no-progress --no-verbose",
    "--precision": "--fp16 --bf16 --half --amp --dtype",
    "--fail-above": "--threshold --max-fid",
    "--on-error skip": "--skip --skip-errors --ignore-errors",
    "--kid-subset-size": "--subset-size",
    "--nearest-k": "--k -k",
    "--checkpoint": "--resume",
    "--crop": "--crop-real --center-crop --samples-resize-and-crop --transform",
}
"""Flags of other tools, separated by spaces, by what to use instead."""
_REMARKS = {
    "start one process per GPU: `torchrun --nproc-per-node=N -m fidtool ...`": "--gpus --num-gpus --ngpus",
    "sets are arguments without flags, as in `fidtool compute REAL FAKE`": (
        "--path1 --path2 --input1 --input2 --fdir1 --fdir2 --real --fake --ref --gen"
    ),
    "published statistics have names, such as clean-fid:cifar10-32-train in place of REAL: see `fidtool refs`": (
        "--dataset --dataset-name --dataset-res --dataset-split"
    ),
    "use `fidtool stats IMAGES -o FILE.npz`": "--save-stats",
    "images of any size are accepted; `fidtool protocols` shows how they are resized": (
        "--res --resolution --size --image-size --img-size"
    ),
    "progress, timings and warnings are shown by default; --quiet hides progress and timings": "-v --verbose",
}
"""Flags that need a sentence, for commands that read images."""


def _listed(table: dict[str, str]) -> dict[str, str]:
    return {flag: hint for hint, flags in table.items() for flag in flags.split()}


_INSTEAD, _SENTENCES = _listed(_FLAGS), _listed(_REMARKS)


def unknown_flag(flag: str, flags: Collection[str]) -> str:
    """Return the message about a flag that a command does not have.

    Args:
        flag: the flag as typed, without its value.
        flags: all flags of the command.
    """
    problem, name = f"no such option {flag}", flag.replace("_", "-")
    instead = _INSTEAD.get(name, "")
    if instead.partition(" ")[0] in flags:
        return f"{problem}: use {instead}"
    if name in _SENTENCES and "--quiet" in flags:
        return f"{problem}: {_SENTENCES[name]}"
    # click suggests flags too, but also very different ones.
    names = {each.lstrip("-"): each for each in flags if each.startswith("--")}
    similar = [each for each in names.values() if name.startswith("--") and each.startswith(name)]
    similar = similar[:2] or [names[each] for each in get_close_matches(name.lstrip("-"), names, 2, 0.65)]
    return f"{problem}: did you mean {' or '.join(similar)}?" if similar else problem


def misplaced_flag(flag: str, typed: Sequence[str], commands: Sequence[str]) -> str:
    """Return the message about a flag before the command, or without one.

    Args:
        flag: the flag as typed.
        typed: all arguments of ``fidtool``.
        commands: names of the commands.
    """
    if flag in ("-v", "-V"):
        return f"no such option {flag}: did you mean --version?"
    name = flag.replace("_", "-")
    if name in _SENTENCES:
        return f"no such option {flag}: {_SENTENCES[name]}"
    if name in _INSTEAD:
        return f"no such option {flag}: write `fidtool compute REAL FAKE`, and after it {_INSTEAD[name]}"
    if similar := _similar(name, ("--version", "--help", *(f"--{command}" for command in commands))):
        meant = similar if similar in ("--version", "--help") else f"'{similar[2:]}'"
        return f"no such option {flag}: did you mean {meant}?"
    if len(typed) == 1:
        return f"no such option {flag}"
    meant = command_line(["fidtool", "compute", *typed])
    return f"no such option {flag} before a command: the command comes first, as in `{meant}`"


def unknown_command(typed: Sequence[str], commands: Sequence[str]) -> str:
    """Return the message about a command that does not exist.

    Args:
        typed: all arguments of ``fidtool``, with the unknown command first.
        commands: names of the commands.
    """
    name = typed[0]
    problem = f"no command '{legible(name)}'"
    if name == "help":
        return f"{problem}: write `fidtool {' '.join([*typed[1:2], '--help'])}`"
    is_path = os.path.exists(name) or any(sign in name for sign in "/\\.*{")
    sets = [each for each in typed if not each.startswith("-")]
    if not is_path and (similar := _similar(name, commands)):
        return f"{problem}: did you mean '{similar}'?"
    if is_path and len(sets) == 1:
        return f"{problem}: to compare two sets write `fidtool compute REAL FAKE`"
    if is_path or len(sets) == 2:
        return f"{problem}: to compare two sets write `{command_line(['fidtool', 'compute', *typed])}`"
    return f"{problem}; the commands are {', '.join(commands)}"


def _similar(name: str, known: Sequence[str]) -> str:
    return next(iter(get_close_matches(name, known, 1)), "")


def separated_metrics(typed: Sequence[str]) -> str:
    """Return the message about metrics that are separated by spaces, as in ``--metrics fid kid``; empty if none are.

    Args:
        typed: arguments of the command.
    """
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
