"""Prints what the installed fidtool offers: its commands, and their flags with whether these take a value."""

from __future__ import annotations

import importlib
import json
from importlib.metadata import distribution

import click


def main() -> None:
    """Looks behind the entry point of the command ``fidtool``, wherever that is."""
    (entry,) = (each for each in distribution("fidtool").entry_points if each.group == "console_scripts")
    module = importlib.import_module(entry.module)
    (group,) = (each for each in vars(module).values() if isinstance(each, click.Group))
    found = {}
    for name, command in sorted(group.commands.items()):
        options = [each for each in command.params if isinstance(each, click.Option)]
        found[name] = {
            flag: not each.is_flag for each in options for flag in sorted([*each.opts, *each.secondary_opts])
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
