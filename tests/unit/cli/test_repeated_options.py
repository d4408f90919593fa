"""Every command refuses options that contradict each other."""

from __future__ import annotations

from fidtool.cli.main import cli
from fidtool.cli.options import StrictCommand


def test_every_command_is_strict() -> None:
    assert [name for name, command in cli.commands.items() if not isinstance(command, StrictCommand)] == []
