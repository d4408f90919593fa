"""``fidtool completion``."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from fidtool.cli.options import Command
from fidtool.cli.output import print_lines


@click.command(cls=Command)
@click.argument("shell", metavar="SHELL", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script with which a shell completes commands, options, their values and paths.

    \b
    bash 4.4, in ~/.bashrc: eval "$(fidtool completion bash)"
    zsh, in ~/.zshrc:       eval "$(fidtool completion zsh)"
    fish: fidtool completion fish > ~/.config/fish/completions/fidtool.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    made = kind(context.find_root().command, {}, "fidtool", "_FIDTOOL_COMPLETE")
    print_lines((made.source_template % made.source_vars()).strip().splitlines(), "the script")
