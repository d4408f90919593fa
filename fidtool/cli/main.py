"""The ``fidtool`` command: its subcommands, error messages and exit status."""

from __future__ import annotations

import atexit
import contextlib
import errno
import importlib
import os
import sys
import threading
from collections.abc import Sequence
from typing import NoReturn

import click

from fidtool import __version__
from fidtool.cli.output import keep_running_without_stderr, print_error
from fidtool.distributed import signals
from fidtool.distributed.launch import discover_or_alone, launcher_serves_store
from fidtool.distributed.signals import stopped_error
from fidtool.distributed.watchdog import add_location
from fidtool.errors import FidtoolError, InputError, LaunchError, RunError, StoppedError
from fidtool.system.background import CALL_THREAD_NAME

EXIT_SECONDS = 3.0
"""Maximum time for exit functions and flushing after an error."""
REPORT_SECONDS = 8.0
"""How long a rank that fails before the rendezvous tries to report its error to the others, which
may still start.
"""
STOPPING_SECONDS = 4.5
"""The same for a rank that was stopped by a signal."""
# Help line of each command. The command is in the module of `fidtool.cli` with its name, or in one
# of `_MODULES`.
_COMMANDS = {
    "cache": "List the cached statistics, or delete them.",
    "check": "Report what may be wrong with a set of images.",
    "compute": "Compute the FID and other metrics of each FAKE against REAL.",
    "demo": "Try fidtool: make two sets of images and compute their FID.",
    "diff": "Show what changed from one result to another.",
    "guide": "Show the topics or a page of the guide, or search it for words.",
    "history": "Show the results in a history, by set and date.",
    "merge": "Merge the statistics of the parts of a set.",
    "metrics": "List the metrics and their settings.",
    "presets": "List the presets: settings with which published values were computed.",
    "protocols": "List the protocols, and which tools and papers use them.",
    "published": "Show published FIDs with their sources.",
    "refs": "List published statistics to compare with, or download them.",
    "report": "Make an HTML page from a saved result.",
    "stats": "Write the statistics of a set of images to a file.",
    "table": "Print saved results as one table, also for papers and programs.",
    "verify": "Check whether a result is comparable with published values.",
    "weights": "List the locations of the Inception weights; verify or download them.",
}
_LISTS = ("metrics", "presets", "protocols", "published", "refs", "weights")
_RESULTS = ("diff", "history", "report", "table", "verify")
_MODULES = {
    **dict.fromkeys(_LISTS, "lists"),
    **dict.fromkeys(_RESULTS, "results"),
    "merge": "stats",
}


