"""Commands and options: made from the declarations of settings, grouped in ``--help``."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from fidtool.cli import config
from fidtool.cli.output import note, print_lines, redirect_prints
from fidtool.distributed.launch import discover_or_alone
from fidtool.errors import FidtoolError
from fidtool.features.choice import MODEL_FAMILIES
from fidtool.features.protocol import NAMED_PROTOCOLS
from fidtool.metrics.metric import ALL
from fidtool.metrics.registry import BUILT_IN
from fidtool.settings.presets import PRESETS, apply_preset
from fidtool.settings.settings import GROUPS, OUTPUT, Settings
from fidtool.validation import Setting

TYPED = click.core.ParameterSource.COMMANDLINE
"""Source of a parameter that is on the command line."""
# Beginning of the placeholder of an option or argument whose value is a path.
_NAMES_FILE = re.compile("FILE|DIR|FAKE|REAL|SET$|[A-Z]+[.]json")


def make_completer(
    names: Collection[str], or_file: bool = False
) -> Callable[..., list[CompletionItem]]:
    """Return a ``shell_complete`` of names, of a list with commas for its last one; ``or_file`` for
    files as well.
    """

    def complete(_: click.Context, __: click.Parameter, typed: str) -> list[CompletionItem]:
        listed, comma, last = typed.rpartition(",")
        items = [CompletionItem(listed + comma + name) for name in names if name.startswith(last)]
        if or_file and not items:
            items.append(CompletionItem(typed, type="file"))
        return items

    return complete


# Completion of settings whose values are names, but not only those.
_COMPLETING = {
    "preset": make_completer(PRESETS),
    "protocol": make_completer(NAMED_PROTOCOLS),
    "extractor": make_completer(["inception", *MODEL_FAMILIES], or_file=True),
    "metrics": make_completer([*BUILT_IN, ALL], or_file=True),
}


class GroupedOption(click.Option):
    """An option under the heading ``group`` in ``--help``, or in ``--help-all`` alone if it is not
    ``common``.
    """

    def __init__(self, *args: Any, group: str, common: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group = group
        self.common = common


class Command(click.Command):
    """A command with an option per setting. Its ``--help`` has headings and ends with examples.

    The command's function gets the settings as the argument ``settings``: a function without
    arguments that returns the `Settings`, and raises `InputError` if they are invalid.

    Args:
        settings: the class of the settings, by default one without any. Settings of metrics are
            added.
        examples: pairs of a comment and a command.
    """

    def __init__(
        self,
        *args: Any,
        settings: type = object,
        examples: Sequence[tuple[str, str]] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)
        self.fields = config.command_settings(settings)
        if self.fields:
            options = [_make_option(name, setting) for name, setting in self.fields.items()]
            self.params = [*options, *self.params, *_SETTINGS_OPTIONS]
        for parameter in self.params:
            if parameter.type is click.STRING and _NAMES_FILE.match(parameter.metavar or "REAL"):
                parameter.type = click.Path(readable=False)  # completed by shells, and not checked

    def invoke(self, ctx: click.Context) -> Any:
        if not self.fields:
            return super().invoke(ctx)
        typed = {}
        for name, setting in self.fields.items():
            value = setting.parse(ctx.params.pop(name))
            if ctx.get_parameter_source(name) == TYPED:
                typed[name] = value
        path = ctx.params.pop("config")
        dumps = ctx.params.pop("dump_config")
        file, filed = config.read_settings(path, self.fields.keys() - typed.keys())
        prints = discover_or_alone().rank == 0

        def settings() -> Settings:
            return Settings(**apply_preset(filed, typed))

        try:
            with redirect_prints():
                if dumps:
                    settings()
                    print_lines(config.format_settings({**filed, **typed}) if prints else [])
                    return 0
                if filed and prints:  # also with --quiet: they may change the values
                    note(f"settings from {file}: {', '.join(config.format_settings(filed)[1:])}")
                ctx.params["settings"] = settings
                return super().invoke(ctx)
        except FidtoolError as error:
            if error.setting in filed:
                error.note += f" ({error.setting} in {file})"
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one section per group, and options without a group after them; then the
        examples.
        """
        is_grouped = any(isinstance(parameter, GroupedOption) for parameter in self.params)
        ungrouped = "Help" if is_grouped else "Options"
        sections = {name: list[tuple[str, str]]() for name in (*GROUPS, ungrouped)}
        for parameter in self.get_params(ctx):
            is_shown = _HELP_ALL.name in ctx.meta or getattr(parameter, "common", True)
            # Recent versions of click list the arguments, too; the command's description explains
            # them.
            if is_shown and isinstance(parameter, click.Option):
                record = parameter.get_help_record(ctx)
                if record is not None:
                    sections[getattr(parameter, "group", ungrouped)].append(record)
        for name, records in sections.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)
        if self.examples:
            with formatter.section("Examples"):
                indent = " " * formatter.current_indent
                for comment, command in self.examples:
                    formatter.write(f"{indent}# {comment}\n{indent}{command}\n")


