"""Prints what the installed fidtool offers: its commands, and their flags with whether these take a value."""

from __future__ import annotations

import json
import sys
from importlib.metadata import distribution
from typing import NoReturn
from unittest import mock

import click


class _FoundError(BaseException):
    """Carries the group out of the entry point."""


def _found(group: click.Group, *_: object, **__: object) -> NoReturn:
    raise _FoundError(group)


def group() -> click.Group:
    """The group that the command ``fidtool`` runs, wherever it is defined.

    Raises:
        SystemExit: there is no such command, or it runs no group of click's.
    """
    entries = distribution("fidtool").entry_points.select(group="console_scripts", name="fidtool")
    for entry in entries:
        start = entry.load()
        with mock.patch.object(click.Group, "main", _found), mock.patch.object(sys, "argv", ["fidtool"]):
            try:
                start()
            except _FoundError as found:
                asked: click.Group = found.args[0]
                return asked
        raise SystemExit(f"the command fidtool ({entry.value}) runs no group of click's")
    raise SystemExit("the installed package has no command fidtool")


def main() -> None:
    """Looks behind the entry point of the command ``fidtool``."""
    found, whole = {}, group()
    for name in sorted(whole.commands):
        # What the group lists may stand for a command that is imported when it is used.
        _, command, _ = whole.resolve_command(click.Context(whole), [name])
        assert command is not None
        options = [each for each in command.params if isinstance(each, click.Option)]
        found[name] = {
            flag: not each.is_flag for each in options for flag in sorted([*each.opts, *each.secondary_opts])
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