class _Commands(click.Group):
    """A group that imports a command's module when the command is used."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None and command.name is not None:
            command = _load_command(command.name)
        return name, command, rest


def _load_command(name: str) -> click.Command:
    file = _MODULES.get(name, name)
    module = importlib.import_module(f"fidtool.cli.{file}")
    command: click.Command = getattr(module, name)
    return command


def _show_all_help(context: click.Context, parameter: click.Parameter, typed: bool) -> None:
    """Print the help of ``fidtool``, and then that of each command with all options, and exit."""
    if not typed or context.resilient_parsing:
        return
    texts = [context.get_help()]
    context.meta[str(parameter.name)] = True  # as `--help-all` of a command sets it
    for name in _COMMANDS:
        with click.Context(_load_command(name), context, info_name=name) as inner:
            texts.append(inner.get_help())
    click.echo("\n\n\n".join(texts), color=context.color)
    context.exit()


@click.group(
    cls=_Commands,
    commands=[click.Command(name, short_help=line) for name, line in _COMMANDS.items()],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    invoke_without_command=True,
    subcommand_metavar="COMMAND [ARGS]...",
)
@click.version_option(__version__, prog_name="fidtool")
@click.option(
    "--help-all",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_all_help,
    help="Show the help of all commands, with all options, and exit.",
)
@click.pass_context
def cli(context: click.Context) -> None:
    """Fréchet Inception Distance (FID) and other metrics of generated images.

    \b
    fidtool compute real/ fake/                   FID of generated images
    torchrun --nproc-per-node=8 -m fidtool ...    the same value, on 8 GPUs
    fidtool compute real/ fake/ --fail-above 20   exit status 3 if it is above 20
    """
    if context.invoked_subcommand is None:
        # click would show the help too, but with status 0 in some versions.
        click.echo(context.get_help(), err=True)
        context.exit(InputError.exit_code)


def process() -> NoReturn:
    """Run the command line in this process, with its environment variables and signal handlers, and
    exit.
    """
    # OpenMP threads that spin while they wait make the distance ten times slower if another process
    # is busy. The variable must be set before torch loads OpenMP.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # fidtool reports a lost store in one line; torch would print forty frames of C++.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        try:
            keep_running_without_stderr()
            signals.take_over()
            signals.refuse_exits()
            main()
        except KeyboardInterrupt:  # before main handles signals
            _exit_with_error(stopped_error())
    except SystemExit as ended:
        _exit(ended)


def _exit(ended: SystemExit) -> NoReturn:
    """Run the exit functions, flush the output and end the process without finalising the
    interpreter.

    With torch loaded, finalising takes most of a second. If the output cannot be written, Python
    exits as usual and reports it.
    """
    status = int(ended.code or 0)
    if status or any(thread.name == CALL_THREAD_NAME for thread in threading.enumerate()):
        # A thread that is stuck in a network, a decoder or a logger would keep the process alive
        # indefinitely.
        force = threading.Timer(EXIT_SECONDS, signals.end_process, (status,))
        force.daemon = True
        force.start()
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        raise ended from None
    signals.end_process(status)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with one of `fidtool.errors.EXIT_STATUSES`."""
    try:
        typed = sys.argv[1:] if arguments is None else list(arguments)
        if discover_or_alone().world_size > 1:
            # A rank that fails before the rendezvous reports its error through torch's store, and
            # an import of torch that was interrupted by a signal cannot be repeated.
            with signals.defer():
                import torch  # noqa: F401  (only imported)
            if signals.received:
                raise KeyboardInterrupt
        status = cli.main(typed, prog_name="fidtool", standalone_mode=False, obj=tuple(typed))
        sys.exit(status if isinstance(status, int) else 0)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else " ".join(["fidtool", *typed[:1]])
        from fidtool.cli import hints  # deferred: most command lines need none

        message = hints.explain_usage_error(error, typed, [*_COMMANDS])
        _exit_with_error(InputError(f"{message} (see `{command} --help`)"))
    except FidtoolError as error:
        if error.printed:
            sys.exit(error.exit_code)
        _exit_with_error(error)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        # click writes a help text to a full disk
        _exit_with_error(RunError(f"the command failed ({error})"))
    except (click.Abort, KeyboardInterrupt):
        _exit_with_error(stopped_error())


def _exit_with_error(error: FidtoolError) -> NoReturn:
    """Exit with one line on stderr, before the rendezvous with other ranks.

    If there are other ranks, which may wait for this one, they get the error and print it. Under
    torchrun that is the only line. Ranks that were started manually may each have a terminal, so
    this rank prints the error as well.
    """
    launch = discover_or_alone()
    prints = not launcher_serves_store()
    if launch.rank == 0 or isinstance(error, LaunchError):
        print_error(error)
        sys.exit(error.exit_code)
    add_location(error, launch.rank, launch.world_size)
    if prints:
        print_error(error)
    stopped = isinstance(error, StoppedError)
    if prints or not stopped:  # torchrun stops the other ranks as well
        from fidtool.distributed.rendezvous import report_absence

        seconds = STOPPING_SECONDS if stopped else REPORT_SECONDS
        # A KeyboardInterrupt is from torchrun, which stops the remaining ranks: another rank has
        # reported the error.
        with contextlib.suppress(KeyboardInterrupt):
            if not report_absence(error, seconds) and not prints:
                print_error(error)
    sys.exit(error.exit_code)
