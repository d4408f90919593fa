"""Every command refuses options that contradict each other."""

from __future__ import annotations

from fidtool.cli.options import StrictCommand
from support.inside import COMMANDS


def test_every_command_is_strict() -> None:
    assert [name for name, command in COMMANDS.items() if not isinstance(command, StrictCommand)] == []
