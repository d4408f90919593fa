"""Options of commands: made from the settings' declarations, listed in groups, refused where they contradict."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from math import inf, isinf
from typing import Any, TypeVar

import click

from fidtool.errors import InputError, LaunchError, as_argument
from fidtool.metrics.metric import keyword
from fidtool.metrics.registry import BUILT_IN, refuse_given_twice
from fidtool.settings import GROUPS, OUTPUT, CheckSettings, Settings
from fidtool.validation import Declared, declared

Function = TypeVar("Function", bound=Callable[..., Any])

_KEEPING = {"store": "append", "store_const": "append_const"}
"""How click's parser keeps every value, by how it would keep one."""


class StrictCommand(click.Command):
    """A command in which no option contradicts itself; the same value twice, and a flag twice, are fine.

    Of an option that is given twice with different values click would silently take the last.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See `click.Command.parse_args`.

        Raises:
            click.UsageError: an option that takes one value was given two.
        """
        if not ctx.resilient_parsing:
            options = [parameter for parameter in self.get_params(ctx) if isinstance(parameter, click.Option)]
            given = _all_values(ctx, options, args)
            for option in options:
                if not option.multiple and not option.count:
                    _refuse_contradiction(ctx, option, given.get(option.name, []))
        return super().parse_args(ctx, args)


class OnceCommand(StrictCommand):
    """A command that under a launcher one process of each machine carries out."""

    def invoke(self, ctx: click.Context) -> Any:
        """See `click.Command.invoke`."""
        from fidtool.distributed.launch import discover

        with contextlib.suppress(LaunchError):  # it needs no other rank
            if discover().local_rank > 0:
                return None
        return super().invoke(ctx)


def _all_values(ctx: click.Context, options: list[click.Option], args: list[str]) -> dict[str | None, list[Any]]:
    """All the values that ``args`` has for each option, by its name."""
    parser: Any = click.Command(None, add_help_option=False).make_parser(ctx)
    keeping: Any = _Keeping(parser)
    for option in options:
        option.add_to_parser(keeping, ctx)
    given: dict[str | None, list[Any]] = parser.parse_args(list(args))[0]
    return given


class _Keeping:
    """Stands in for a parser of click's while options add themselves: it will keep their values, and not the last."""

    def __init__(self, parser: Any) -> None:
        self._parser = parser

    def add_option(self, *, action: str, **settings: Any) -> None:
        self._parser.add_option(action=_KEEPING.get(action, action), **settings)


def _refuse_contradiction(ctx: click.Context, option: click.Option, values: list[Any]) -> None:
    first, name = values[:1], option.opts[0]
    for value in values[1:]:
        if value == first[0] or option.type_cast_value(ctx, value) == option.type_cast_value(ctx, first[0]):
            continue
        if option.is_flag:
            raise click.UsageError(
                f"{name} and {option.secondary_opts[0]} contradict each other: give one of them", ctx
            )
        raise click.UsageError(f"{name} is given twice, as {first[0]} and as {value}: give it once", ctx)


class GroupedOption(click.Option):
    """An option that stands under a heading in ``--help``."""

    def __init__(self, *args: Any, group: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group = group


class GroupedCommand(StrictCommand):
    """A command whose ``--help`` lists its options under headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes one section per group; ``--help`` and whatever has no group come last."""
        sections: dict[str, list[tuple[str, str]]] = {name: [] for name in (*GROUPS, "Help")}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            # Recent versions of click list the arguments too; the text above the options explains them.
            if record is not None and isinstance(parameter, click.Option):
                sections[getattr(parameter, "group", "Help")].append(record)
        for name, records in sections.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)


def option(*names: str, group: str, **settings: Any) -> Callable[[Function], Function]:
    """`click.option` under the heading ``group``."""
    return click.option(*names, cls=GroupedOption, group=group, **settings)


QUIET = option("--quiet", group=OUTPUT, is_flag=True, help="No progress and no timings on stderr; warnings stay.")


def as_flag(name: str, value: object = None) -> str:
    """`fidtool.errors.option` as the command line spells it: ``--on-error skip``."""
    if "." in name:
        return f"--metric-option {name}" if value is None else f"--metric-option {name}={_shown(value)}"
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
    """Whatever has a flag, by its name there: the settings of ``kind``, and those of metrics that are none of them."""
    return {**declared(kind), **{name: field for name, (_, field) in _further(kind).items()}}