class LocalRankZeroCommand(Command):
    """A command that, under a launcher, only one process per machine runs. Its function may yield
    lines to print.
    """

    def invoke(self, ctx: click.Context) -> Any:
        if discover_or_alone().local_rank > 0:
            return None
        outcome = super().invoke(ctx)
        if isinstance(outcome, Iterator):
            for line in outcome:
                print_lines([line])
        return outcome


option = functools.partial(click.option, cls=GroupedOption)
"""`click.option` under the heading ``group``."""
outputs_option = functools.partial(
    click.option, "--output", "-o", "outputs", metavar="FILE", multiple=True
)
"""An option for the files that a result is written to besides stdout."""
JSON = click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
# Sentences that ``--help`` adds to the help texts of settings, which Python shows as well.
_NOTES = {
    "num": " Under torchrun, write --num-images.",
    "metrics": " Can be repeated.",
    "extractor": " Can be repeated.",
    "log": " Can be repeated. Under torchrun, write --log-to.",
    **dict.fromkeys(
        ("fail_above", "fail_worse_than", "max_duplicates"), " The exit status is then 3."
    ),
}
QUIET = option(
    "--quiet",
    "-q",
    group=OUTPUT,
    is_flag=True,
    help="Hide progress, timings and notes, but not warnings or verdicts.",
)


def _show_full_help(ctx: click.Context, parameter: click.Parameter, shown: bool) -> None:
    if shown and not ctx.resilient_parsing:
        ctx.meta[str(parameter.name)] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


_HELP_ALL = click.Option(
    ["--help-all"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_full_help,
    help="Show all options, including the less common ones, and exit.",
)
_SETTINGS_OPTIONS = (
    GroupedOption(
        ["--config"],
        group=OUTPUT,
        metavar="FILE.toml",
        help="File with settings, which flags override. [default: [tool.fidtool] in the "
        "repository's nearest pyproject.toml]",
    ),
    GroupedOption(
        ["--dump-config"],
        group=OUTPUT,
        is_flag=True,
        common=False,
        help="Print the settings that apply, in the form of a settings file, and exit.",
    ),
    _HELP_ALL,
)


def _join_names(
    context: click.Context, parameter: click.Parameter, names: Sequence[str]
) -> str | None:
    return ",".join(names) if names else None


def _make_option(name: str, setting: Setting) -> GroupedOption:
    shown = f" [default: {setting.shown}]" if setting.shown else ""
    flags = setting.flag.split()
    given: dict[str, Any] = {
        "help": f"{setting.text}{_NOTES.get(name, '')}{shown}",
        "metavar": setting.metavar,
        "shell_complete": _COMPLETING.get(name),
        "default": setting.default,
        "multiple": setting.kind is tuple,
        "show_default": setting.kind is not bool and setting.default is not None and not shown,
    }
    if name in ("metrics", "extractor"):
        given["multiple"] = True
        given["default"] = [setting.default] if setting.default else []
        given["callback"] = _join_names
    if setting.choices:
        given["type"] = click.Choice(setting.choices)
    elif setting.kind in (int, float):
        given["type"] = setting.kind
    elif setting.kind is bool:  # so that a flag overrides a file
        flags = [f"{setting.flag}/--no-{setting.flag[2:]}"]
    return GroupedOption([*flags, name], group=setting.group, common=setting.common, **given)
