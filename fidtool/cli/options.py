"""Commands and options: made from the declarations of settings, grouped in ``--help``."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import click

from fidtool.cli import hints
from fidtool.errors import LaunchError, as_argument
from fidtool.metrics.metric import METRICS
from fidtool.metrics.registry import BUILT_IN, METRIC_SETTINGS, key_of
from fidtool.presets import with_preset
from fidtool.settings import GROUPS, OUTPUT, CheckSettings, Settings, StatisticsSettings
from fidtool.validation import Setting, declared

Function = TypeVar("Function", bound=Callable[..., Any])


class GroupedOption(click.Option):
    """An option that ``--help`` lists under the heading ``group``."""

    def __init__(self, *args: Any, group: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group = group


class Command(click.Command):
    """A command whose ``--help`` has headings and ends with examples: pairs of a comment and a command."""

    def __init__(self, *args: Any, examples: Sequence[tuple[str, str]] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if hints.separates_metrics(args):
            raise click.UsageError("metrics are separated by commas", ctx)
        if args and hints.with_comma(args) != args:
            raise click.UsageError("the numbers of --value-range are separated by a comma", ctx)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one section per group, and options without a group last."""
        # Recent versions of click list the arguments, too; the command's description explains them.
        options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        groups = [*GROUPS, "Help"] if any(isinstance(each, GroupedOption) for each in options) else ["Options"]
        for name in groups:
            listed = [each for each in options if getattr(each, "group", groups[-1]) == name]
            if records := [record for each in listed if (record := each.get_help_record(ctx))]:
                with formatter.section(name):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                indent = " " * formatter.current_indent
                for comment, command in self.examples:
                    formatter.write(f"{indent}# {comment}\n{indent}{command}\n")


class OnceCommand(Command):
    """A command that, under a launcher, only one process per machine runs."""

    def invoke(self, ctx: click.Context) -> Any:
        from fidtool.distributed.launch import discover

        with contextlib.suppress(LaunchError):  # the command needs no other rank
            if discover().local_rank > 0:
                return None
        return super().invoke(ctx)


def option(*names: str, group: str, **settings: Any) -> Callable[[Function], Function]:
    """Return `click.option` under the heading ``group``."""
    return click.option(*names, cls=GroupedOption, group=group, **settings)


_NOTES = {"num": " Under torchrun write --num-images.", "metrics": " Can be repeated."}
"""Sentences that ``--help`` adds to the help texts of settings, which Python shows as well."""
QUIET = option(
    "--quiet", "-q", group=OUTPUT, is_flag=True, help="Hide progress, timings and notes, but no warnings or verdicts."
)


def as_flag(name: str, value: object = None) -> str:
    """Format a setting as a flag: ``--on-error skip``. See `fidtool.errors.option`."""
    if name.endswith(")"):
        owner, _, setting = name[:-1].partition("(")[2].partition(".")
        name = key_of(owner, setting)
    if "." in name:
        return f"--metric-option {name}" if value is None else f"--metric-option {name}={_shown(value)}"
    if name in ("real", "fake"):
        return name.upper()
    field = {**declared(Settings), **flags_of_metrics(Settings)}.get(name)
    if field is None or not field.group:
        return as_argument(name, value)
    flag, *pair = _flags(field)[0].split("/")
    if value is None or value is True:
        return flag
    if value is False and pair:
        return pair[0]
    return f"{flag} {field.metavar if value is ... else _shown(value)}"


def _shown(value: object) -> str:
    return ",".join(f"{each}" for each in value) if isinstance(value, tuple) else f"{value}"


def _flags(field: Setting) -> list[str]:
    return field.flag.split() or [f"--{field.name.replace('_', '-')}"]


def flags_of_metrics(kind: type[CheckSettings]) -> dict[str, Setting]:
    """Return the settings of metrics that have a flag, by its name: for statistics, those that select a network."""
    return {
        key: replace(each, name=key)
        for key, (metric, each) in METRIC_SETTINGS.items()
        if kind is Settings or (kind is StatisticsSettings and metric().network() is not None)
    }


def settings_options(kind: type[CheckSettings]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that gives a command one option per setting of ``kind``, and those of metrics if it has any.

    The command gets them as the argument ``settings``: a function without arguments that returns the `Settings`, and
    raises `InputError` if they are invalid.
    """
    fields = {name: each for name, each in declared(kind).items() if each.group}
    of_metrics = flags_of_metrics(kind)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def command(**values: Any) -> Any:
            all_given = {name: values.pop(name) for name in (*fields, *of_metrics)}
            given = {name: value for name, value in all_given.items() if was_typed(name)}
            metric_values = {name: given.pop(name) for name in of_metrics if name in given}
            metric_values |= values.pop("metric_options", {})
            return function(settings=lambda: Settings(**with_preset(given, metric_values)), **values)

        command = _METRIC_OPTION(command) if "metrics" in fields else command
        for field in reversed([*fields.values(), *of_metrics.values()]):
            command = _option_of(field)(command)
        return command

    return decorate


def was_typed(flag: str) -> bool:
    """Whether an option is on the command line. False if the command does not have the option."""
    return click.get_current_context().get_parameter_source(flag) == click.core.ParameterSource.COMMANDLINE


def _option_of(field: Setting) -> Callable[[Function], Function]:
    names = _flags(field)
    shown = f" [default: {field.shown}]" if field.shown else ""
    text = f"{field.text}{_NOTES.get(field.name, '')}{shown}"
    given: dict[str, Any] = {"help": text, "metavar": field.metavar, "default": field.default}
    if field.name == "metrics":
        given |= {"multiple": True, "default": [field.default], "callback": lambda _, __, names: ",".join(names)}
    if field.kind is bool and "/" not in names[0]:
        given |= {"is_flag": True, "default": False}
    elif field.choices:
        given |= {"type": click.Choice(field.choices), "metavar": None}
        if field.kind is int:
            given |= {"callback": lambda context, parameter, value: None if value is None else int(value)}
    elif field.kind in (int, float):
        given |= {"type": field.kind}
    given["show_default"] = field.kind is not bool and field.default is not None and not shown
    return option(*names, field.name, group=field.group, **given)


def _assignments(context: click.Context, parameter: click.Parameter, texts: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        place, equals, value = text.partition("=")
        if not equals or "." not in place:
            raise click.BadParameter(f"{text!r} is not NAME.SETTING=VALUE", context, parameter)
        if (owner := place.partition(".")[0]) in BUILT_IN:
            problem = f"{owner} is not a metric from a file: its settings are options, see `fidtool metrics {owner}`"
            raise click.BadParameter(problem, context, parameter)
        found[place] = value
    return found


_METRIC_OPTION = option(
    *("--metric-option", "metric_options"),
    group=METRICS,
    metavar="NAME.SETTING=VALUE",
    multiple=True,
    callback=_assignments,
    help="Setting of a metric from a file; `fidtool metrics FILE.py:NAME` lists them. Can be repeated.",
)
