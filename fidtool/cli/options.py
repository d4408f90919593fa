"""Commands and options: made from the declarations of settings, grouped in ``--help``."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from fidtool.cli import hints
from fidtool.errors import InputError, LaunchError, as_argument
from fidtool.metrics.registry import refuse_given_twice, settings_of_metrics
from fidtool.presets import with_preset
from fidtool.settings import GROUPS, OUTPUT, CheckSettings, Settings
from fidtool.validation import Declared, declared

Function = TypeVar("Function", bound=Callable[..., Any])


class Command(click.Command):
    """A command whose ``--help`` ends with examples: pairs of a comment and a command."""

    def __init__(self, *args: Any, examples: Sequence[tuple[str, str]] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)

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


class GroupedOption(click.Option):
    """An option that ``--help`` lists under the heading ``group``."""

    def __init__(self, *args: Any, group: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group = group


class GroupedCommand(Command):
    """A command whose ``--help`` lists its options under headings."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if hints.separates_metrics(args):
            raise click.UsageError("metrics are separated by commas", ctx)
        if args and hints.with_comma(args) != args:
            raise click.UsageError("the numbers of --value-range are separated by a comma", ctx)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one section per group, and options without a group last."""
        sections: dict[str, list[tuple[str, str]]] = {name: [] for name in (*GROUPS, "Help")}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            # Recent versions of click list the arguments, too; the command's description explains them.
            if record is not None and isinstance(parameter, click.Option):
                sections[getattr(parameter, "group", "Help")].append(record)
        for name, records in sections.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)


def option(*names: str, group: str, **settings: Any) -> Callable[[Function], Function]:
    """Return `click.option` under the heading ``group``."""
    return click.option(*names, cls=GroupedOption, group=group, **settings)


_NOTES = {
    "num": " Under torchrun write --num-images.",
    "metrics": " Can be repeated.",
    "metric_options": " Can be repeated.",
}
"""Sentences that ``--help`` adds to the help texts of settings, which Python shows as well."""
QUIET = option(
    "--quiet", "-q", group=OUTPUT, is_flag=True, help="Hide progress, timings and notes, but no warnings or verdicts."
)


def as_flag(name: str, value: object = None) -> str:
    """Format a setting as a flag: ``--on-error skip``. See `fidtool.errors.option`."""
    if "." in name:
        return f"--metric-option {name}" if value is None else f"--metric-option {name}={_shown(value)}"
    if name in ("real", "fake"):
        return name.upper()
    field = _flagged(Settings).get(name)
    if field is None:
        return as_argument(name, value)
    flag, *pair = _flags(field)[0].split("/")
    if value is None or value is True:
        return flag
    if value is False and pair:
        return pair[0]
    return f"{flag} {field.setting.metavar if value is ... else _shown(value)}"


def _shown(value: object) -> str:
    return ",".join(f"{each}" for each in value) if isinstance(value, tuple) else f"{value}"


def _flags(field: Declared) -> list[str]:
    return field.setting.flag.split() or [f"--{field.name.replace('_', '-')}"]


def _flagged(kind: type[CheckSettings]) -> dict[str, Declared]:
    """Return all settings that have a flag, by its name: those of ``kind``, and with `Settings` all of metrics."""
    fields = {name: field for name, field in declared(kind).items() if field.setting.group}
    further = settings_of_metrics() if kind is Settings else {}
    return fields | {flag: field._replace(name=flag) for flag, (_, field) in further.items() if flag not in fields}


def settings_options(kind: type[CheckSettings]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that gives a command one option per setting of ``kind``.

    The command gets them as the argument ``settings``: a function without arguments that returns the `Settings`, and
    raises `InputError` if they are invalid.
    """
    fields = _flagged(kind)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def command(**values: Any) -> Any:
            given = {name: values.pop(name) for name in fields}
            return function(settings=functools.partial(_settings, given), **values)

        for field in reversed(fields.values()):
            command = _option_of(field)(command)
        return command

    return decorate


def _settings(given: dict[str, Any]) -> Settings:
    values = {name: value for name, value in given.items() if name in declared(Settings)}
    values |= with_preset({name: value for name, value in values.items() if was_typed(name)})
    settings = Settings(**values)
    typed = {flag: each for flag, each in settings_of_metrics().items() if was_typed(flag)}
    for flag, (owner, _) in typed.items():
        if settings.metric(owner) is None:
            problem = f"{as_flag(flag)} is a setting of {owner}, which is not computed:"
            raise InputError(problem, f"add {owner} to --metrics", setting=flag)
    options = values.get("metric_options") or {}
    refuse_given_twice({"metric_options": options, **dict.fromkeys(typed)})
    further = {f"{owner}.{field.name}": given[flag] for flag, (owner, field) in typed.items() if flag not in values}
    return Settings(**{**values, "metric_options": {**options, **further}}) if further else settings


def was_typed(flag: str) -> bool:
    """Whether an option is on the command line. False if the command does not have the option."""
    return click.get_current_context().get_parameter_source(flag) == click.core.ParameterSource.COMMANDLINE


def _option_of(field: Declared) -> Callable[[Function], Function]:
    setting = field.setting
    names = _flags(field)
    shown = f" [default: {setting.shown_default}]" if setting.shown_default else ""
    text = f"{setting.help}{_NOTES.get(field.name, '')}{shown}"
    given: dict[str, Any] = {"help": text, "metavar": setting.metavar, "default": field.default}
    if field.name == "metrics":
        given |= {"multiple": True, "default": [field.default], "callback": lambda _, __, names: ",".join(names)}
    if field.name == "metric_options":
        given |= {"multiple": True, "callback": _assignments}
    if field.kind is bool and "/" not in names[0]:
        given |= {"is_flag": True, "default": False}
    elif setting.choices:
        given |= {"type": click.Choice(setting.choices), "metavar": None}
        if field.kind is int:
            given |= {"callback": lambda context, parameter, value: None if value is None else int(value)}
    elif field.kind in (int, float):
        given |= {"type": field.kind}
    given["show_default"] = field.kind is not bool and field.default is not None and not shown
    return option(*names, field.name, group=setting.group, **given)


def _assignments(context: click.Context, parameter: click.Parameter, texts: Sequence[str]) -> dict[str, str] | None:
    found: dict[str, str] = {}
    for text in texts:
        place, equals, value = text.partition("=")
        if not equals or "." not in place:
            raise click.BadParameter(f"{text!r} is not NAME.SETTING=VALUE", context, parameter)
        found[place] = value
    return found or None
