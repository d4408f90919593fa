"""Commands that refuse an option given twice with different values, of which click would silently take the last."""

from __future__ import annotations

from typing import Any

import click

_KEEPING = {"store": "append", "store_const": "append_const"}
"""How click's parser keeps every value, by how it would keep one."""


class StrictCommand(click.Command):
    """A command in which no option contradicts itself; the same value twice, and a flag twice, are fine."""

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
                    _check(ctx, option, given.get(option.name, []))
        return super().parse_args(ctx, args)


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


def _check(ctx: click.Context, option: click.Option, values: list[Any]) -> None:
    first, name = values[:1], option.opts[0]
    for value in values[1:]:
        if value == first[0] or option.type_cast_value(ctx, value) == option.type_cast_value(ctx, first[0]):
            continue
        if option.is_flag:
            raise click.UsageError(
                f"{name} and {option.secondary_opts[0]} contradict each other: give one of them", ctx
            )
        raise click.UsageError(f"{name} is given twice, as {first[0]} and as {value}: give it once", ctx)