def _further(kind: type[CheckSettings]) -> dict[str, tuple[str, Declared]]:
    """Settings of metrics that are no keywords of fidtool.compute, by the names of their flags: places and fields."""
    return {
        flag: (f"{name}.{field.name}", field._replace(name=flag))
        for name, metric in BUILT_IN.items()
        for field in declared(metric).values()
        if kind is Settings and (flag := keyword(metric, field)) not in declared(kind)
    }


def settings_options(kind: type[CheckSettings]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Gives a command one option per setting of ``kind``.

    The command gets them as ``settings``: a function without arguments that makes the `Settings`, and raises InputError
    where they are refused.
    """
    fields, further = declared(kind), _further(kind)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def command(**values: Any) -> Any:
            shared: dict[str, Any] = {name: values.pop(name) for name in fields}
            of_metrics = {place: (flag, values.pop(flag)) for flag, (place, _) in further.items()}
            return function(settings=functools.partial(_settings, shared, of_metrics), **values)

        for field in reversed(_flagged(kind).values()):
            command = _option_of(field)(command)
        return command

    return decorate


def _settings(values: dict[str, Any], of_metrics: dict[str, tuple[str, Any]]) -> Settings:
    """The settings, unless a flag of a metric that is not computed was given: it was meant for something.

    Args:
        values: the settings by name.
        of_metrics: by its place among ``metric_options`` what a further flag is called and its value, see `_further`.

    Raises:
        InputError: naming the flag and the metric; and see `Settings`.
    """
    settings = Settings(**values)
    owners = {keyword(kind, field): name for name, kind in BUILT_IN.items() for field in declared(kind).values()}
    typed = [flag for flag in owners if _was_typed(flag)]
    for flag in typed:
        if settings.metric(owners[flag]) is None:
            problem = f"{as_flag(flag)} is a setting of {owners[flag]}, which is not computed:"
            raise InputError(problem, "add it to --metrics", setting=flag)
    options = values.get("metric_options") or {}
    refuse_given_twice({"metric_options": options, **dict.fromkeys(typed)})
    further = {place: value for place, (flag, value) in of_metrics.items() if flag in typed}
    return Settings(**{**values, "metric_options": {**options, **further}}) if further else settings


def _was_typed(flag: str) -> bool:
    """Whether an option is on the command line; a command without it has no source for it."""
    return click.get_current_context().get_parameter_source(flag) == click.core.ParameterSource.COMMANDLINE


def _option_of(field: Declared) -> Callable[[Function], Function]:
    setting = field.setting
    names = _flags(field)
    shown = f" [default: {setting.shown_default}]" if setting.shown_default else ""
    given: dict[str, Any] = {"help": f"{setting.help}{shown}", "metavar": setting.metavar, "default": field.default}
    if field.name == "metrics":
        given |= {"multiple": True, "default": [field.default], "callback": _joined}
    if field.name == "metric_options":
        given |= {"multiple": True, "callback": _assignments}
    if field.kind is bool and "/" not in names[0]:
        given |= {"is_flag": True, "default": False}
    elif setting.choices:
        given |= {"type": click.Choice(setting.choices), "metavar": None}
        if field.kind is int:
            given |= {"callback": lambda context, parameter, value: None if value is None else int(value)}
    elif field.kind in (int, float):
        given |= {"type": _number_type(field)}
    given["show_default"] = field.kind is not bool and field.default is not None and not shown
    return option(*names, field.name, group=setting.group, **given)


def _joined(context: click.Context, parameter: click.Parameter, names: Sequence[str]) -> str:
    return ",".join(names)


def _assignments(context: click.Context, parameter: click.Parameter, texts: Sequence[str]) -> dict[str, str] | None:
    """``NAME.SETTING=VALUE`` as names and values."""
    found: dict[str, str] = {}
    for text in texts:
        place, equals, value = text.partition("=")
        if not equals or "." not in place:
            raise click.BadParameter(f"{text!r} is not NAME.SETTING=VALUE", context, parameter)
        if found.setdefault(place, value) != value:
            raise click.BadParameter(f"{place} is given twice, as {found[place]} and as {value}", context, parameter)
    return found or None


def _number_type(field: Declared) -> click.ParamType[Any]:
    least, most = field.setting.least, field.setting.most
    if (least, most) == (-inf, inf):
        return click.INT if field.kind is int else click.FLOAT
    limits: Any = [None if isinf(end) else end for end in (least, most)]
    return click.IntRange(*limits) if field.kind is int else click.FloatRange(*limits)
