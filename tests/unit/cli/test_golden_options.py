"""The command line: each command, each option with its spellings, values and default, and its place
in the help.
"""

from __future__ import annotations

import re
from typing import Any

import click
from click.testing import CliRunner

import fidtool
from fidtool.cli.main import cli
from support.command_line import Run
from support.goldens import Golden
from support.inside import COMMANDS

LEAST = {
    "compute": ["real", "fake"],
    "stats": ["images", "-o", "file.npz"],
    "check": ["images"],
    "weights": [],
    "cache": [],
    "protocols": [],
    "metrics": [],
    "refs": [],
    "published": [],
    "presets": [],
    "table": ["fid.json"],
    "verify": ["fid.json"],
    "diff": ["fid.json", "fid.json"],
    "history": ["fid.jsonl"],
    "report": ["fid.json"],
    "merge": ["part.npz", "-o", "fake.npz"],
    "demo": [],
    "guide": [],
}
"""Arguments that each command requires."""


def kind_of(kind: click.ParamType) -> str:
    """Return the values that an option accepts, in a form that does not depend on the version of
    click.
    """
    if isinstance(kind, click.Choice):
        return f"one of {', '.join(map(str, kind.choices))}" + (
            "" if kind.case_sensitive else ", in any case"
        )
    if isinstance(kind, (click.IntRange, click.FloatRange)):
        ends = ("from", kind.min, kind.min_open), ("to", kind.max, kind.max_open)
        limits = [
            f"{word} {end}{' (open)' * is_open}" for word, end, is_open in ends if end is not None
        ]
        return " ".join(["integer" if isinstance(kind, click.IntRange) else "number", *limits])
    return {"integer": "integer", "float": "number", "text": "text", "boolean": "yes or no"}.get(
        kind.name, kind.name
    )


def described(parameter: click.Parameter, default: Any) -> dict[str, Any]:
    """Return the properties of an option or an argument that users see."""
    found: dict[str, Any] = {"spelled": [*parameter.opts], "takes": kind_of(parameter.type)}
    if isinstance(parameter, click.Option):
        if parameter.secondary_opts:
            found["spelled_off"] = list(parameter.secondary_opts)
        if parameter.is_flag:
            found["takes"] = "nothing"
        found["shown_as"] = None if parameter.is_flag else parameter.metavar
        found |= {
            "default": default,
            "hidden": parameter.hidden,
            "several_times": parameter.multiple,
        }
    found |= {
        "required": parameter.required,
        "variable": parameter.envvar,
        "how_many": parameter.nargs,
    }
    return found


def defaults_of(name: str, command: click.Command) -> dict[str, Any]:
    """Return the defaults of a command's parameters."""
    # As in fidtool itself: the outermost context sets the names of the help flags.
    whole = click.Context(cli, info_name="fidtool", **cli.context_settings)
    with command.make_context(name, list(LEAST[name]), parent=whole) as context:
        return dict(context.params)


def test_commands(golden: Golden) -> None:
    found: dict[str, Any] = {}
    for name, command in sorted(COMMANDS.items()):
        defaults = defaults_of(name, command)
        # click adds the help option itself, on request.
        own = [
            parameter for parameter in command.params if parameter.name not in ("help", "help_all")
        ]
        options = [each for each in own if isinstance(each, click.Option)]
        found[name] = {
            "hidden": command.hidden,
            "arguments": [
                described(each, None) for each in own if isinstance(each, click.Argument)
            ],
            "options": {
                each.opts[0]: described(each, defaults.get(str(each.name))) for each in options
            },
        }
    golden("cli/commands", found)


def headings(text: str) -> dict[str, list[str]]:
    """Return the options under each heading of a help text, by their first spelling, in order."""
    found: dict[str, list[str]] = {}
    heading = ""
    for line in text.splitlines():
        if named := re.fullmatch(r"(\w[\w ]*):", line):
            heading = named[1]
        elif (option := re.match(r"  (--?[\w-]+)", line)) and heading:
            found.setdefault(heading, []).append(option[1])
    return found


def test_help_in_groups(golden: Golden) -> None:
    """Groups of options, and their order: the common options, and all."""
    for golden_name, flag in ("cli/help", "--help"), ("cli/help_all", "--help-all"):
        shown = {name: CliRunner().invoke(cli, [name, flag], terminal_width=200) for name in LEAST}
        golden(
            golden_name,
            {
                name: headings(each.output)
                for name, each in shown.items()
                if each.output.startswith("Usage: ") and each.exit_code == 0
            },
        )


def test_help_of_the_group(golden: Golden) -> None:
    """The commands with one line each, and the version."""
    text = CliRunner().invoke(cli, ["--help"], terminal_width=200).output
    listed = text.split("Commands:\n", 1)[1].splitlines()
    golden("cli/group", [" ".join(line.split()) for line in listed if line])
    assert (
        CliRunner().invoke(cli, ["--version"]).output == f"fidtool, version {fidtool.__version__}\n"
    )


GIVEN = {
    "nothing": [],
    "metrics in two ways": ["--metrics", "fid,kid", "--metrics", "prdc", "--metrics", " kid"],
    "turned off": ["--no-cache", "--no-diagnosis", "--no-recursive"],
    "a range": ["--value-range", "-1,1"],
    "images": [
        "--num-images",
        "5",
        "--seed",
        "-3",
        "--on-error",
        "skip",
        "--max-skip",
        "0.5",
        "--max-pixels",
        "9",
    ],
    "machine": [
        "--device",
        "cpu",
        "--batch-size",
        "2",
        "--num-workers",
        "0",
        "--precision",
        "bf16",
    ],
    "network": ["--extractor", "a.pt", "--input-size", "8", "--feature-step", "-4"],
    "Inception by name": ["--extractor", "inception", "--dims", "768", "--protocol", "clean"],
    "settings of metrics": [
        *(
            "--metrics",
            "kid,is,prdc,cmmd",
            "--kid-subset-size",
            "9",
            "--kid-subsets",
            "8",
            "--kid-seed",
            "7",
        ),
        *("--is-splits", "6", "--is-bias", "--nearest-k", "4", "--ties", "inclusive"),
        *("--cmmd-extractor", "dinov2@weights=y,step=2"),
    ],
    "gates": [
        "--fail-above",
        "20",
        "--max-duplicates",
        "0.01",
        "--expect",
        "3",
        "--allow-mismatch",
    ],
    "what stands beside": ["--uncertainty", "--influence", "--report", "r.html"],
    "to resume": ["--checkpoint", "d", "--peer-timeout", "5", "--timeout", "60"],
}


def test_what_options_set(golden: Golden, here: Run) -> None:
    """The JSON records them under the names of the Python arguments, even if a run fails before it
    starts.
    """
    found: dict[str, Any] = {}
    for name, given in GIVEN.items():
        outcome = here("compute", "nowhere", "neither", *given, "--json")
        assert outcome.error == "error: no such file or folder: nowhere"
        found[name] = {"given": " ".join(given), "settings": outcome.json["run"]["config"]}
    golden("cli/settings", found)
