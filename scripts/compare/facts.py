"""Prints the commands of the installed fidtool as JSON, with their flags and whether each flag takes a value."""

from __future__ import annotations

import json
import sys
from importlib.metadata import distribution
from typing import NoReturn
from unittest import mock

import click


class _FoundError(BaseException):
    """Carries the click group out of the entry point."""


def _found(group: click.Group, *_: object, **__: object) -> NoReturn:
    raise _FoundError(group)


def group() -> click.Group:
    """Return the click group that the command ``fidtool`` runs, regardless of where it is defined.

    Raises:
        SystemExit: if there is no such command, or if it runs no click group.
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
        raise SystemExit(f"the command fidtool ({entry.value}) runs no click group")
    raise SystemExit("the installed package has no command fidtool")


def main() -> None:
    """Print the commands and flags."""
    found, whole = {}, group()
    for name in sorted(whole.commands):
        # The listed object may be a placeholder for a command that is imported on use.
        _, command, _ = whole.resolve_command(click.Context(whole), [name])
        assert command is not None
        options = [each for each in command.params if isinstance(each, click.Option)]
        found[name] = {
            flag: not each.is_flag for each in options for flag in sorted([*each.opts, *each.secondary_opts])
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
